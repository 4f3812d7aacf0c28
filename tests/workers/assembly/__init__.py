"""The room `assembly`."""
