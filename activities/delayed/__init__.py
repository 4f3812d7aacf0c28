"""Buckets of delayed messages: topics that are due are sealed, and buckets are merged two by two."""
