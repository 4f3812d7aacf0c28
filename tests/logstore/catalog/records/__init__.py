"""The room `records`."""
