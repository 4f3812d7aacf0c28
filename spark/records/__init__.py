"""Bulk job that writes the rows of a rebuilt catalog from the record log."""
