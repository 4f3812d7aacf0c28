"""Worker process: its Temporal workers, its part in ownership, and its probes, pages and metrics."""
