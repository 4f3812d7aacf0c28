"""Transactions in SQL: their rows, the buffers of topics, and what decides and settles them."""
