"""A real Pulsar cluster for the demo and for tests by hand: it is filled, damaged, and compared with a plan.

Nothing here is part of the wheel or of `make test`. CONTRIBUTING.md explains how to run it.
"""
