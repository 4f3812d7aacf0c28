"""Delayed messages in SQL: lists of index buckets, and queries for work on them."""
