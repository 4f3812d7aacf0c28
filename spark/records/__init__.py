"""Bulk jobs over the record log: a catalog that is lost is rebuilt from its blocks."""
