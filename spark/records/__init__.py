"""Bulk job over the record log, which rebuilds a lost catalog."""
