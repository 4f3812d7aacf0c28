"""Bundles, and who owns them."""
