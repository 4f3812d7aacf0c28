"""Activities of reconciliation: plans, which change nothing; applies, which check each finding again; scrubs."""
