"""Transactions: a coordinator's batches, and the broadcast of one that needs more than a batch."""
