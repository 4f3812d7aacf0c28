"""Worker process: Temporal workers, ownership of bundles, probes, pages and metrics."""
