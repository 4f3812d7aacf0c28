"""The room `identity`."""
