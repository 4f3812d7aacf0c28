"""Commands of the queue of phase two."""
