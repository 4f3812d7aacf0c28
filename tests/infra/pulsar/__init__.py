"""Tests of the access to a Pulsar cluster."""
