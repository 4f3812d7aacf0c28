"""A lost catalog is rebuilt from its records."""
