"""Services that write the index of delayed messages, and services that deliver messages by this index."""
