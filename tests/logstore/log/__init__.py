"""The room `log`."""
