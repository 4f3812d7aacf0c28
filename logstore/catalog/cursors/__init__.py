"""Cursors in SQL."""
