"""Bulk jobs of a plan for a Pulsar cluster."""
