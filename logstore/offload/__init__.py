"""Tiered copies: their format, and where each of them stands."""
