"""Bulk queries of reconciliation, and the transactions that file findings as intents."""
