"""How the copies of ledgers are found, verified and removed."""
