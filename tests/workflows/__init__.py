"""Durable jobs on a real Temporal server: what survives failures, restarts, cancellation and time."""
