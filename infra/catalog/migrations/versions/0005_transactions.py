"""Transactions: coordinators, transactions with their participants, and the buffer of each topic."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables; there are no transactions yet."""
    op.create_table(
        "transaction_coordinator",
        sa.Column("tc_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("next_sequence", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("tc_id"),
    )
    op.create_table(
        "transaction",
        *_id(),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_us", _BIG, nullable=False),
        sa.Column("deadline_us", _BIG, nullable=False),
        sa.Column("decided_us", _BIG, nullable=True),
        sa.Column("finished_us", _BIG, nullable=True),
        sa.Column("timed_out", sa.Integer(), nullable=False),
        sa.Column("claim_workflow", sa.String(), nullable=True),
        sa.Column("claim_run", sa.String(), nullable=True),
        sa.Column("claim_until_us", _BIG, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("trace_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("tc_id", "sequence"),
    )
    unfinished = sa.text("finished_us IS NULL")
    op.create_index(
        "transaction_unfinished",
        "transaction",
        ["state", "tc_id", "deadline_us"],
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
    op.create_index("transaction_by_end", "transaction", ["finished_us"])
    op.create_table(
        "transaction_participant",
        *_id(),
        sa.Column("topic_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("subscription", sa.String(), nullable=False),
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("positions", sa.LargeBinary(), nullable=False),
        sa.Column("settled_us", _BIG, nullable=True),
        sa.Column("how", sa.String(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("tc_id", "sequence", "topic_id", "subscription"),
    )
    op.create_index("transaction_participant_by_topic", "transaction_participant", ["topic_id", "subscription"])
    _create_buffer()


def _create_buffer() -> None:
    op.create_table(
        "buffer_range",
        sa.Column("ledger_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("first_entry", _BIG, autoincrement=False, nullable=False),
        sa.Column("entries", _BIG, nullable=False),
        sa.Column("topic_id", _BIG, nullable=False),
        sa.Column("tc_id", sa.Integer(), nullable=False),
        sa.Column("sequence", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("ledger_id", "first_entry"),
    )
    op.create_index("buffer_range_by_topic", "buffer_range", ["topic_id"])
    op.create_index("buffer_range_by_transaction", "buffer_range", ["tc_id", "sequence"])
    op.create_table(
        "buffer_hidden",
        sa.Column("ledger_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("topic_id", _BIG, nullable=False),
        sa.Column("entries", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("ledger_id"),
    )
    op.create_index("buffer_hidden_by_topic", "buffer_hidden", ["topic_id", "ledger_id"])


def _id() -> tuple[sa.Column[int], sa.Column[int]]:
    return (
        sa.Column("tc_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", _BIG, autoincrement=False, nullable=False),
    )
