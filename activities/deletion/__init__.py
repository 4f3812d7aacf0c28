"""Activities of two-phase deletion. Each has one side effect. Source: PIP-186."""
