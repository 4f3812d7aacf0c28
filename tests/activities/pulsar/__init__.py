"""Activities of the record log."""
