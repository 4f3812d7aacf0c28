"""Two-phase deletion, one side effect an activity. Source: PIP-186."""
