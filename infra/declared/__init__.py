"""The tables as SQLModel classes, and what writes `infra.catalog.tables` from them."""
