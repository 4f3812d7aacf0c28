"""Database of the catalog: connections, transactions, errors, the catalog's version, and bulk parameters."""
