"""Delayed messages: how many of a segment's entries have a delivery time, and the buckets of each topic."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables; of segments from before nobody knows whether they hold delayed messages."""
    op.add_column("segment", sa.Column("delayed", _BIG, nullable=True))
    op.create_table(
        "delayed_index",
        sa.Column("topic_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("version", _BIG, nullable=False),
        sa.Column("sealed_ledger", _BIG, nullable=False),
        sa.Column("sealed_entry", _BIG, nullable=False),
        sa.Column("unsealed", _BIG, nullable=False),
        sa.Column("changed_us", _BIG, nullable=True),
        sa.Column("claim_workflow", sa.String(), nullable=True),
        sa.Column("claim_run", sa.String(), nullable=True),
        sa.Column("claim_until_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("topic_id"),
    )
    op.create_table(
        "delayed_bucket",
        sa.Column("ledger_id", _BIG, autoincrement=False, nullable=False),
        *(sa.Column(name, _BIG, nullable=False) for name in _OF_A_BUCKET),
        sa.PrimaryKeyConstraint("ledger_id"),
    )
    op.create_index("delayed_bucket_by_topic", "delayed_bucket", ["topic_id", "first_ledger", "first_entry"])


_OF_A_BUCKET = (
    "topic_id", "first_ledger", "first_entry", "last_ledger", "last_entry",
    "messages", "segments", "first_ms", "last_ms",
)  # fmt: skip
