"""Activities on the index of delayed messages."""
