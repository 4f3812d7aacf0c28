"""The catalog's id in SQL."""
