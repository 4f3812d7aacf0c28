"""The room `operations`."""
