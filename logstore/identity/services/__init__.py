"""Buckets that are used only if their marker names this catalog."""
