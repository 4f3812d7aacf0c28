"""Durable jobs: what happens, in what order, after what failure."""
