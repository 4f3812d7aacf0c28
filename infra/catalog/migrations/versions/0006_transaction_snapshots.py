"""Snapshots of transaction buffers: which ledger holds each, and when the next one is due."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table; a topic gets its row with the next transaction that is settled in it."""
    op.create_table(
        "transaction_snapshot",
        sa.Column("topic_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("ledger_id", _BIG, nullable=True),
        sa.Column("read_ledger", _BIG, nullable=False),
        sa.Column("read_entry", _BIG, nullable=False),
        sa.Column("changes", _BIG, nullable=False),
        sa.Column("due_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("topic_id"),
    )
    op.create_index("transaction_snapshot_by_ledger", "transaction_snapshot", ["ledger_id"])
    op.create_index("transaction_snapshot_by_due", "transaction_snapshot", ["due_us"])
