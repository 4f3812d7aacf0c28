"""The record log: its outbox with the triggers that fill it, tombstones, ceilings of ids, and the policy of deletes.

A statement of many rows calls a trigger of PostgreSQL once, but where columns are named, which PostgreSQL allows for
single rows alone. A trigger that is to change is replaced by a later migration.
"""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_FREE_IDS = 1_000_000
_CLOCK = {
    "sqlite": "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
}
_OUTBOX = "INSERT INTO record_outbox (kind, id, sub, at_us)"
_RECORDS = {  # of each table: kind, id and sub of the record that its row is of
    "topic": "'topic', {0}.topic_id, ''",
    "ledger_list": "'list', {0}.list_id, ''",
    "ledger": "'ledger', {0}.ledger_id, ''",
    "segment": "'segment', {0}.ledger_id, CAST({0}.number AS TEXT)",
    "cursor": "'cursor', {0}.cursor_id, ''",
    "schema_version": "'schema', {0}.topic_id, CAST({0}.version AS TEXT)",
    "producer_sequence": "'producer', {0}.topic_id, {0}.producer",
    "pending_deletion": "'deletion', {0}.row_id, ''",
    "transaction": "'transaction', {0}.sequence, CAST({0}.tc_id AS TEXT)",
    "buffer_hidden": "'hidden', {0}.ledger_id, ''",
    "delayed_index": "'index', {0}.topic_id, ''",
    "transaction_snapshot": "'snapshot', {0}.topic_id, ''",
}
_PARTS = {  # tables whose rows belong to records of another one, and the tombstones, which say their kind themselves
    "ledger_copy": _RECORDS["ledger"],
    "buffer_range": _RECORDS["transaction"],
    "tombstone": "{0}.kind, {0}.id, ''",
}
_TRIGGERS = (  # table, event, and the columns whose update counts; empty: any
    ("topic", "INSERT", ""),
    ("topic", "UPDATE", ""),
    ("ledger_list", "INSERT", ""),
    ("ledger_list", "UPDATE", "version"),
    ("ledger", "INSERT", ""),
    ("ledger", "UPDATE", "state, place, generation, closed_us"),
    ("ledger_copy", "INSERT", ""),
    ("ledger_copy", "UPDATE", ""),
    ("segment", "INSERT", ""),
    ("cursor", "INSERT", ""),
    ("cursor", "UPDATE", ""),
    ("schema_version", "INSERT", ""),
    ("producer_sequence", "INSERT", ""),
    ("producer_sequence", "UPDATE", ""),
    ("pending_deletion", "INSERT", ""),
    ("pending_deletion", "UPDATE", "state, outcome, generation, openings, context"),
    ("transaction", "UPDATE", "state"),
    ("buffer_range", "INSERT", ""),
    ("buffer_range", "DELETE", ""),
    ("buffer_hidden", "INSERT", ""),
    ("buffer_hidden", "UPDATE", ""),
    ("delayed_index", "UPDATE", "version"),
    ("transaction_snapshot", "INSERT", ""),
    ("transaction_snapshot", "UPDATE", "ledger_id"),
    ("tombstone", "INSERT", ""),
    ("tombstone", "UPDATE", "generation, epoch, at_us"),
)


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
    connection = op.get_bind()
    for statement in (*_triggers(connection.dialect.name), *_everything(connection.dialect.name)):
        connection.exec_driver_sql(statement)


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


def _triggers(dialect: str) -> Iterator[str]:
    """The statements that create the triggers."""
    for table, event, of in _TRIGGERS:
        name = f"record_{table}_{event.lower()}"
        columns = f" OF {of}" if of else ""
        head = f'CREATE TRIGGER {name} AFTER {event}{columns} ON "{table}"'
        side = "OLD" if event == "DELETE" else "NEW"
        row = f"{_RECORDS.get(table) or _PARTS[table]}, {_CLOCK[dialect]}"
        if dialect == "sqlite":
            yield f"{head} FOR EACH ROW BEGIN {_OUTBOX} VALUES ({row.format(side)}); END"
            continue
        if of:
            each, inserted = "FOR EACH ROW", f"VALUES ({row.format(side)})"
        else:
            each = f"REFERENCING {side} TABLE AS changed FOR EACH STATEMENT"
            inserted = f"SELECT {row.format('changed')} FROM changed"  # noqa: S608 - names of ours
        body = f"BEGIN {_OUTBOX} {inserted}; RETURN NULL; END"
        yield f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"
        yield f"{head} {each} EXECUTE FUNCTION {name}()"


def _everything(dialect: str) -> Iterator[str]:
    """The statements that let every record be flushed once."""
    for table, record in _RECORDS.items():
        yield f'{_OUTBOX} SELECT {record.format("one")}, {_CLOCK[dialect]} FROM "{table}" AS one'  # noqa: S608
