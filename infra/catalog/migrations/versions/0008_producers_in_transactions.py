"""Producers in transactions: which of their sequence ids count only if a transaction commits."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns; ids from before count, whatever became of their transactions."""
    for name, kind in (("kept_id", _BIG), ("txn_tc", sa.Integer()), ("txn_seq", _BIG)):
        op.add_column("producer_sequence", sa.Column(name, kind, nullable=True))
    of_transactions = sa.text("txn_tc IS NOT NULL")
    op.create_index(
        "producer_sequence_by_transaction",
        "producer_sequence",
        ["txn_tc", "txn_seq"],
        sqlite_where=of_transactions,
        postgresql_where=of_transactions,
    )
