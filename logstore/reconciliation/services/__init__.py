"""Services of reconciliation: second looks at orphans, checks of runs, and checks of stored objects."""
