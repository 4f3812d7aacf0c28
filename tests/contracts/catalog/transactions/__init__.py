"""Transactions in SQL, on SQLite and on PostgreSQL."""
