"""The room `transactions`."""
