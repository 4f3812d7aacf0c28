"""The room `reconciliation`."""
