"""Workflows of the record log."""
