"""Which catalog a store belongs to."""
