"""Promise 7 on real servers: processes own bundles, their sessions break in every way, an auditor counts."""
