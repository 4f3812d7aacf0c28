"""What writes the index of delayed messages and what delivers by it."""
