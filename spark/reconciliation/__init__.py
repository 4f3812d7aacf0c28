"""Bulk jobs of a reconciliation."""
