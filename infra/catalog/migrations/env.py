"""Alembic's entry: migrations run on the connection, and in the transaction, that `upgrade` hands over."""

from alembic import context

from infra.catalog.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
