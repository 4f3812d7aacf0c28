"""Composition root: the only package that constructs services, in production and in tests."""
