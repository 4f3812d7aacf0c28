"""Topics, ledgers, cursors, deletion intents, runs and the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables and the catalog row: epoch 1, ledger ids from 0."""
    op.create_table(
        "audit",
        sa.Column("audit_id", _BIG, nullable=False),
        sa.Column("at_us", _BIG, nullable=False),
        sa.Column("act", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.String(), nullable=False),
        sa.Column("topic_id", _BIG, nullable=True),
        sa.Column("topic", sa.String(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id"),
    )
    op.create_table(
        "catalog",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("epoch", _BIG, nullable=False),
        sa.Column("next_ledger_id", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "cursor",
        sa.Column("cursor_id", _BIG, nullable=False),
        sa.Column("topic_id", _BIG, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("mark_ledger", _BIG, nullable=False),
        sa.Column("mark_entry", _BIG, nullable=False),
        sa.Column("acknowledged", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("cursor_id"),
        sa.UniqueConstraint("topic_id", "name"),
    )
    op.create_table(
        "ledger",
        sa.Column("ledger_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("list_id", _BIG, nullable=False),
        sa.Column("place", _BIG, nullable=True),
        sa.Column("application", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("entries", _BIG, nullable=False),
        sa.Column("size_bytes", _BIG, nullable=False),
        sa.Column("segments", _BIG, nullable=False),
        sa.Column("last_segment", _BIG, nullable=False),
        sa.Column("generation", _BIG, nullable=False),
        sa.Column("epoch", _BIG, nullable=False),
        sa.Column("created_us", _BIG, nullable=False),
        sa.Column("closed_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("ledger_id"),
    )
    op.create_index("ledger_by_list", "ledger", ["list_id", "place"], unique=False)
    op.create_table(
        "ledger_copy",
        sa.Column("ledger_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("context", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("ledger_id", "kind"),
    )
    op.create_table(
        "ledger_list",
        sa.Column("list_id", _BIG, nullable=False),
        sa.Column("topic_id", _BIG, nullable=False),
        sa.Column("component", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("version", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("list_id"),
        sa.UniqueConstraint("topic_id", "component", "owner"),
    )
    op.create_table(
        "pending_deletion",
        sa.Column("row_id", _BIG, nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("ledger_id", _BIG, nullable=False),
        sa.Column("copy", sa.String(), nullable=False),
        sa.Column("generation", _BIG, nullable=False),
        sa.Column("application", sa.String(), nullable=False),
        sa.Column("component", sa.String(), nullable=False),
        sa.Column("topic_id", _BIG, nullable=False),
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("keys", sa.String(), nullable=False),
        sa.Column("context", sa.JSON(), nullable=False),
        sa.Column("segments", _BIG, nullable=False),
        sa.Column("last_segment", _BIG, nullable=False),
        sa.Column("ledger_created_us", _BIG, nullable=False),
        sa.Column("size_bytes", _BIG, nullable=False),
        sa.Column("epoch", _BIG, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("claim_workflow", sa.String(), nullable=True),
        sa.Column("claim_run", sa.String(), nullable=True),
        sa.Column("claim_until_us", _BIG, nullable=True),
        sa.Column("objects_deleted", _BIG, nullable=False),
        sa.Column("bytes_deleted", _BIG, nullable=False),
        sa.Column("created_us", _BIG, nullable=False),
        sa.Column("finished_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("row_id"),
        sa.UniqueConstraint("ledger_id", "copy", "generation"),
        sqlite_autoincrement=True,
    )
    op.create_index("pending_deletion_by_batch", "pending_deletion", ["batch_id", "row_id"], unique=False)
    op.create_index("pending_deletion_by_state", "pending_deletion", ["state", "topic_id"], unique=False)
    op.create_table(
        "producer_sequence",
        sa.Column("topic_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("producer", sa.String(), nullable=False),
        sa.Column("sequence_id", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "producer"),
    )
    op.create_table(
        "run",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("topic_id", _BIG, nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("claim_workflow", sa.String(), nullable=True),
        sa.Column("claim_run", sa.String(), nullable=True),
        sa.Column("claim_until_us", _BIG, nullable=True),
        sa.Column("created_us", _BIG, nullable=False),
        sa.Column("finished_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_table(
        "segment",
        sa.Column("ledger_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("number", _BIG, autoincrement=False, nullable=False),
        sa.Column("first_entry", _BIG, nullable=False),
        sa.Column("entries", _BIG, nullable=False),
        sa.Column("size_bytes", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("ledger_id", "number"),
    )
    op.create_table(
        "topic",
        sa.Column("topic_id", _BIG, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("retention_s", _BIG, nullable=False),
        sa.Column("retention_bytes", _BIG, nullable=True),
        sa.Column("created_us", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("topic_id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.bulk_insert(
        sa.table("catalog", sa.column("id"), sa.column("epoch"), sa.column("next_ledger_id")),
        [{"id": 1, "epoch": 1, "next_ledger_id": 0}],
    )
