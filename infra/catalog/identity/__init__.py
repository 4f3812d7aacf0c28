"""The catalog's own id in SQL."""
