"""Reconciliation: a plan that changes nothing, and an apply that looks at each finding again."""
