"""Tiered copies of ledgers: their format and their locations."""
