"""Reconciliation: comparison of storage with the catalog, and rules about what may be removed."""
