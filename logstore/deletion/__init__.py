"""Two-phase deletion: which ledgers may go, and what each intent ends as. Source: PIP-186."""
