"""Bulk reads of a reconciliation, and the few writes by which an orphan becomes an intent."""
