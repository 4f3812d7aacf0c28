"""Bulk jobs of transactions."""
