"""Commands of traces."""
