"""Database of the catalog: connections, transactions, error translation, versions and bulk parameters."""
