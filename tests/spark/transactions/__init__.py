"""Bulk jobs of transactions, on a real Spark and real servers."""
