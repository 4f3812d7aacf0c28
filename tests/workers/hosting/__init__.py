"""The room `hosting`."""
