"""The room `offload`."""
