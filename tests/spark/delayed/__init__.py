"""Bulk jobs of delayed messages, on a real Spark and real servers."""
