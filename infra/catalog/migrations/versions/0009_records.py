"""The record log: its outbox with the triggers that fill it, tombstones, ceilings of ids, and the policy of deletes."""

import sqlalchemy as sa
from alembic import op

from infra.catalog.records.triggers import create_triggers, record_everything

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_FREE_IDS = 1_000_000


def upgrade() -> None:
    """Create the tables; whatever the catalog holds is to be flushed once, and its ids stay below the ceilings."""
    op.add_column("topic", sa.Column("durable_delete", sa.Integer(), nullable=True))
    op.add_column("pending_deletion", sa.Column("durable", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "record_outbox",
        sa.Column("version", _BIG, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("id", _BIG, nullable=False),
        sa.Column("sub", sa.String(), nullable=False, server_default=sa.text("''")),
        sa.Column("at_us", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("version"),
        sqlite_autoincrement=True,
    )
    asked = sa.text("kind IN ('deletion', 'ledger', 'topic')")
    key = ["kind", "id"]
    op.create_index("record_outbox_by_record", "record_outbox", key, sqlite_where=asked, postgresql_where=asked)
    op.create_table(
        "tombstone",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("id", _BIG, autoincrement=False, nullable=False),
        sa.Column("topic_id", _BIG, nullable=True),
        sa.Column("list_id", _BIG, nullable=True),
        sa.Column("component", sa.String(), nullable=True),
        sa.Column("generation", _BIG, nullable=False),
        sa.Column("epoch", _BIG, nullable=False),
        sa.Column("at_us", _BIG, nullable=False),
        sa.Column("raid", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("kind", "id"),
    )
    op.create_index("tombstone_by_topic", "tombstone", ["topic_id"])
    _create_log()
    create_triggers(op.get_bind())
    record_everything(op.get_bind())


def _create_log() -> None:
    """The row of the record log; the ceilings are above whatever the catalog has given out."""
    op.create_table(
        "record_log",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("manifest", _BIG, nullable=False),
        sa.Column("stamp", sa.String(), nullable=False),
        sa.Column("pending", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("rebuild", sa.String(), nullable=True),
        sa.Column("ledger_ceiling", _BIG, nullable=False),
        sa.Column("topic_ceiling", _BIG, nullable=False),
        sa.Column("transaction_ceiling", _BIG, nullable=False),
        sa.Column("claim_workflow", sa.String(), nullable=True),
        sa.Column("claim_run", sa.String(), nullable=True),
        sa.Column("claim_until_us", _BIG, nullable=True),
        sa.Column("flushed_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    topics = "topic", "pending_deletion", "audit"
    known = " UNION ALL ".join(f"SELECT topic_id FROM {table}" for table in topics)  # noqa: S608 - names of ours
    highest = (
        "(SELECT coalesce(max(next_ledger_id), 0) FROM catalog)",
        f"(SELECT coalesce(max(topic_id), 0) FROM ({known}) AS known)",  # noqa: S608
        "(SELECT coalesce(max(next_sequence), 0) FROM transaction_coordinator)",
    )
    ceilings = ", ".join(f"{one} + {_FREE_IDS}" for one in highest)
    op.execute(
        "INSERT INTO record_log"  # noqa: S608
        " (id, manifest, stamp, pending, state, ledger_ceiling, topic_ceiling, transaction_ceiling)"
        f" VALUES (1, 0, '', '{{}}', 'READY', {ceilings})"
    )
