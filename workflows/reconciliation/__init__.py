"""Workflows of reconciliation: plans, which change nothing; applies of plans; scrubs."""
