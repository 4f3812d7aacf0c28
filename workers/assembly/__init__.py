"""Composition root. No other package constructs services, in production and in tests."""
