"""Tiered copies of ledgers in SQL."""
