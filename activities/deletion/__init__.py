"""Activities of two-phase deletion. Source: PIP-186."""
