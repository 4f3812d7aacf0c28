"""Durable jobs that offload one ledger or the ledgers of a topic."""
