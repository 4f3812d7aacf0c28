"""Delayed messages in SQL: which buckets each topic has, and what there is to do about them."""
