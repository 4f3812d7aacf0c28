"""Workflows of transactions."""
