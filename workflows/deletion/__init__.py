"""Durable jobs of deletion: of one ledger, of a batch, of a topic, and by retention. Source: PIP-186."""
