"""Activities of two-phase deletion, each with one side effect. Source: PIP-186."""
