"""The bulk jobs of a reconciliation."""
