"""Buckets that are used only once their marker names this catalog."""
