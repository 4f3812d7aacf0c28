"""Reconciliation: what storage holds against what the catalog says, and what may be removed on that."""
