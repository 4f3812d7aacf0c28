"""Transactions in SQL: rows of transactions and participants, and the transaction buffers of topics."""
