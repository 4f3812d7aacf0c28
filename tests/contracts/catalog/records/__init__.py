"""The record log's side of the catalog."""
