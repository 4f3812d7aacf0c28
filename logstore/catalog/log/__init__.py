"""Topics, ledgers, segments and schemas in SQL."""
