"""Tests of a real Pulsar cluster run only with Pulsar's client, which `make test-pulsar` puts on the path."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("pulsar") else ["test_plans.py"]
