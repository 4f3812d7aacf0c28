"""Services that write the index of delayed messages, and that deliver by it."""
