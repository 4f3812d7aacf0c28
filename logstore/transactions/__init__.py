"""Transactions: one decision for messages on several topics and acknowledgements of several subscriptions."""
