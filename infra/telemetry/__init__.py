"""Spans, logs and metrics."""
