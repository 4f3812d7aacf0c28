"""Durable jobs of transactions: a coordinator's group commit, and the broadcast of one that cannot go with others."""
