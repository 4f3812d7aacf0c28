"""Entry point of Alembic. Migrations run on the connection of `migrate_catalog`, in its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
