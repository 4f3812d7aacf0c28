"""Formats of Apache Pulsar and BookKeeper, and rules about the ledgers of a cluster."""
