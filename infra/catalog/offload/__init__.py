"""Tiered copies in SQL."""
