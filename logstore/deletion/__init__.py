"""Two-phase deletion: rules that select ledgers, and outcomes of intents. Source: PIP-186."""
