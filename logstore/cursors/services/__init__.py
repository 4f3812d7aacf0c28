"""Subscriptions as a process uses them, whole wherever the parts of their state are."""
