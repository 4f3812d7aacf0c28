"""Bulk jobs."""
