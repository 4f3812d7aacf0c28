"""Bulk jobs of delayed messages."""
