"""Commands of ledgers."""
