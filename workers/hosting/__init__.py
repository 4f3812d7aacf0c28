"""A worker process: what it hosts, how it takes part in ownership, and what it shows of its work."""
