"""The room `deletion`."""
