"""Workflows on the index of delayed messages."""
