"""Tests of the bulk jobs of a plan for a Pulsar cluster."""
