"""Delayed messages, and an index of waiting messages, so that readers do not fetch a message too early."""
