"""The contract of the catalog port, run on every implementation of it."""
