"""Two-phase deletion: which ledgers may be deleted, and what each intent ends as. Source: PIP-186."""
