"""Bulk jobs: which rows, as pure functions of DataFrames, and where they come from."""
