"""What adoption finds in storage, until each topic is settled with it."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "adoption",
        sa.Column("ledger_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("topic_id", _BIG, nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("standing", sa.String(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("adoptee", sa.String(), nullable=True),
        sa.Column("segments", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("ledger_id"),
    )
    op.create_index("adoption_by_topic", "adoption", ["topic_id", "ledger_id"])
