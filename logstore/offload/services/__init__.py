"""Writing a tiered copy, and asking storage whether it still stands."""
