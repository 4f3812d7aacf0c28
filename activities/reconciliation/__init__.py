"""Activities of plans, applies and scrubs."""
