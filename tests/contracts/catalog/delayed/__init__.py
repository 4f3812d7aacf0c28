"""Lists of buckets of delayed messages."""
