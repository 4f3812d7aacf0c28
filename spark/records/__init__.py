"""Bulk job over the record log that rebuilds a lost catalog."""
