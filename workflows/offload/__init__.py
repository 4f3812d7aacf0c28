"""Durable jobs of offload: of one ledger, and of a topic."""
