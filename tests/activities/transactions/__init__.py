"""Activities of transactions, over SQLite and storage in memory."""
