"""Delayed messages, and the index that lists waiting messages by delivery time."""
