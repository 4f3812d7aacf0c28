"""Appending, rolling and reading, on fakes."""
