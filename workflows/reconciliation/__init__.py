"""Workflows of reconciliation: plans, applies and scrubs."""
