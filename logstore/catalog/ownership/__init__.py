"""Fences of bundles in SQL."""
