"""Identity of the catalog in its buckets."""
