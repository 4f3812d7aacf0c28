"""Tests of the formats of Pulsar and BookKeeper, and of the rules about ledgers of a cluster."""
