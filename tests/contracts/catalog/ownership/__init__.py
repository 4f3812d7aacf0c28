"""The room `ownership`."""
