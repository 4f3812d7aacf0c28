"""Workflows of jobs on a Pulsar cluster."""
