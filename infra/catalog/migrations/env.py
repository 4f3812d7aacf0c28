"""Alembic's entry: migrations run on the connection, and in the transaction, that `upgrade` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
