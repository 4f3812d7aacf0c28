"""Cursor and schema ledgers, what is left of a deletion, and an order in which finished rows go."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add columns that old rows may leave empty, and the table of schema versions."""
    op.add_column("cursor", sa.Column("snapshot_ledger", _BIG, nullable=True))
    op.add_column("cursor", sa.Column("seeks", _BIG, nullable=False, server_default="0"))
    op.add_column("pending_deletion", sa.Column("keys_left", _BIG, nullable=True))
    op.add_column("pending_deletion", sa.Column("keys_left_attempts", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("audit", sa.Column("run_id", sa.String(), nullable=True))
    op.add_column("audit", sa.Column("first_ledger", _BIG, nullable=True))
    op.add_column("audit", sa.Column("last_ledger", _BIG, nullable=True))
    op.create_index("audit_by_topic", "audit", ["topic_id", "audit_id"])
    op.create_index("audit_by_run", "audit", ["run_id"])
    op.create_index("pending_deletion_by_end", "pending_deletion", ["state", "finished_us"])
    op.create_index("run_by_end", "run", ["finished_us"])
    unlisted = sa.text("place IS NULL")
    op.create_index("ledger_unlisted", "ledger", ["created_us"], sqlite_where=unlisted, postgresql_where=unlisted)
    writing = sa.text("state = 'WRITING'")
    op.create_index("ledger_copy_writing", "ledger_copy", ["kind"], sqlite_where=writing, postgresql_where=writing)
    op.create_table(
        "schema_version",
        sa.Column("topic_id", _BIG, nullable=False, autoincrement=False),
        sa.Column("version", _BIG, nullable=False, autoincrement=False),
        sa.Column("ledger_id", _BIG, nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", _BIG, nullable=False),
        sa.Column("created_us", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "version"),
    )
