"""The database under the catalog: transactions, its faults, its version, and parameters in bulk."""
