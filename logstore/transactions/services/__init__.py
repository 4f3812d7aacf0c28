"""What is done with transactions: their broadcast."""
