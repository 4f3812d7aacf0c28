"""All tables of the catalog, its first rows, and the triggers that fill the outbox of the record log."""

import uuid
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ColumnType = sa.types.TypeEngine[Any] | type[sa.types.TypeEngine[Any]]

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_BUNDLES = 64  # `migrate_catalog` replaces this number in a new catalog
_FREE_IDS = 1_000_000  # ceiling of each kind of ids before the first flush

_MICROSECONDS_NOW = {
    "sqlite": "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
}
_INSERT_CHANGE = "INSERT INTO record_outbox (kind, id, sub, at_us)"
_RECORD_KEYS = {  # by table: kind, id and sub of the record that a row `{0}` belongs to
    "topic": "'topic', {0}.topic_id, ''",
    "ledger_list": "'list', {0}.list_id, ''",
    "ledger": "'ledger', {0}.ledger_id, ''",
    "ledger_copy": "'ledger', {0}.ledger_id, ''",
    "segment": "'segment', {0}.ledger_id, CAST({0}.number AS TEXT)",
    "cursor": "'cursor', {0}.cursor_id, ''",
    "schema_version": "'schema', {0}.topic_id, CAST({0}.version AS TEXT)",
    "producer_sequence": "'producer', {0}.topic_id, {0}.producer",
    "pending_deletion": "'deletion', {0}.row_id, ''",
    "transaction": "'transaction', {0}.sequence, CAST({0}.tc_id AS TEXT)",
    "buffer_range": "'transaction', {0}.sequence, CAST({0}.tc_id AS TEXT)",
    "buffer_hidden": "'hidden', {0}.ledger_id, ''",
    "delayed_index": "'index', {0}.topic_id, ''",
    "transaction_snapshot": "'snapshot', {0}.topic_id, ''",
    "tombstone": "{0}.kind, {0}.id, ''",
}
_TRIGGERS = (  # table, event, and the columns whose update is recorded; empty: every update
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
    """Create the tables and triggers, the row of the catalog and the row of its record log."""
    _create_catalog()
    _create_topics()
    _create_ledgers()
    _create_cursors()
    _create_deletions()
    _create_transactions()
    _create_transaction_buffers()
    _create_delayed_indexes()
    _create_record_log()
    _insert_catalog_and_record_log_rows()
    connection = op.get_bind()
    for statement in _trigger_statements(connection.dialect.name):
        connection.exec_driver_sql(statement)


def _column(
    name: str,
    type_: _ColumnType,
    *,
    nullable: bool = False,
    autoincrement: bool = False,
    server_default: str | None = None,
) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=nullable, autoincrement=autoincrement, server_default=server_default)


def _claim() -> Iterator[sa.Column[Any]]:
    yield _column("claim_workflow", sa.String, nullable=True)
    yield _column("claim_run", sa.String, nullable=True)
    yield _column("claim_until_us", _BIG, nullable=True)


def _create_partial_index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _create_catalog() -> None:
    op.create_table(
        "catalog",
        _column("id", sa.Integer, autoincrement=True),
        _column("epoch", _BIG),
        _column("next_ledger_id", _BIG),
        _column("bundles", sa.Integer, server_default="64"),
        _column("catalog_id", sa.String, server_default=""),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "bucket_marker",
        _column("role", sa.String),
        _column("bucket", sa.String),
        _column("marked_us", _BIG),
        sa.PrimaryKeyConstraint("role", "bucket"),
    )
    op.create_table(
        "bundle_fence",
        _column("bundle", sa.Integer),
        _column("counter", _BIG),
        _column("worker_id", sa.String),
        _column("raised_us", _BIG),
        sa.PrimaryKeyConstraint("bundle"),
    )


def _create_topics() -> None:
    op.create_table(
        "topic",
        _column("topic_id", _BIG, autoincrement=True),
        _column("name", sa.String),
        _column("state", sa.String),
        _column("retention_s", _BIG),
        _column("retention_bytes", _BIG, nullable=True),
        _column("durable_delete", sa.Integer, nullable=True),
        _column("created_us", _BIG),
        sa.PrimaryKeyConstraint("topic_id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "producer_sequence",
        _column("topic_id", _BIG),
        _column("producer", sa.String),
        _column("sequence_id", _BIG),
        _column("kept_id", _BIG, nullable=True),
        _column("txn_tc", sa.Integer, nullable=True),
        _column("txn_seq", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("topic_id", "producer"),
    )
    _create_partial_index(
        "producer_sequence_by_transaction", "producer_sequence", ["txn_tc", "txn_seq"], "txn_tc IS NOT NULL"
    )
    op.create_table(
        "schema_version",
        _column("topic_id", _BIG),
        _column("version", _BIG),
        _column("ledger_id", _BIG),
        _column("digest", sa.String),
        _column("size_bytes", _BIG),
        _column("created_us", _BIG),
        sa.PrimaryKeyConstraint("topic_id", "version"),
    )


def _create_ledgers() -> None:
    op.create_table(
        "ledger_list",
        _column("list_id", _BIG, autoincrement=True),
        _column("topic_id", _BIG),
        _column("component", sa.String),
        _column("owner", sa.String),
        _column("version", _BIG),
        sa.PrimaryKeyConstraint("list_id"),
        sa.UniqueConstraint("topic_id", "component", "owner"),
    )
    op.create_table(
        "ledger",
        _column("ledger_id", _BIG),
        _column("list_id", _BIG),
        _column("place", _BIG, nullable=True),
        _column("application", sa.String),
        _column("state", sa.String),
        _column("entries", _BIG),
        _column("size_bytes", _BIG),
        _column("segments", _BIG),
        _column("last_segment", _BIG),
        _column("generation", _BIG),
        _column("epoch", _BIG),
        _column("created_us", _BIG),
        _column("closed_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("ledger_id"),
    )
    op.create_index("ledger_by_list", "ledger", ["list_id", "place"])
    _create_partial_index("ledger_unlisted", "ledger", ["created_us"], "place IS NULL")
    op.create_table(
        "ledger_copy",
        _column("ledger_id", _BIG),
        _column("kind", sa.String),
        _column("state", sa.String),
        _column("context", sa.JSON),
        sa.PrimaryKeyConstraint("ledger_id", "kind"),
    )
    _create_partial_index("ledger_copy_writing", "ledger_copy", ["kind"], "state = 'WRITING'")
    op.create_table(
        "segment",
        _column("ledger_id", _BIG),
        _column("number", _BIG),
        _column("first_entry", _BIG),
        _column("entries", _BIG),
        _column("size_bytes", _BIG),
        _column("sha256", sa.String, nullable=True),
        _column("delayed", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("ledger_id", "number"),
    )


def _create_cursors() -> None:
    op.create_table(
        "cursor",
        _column("cursor_id", _BIG, autoincrement=True),
        _column("topic_id", _BIG),
        _column("name", sa.String),
        _column("mark_ledger", _BIG),
        _column("mark_entry", _BIG),
        _column("acknowledged", sa.LargeBinary),
        _column("snapshot_ledger", _BIG, nullable=True),
        _column("seeks", _BIG, server_default="0"),
        _column("releases", _BIG, server_default="0"),
        _column("created_us", _BIG),
        sa.PrimaryKeyConstraint("cursor_id"),
        sa.UniqueConstraint("topic_id", "name"),
    )


def _create_deletions() -> None:
    op.create_table(
        "pending_deletion",
        _column("row_id", _BIG, autoincrement=True),
        _column("batch_id", sa.String),
        _column("ledger_id", _BIG),
        _column("copy", sa.String),
        _column("generation", _BIG),
        _column("application", sa.String),
        _column("component", sa.String),
        _column("topic_id", _BIG),
        _column("topic", sa.String),
        _column("keys", sa.String),
        _column("context", sa.JSON),
        _column("segments", _BIG),
        _column("last_segment", _BIG),
        _column("ledger_created_us", _BIG),
        _column("size_bytes", _BIG),
        _column("epoch", _BIG),
        _column("state", sa.String),
        _column("outcome", sa.String, nullable=True),
        _column("attempts", sa.Integer),
        _column("last_error", sa.Text, nullable=True),
        *_claim(),
        _column("keys_left", _BIG, nullable=True),
        _column("keys_left_attempts", sa.Integer, server_default="0"),
        _column("objects_deleted", _BIG),
        _column("bytes_deleted", _BIG),
        _column("created_us", _BIG),
        _column("finished_us", _BIG, nullable=True),
        _column("actor", sa.String, server_default=""),
        _column("reason", sa.Text, server_default=""),
        _column("openings", _BIG, server_default="0"),
        _column("durable", sa.Integer, server_default="0"),
        _column("trace_id", sa.String, nullable=True),
        sa.PrimaryKeyConstraint("row_id"),
        sa.UniqueConstraint("ledger_id", "copy", "generation"),
        sqlite_autoincrement=True,
    )
    op.create_index("pending_deletion_by_batch", "pending_deletion", ["batch_id", "row_id"])
    op.create_index("pending_deletion_by_end", "pending_deletion", ["state", "finished_us"])
    op.create_index("pending_deletion_by_state", "pending_deletion", ["state", "topic_id"])
    op.create_table(
        "run",
        _column("run_id", sa.String),
        _column("kind", sa.String),
        _column("topic_id", _BIG),
        _column("summary", sa.JSON),
        *_claim(),
        _column("created_us", _BIG),
        _column("finished_us", _BIG, nullable=True),
        _column("paused_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("run_by_end", "run", ["finished_us"])
    op.create_table(
        "audit",
        _column("audit_id", _BIG, autoincrement=True),
        _column("at_us", _BIG),
        _column("act", sa.String),
        _column("actor", sa.String),
        _column("reason", sa.Text),
        _column("workflow_id", sa.String),
        _column("topic_id", _BIG, nullable=True),
        _column("topic", sa.String, nullable=True),
        _column("run_id", sa.String, nullable=True),
        _column("first_ledger", _BIG, nullable=True),
        _column("last_ledger", _BIG, nullable=True),
        _column("detail", sa.JSON),
        sa.PrimaryKeyConstraint("audit_id"),
    )
    op.create_index("audit_by_run", "audit", ["run_id"])
    op.create_index("audit_by_topic", "audit", ["topic_id", "audit_id"])


def _create_transactions() -> None:
    op.create_table(
        "transaction_coordinator",
        _column("tc_id", sa.Integer),
        _column("next_sequence", _BIG),
        sa.PrimaryKeyConstraint("tc_id"),
    )
    op.create_table(
        "transaction",
        _column("tc_id", sa.Integer),
        _column("sequence", _BIG),
        _column("state", sa.String),
        _column("created_us", _BIG),
        _column("deadline_us", _BIG),
        _column("decided_us", _BIG, nullable=True),
        _column("finished_us", _BIG, nullable=True),
        _column("timed_out", sa.Integer),
        *_claim(),
        _column("attempts", sa.Integer),
        _column("last_error", sa.Text, nullable=True),
        _column("trace_id", sa.String, nullable=True),
        sa.PrimaryKeyConstraint("tc_id", "sequence"),
    )
    op.create_index("transaction_by_end", "transaction", ["finished_us"])
    _create_partial_index(
        "transaction_unfinished", "transaction", ["state", "tc_id", "deadline_us"], "finished_us IS NULL"
    )
    op.create_table(
        "transaction_participant",
        _column("tc_id", sa.Integer),
        _column("sequence", _BIG),
        _column("topic_id", _BIG),
        _column("subscription", sa.String),
        _column("topic", sa.String),
        _column("positions", sa.LargeBinary),
        _column("settled_us", _BIG, nullable=True),
        _column("how", sa.String, nullable=True),
        _column("last_error", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("tc_id", "sequence", "topic_id", "subscription"),
    )
    op.create_index("transaction_participant_by_topic", "transaction_participant", ["topic_id", "subscription"])


def _create_transaction_buffers() -> None:
    op.create_table(
        "buffer_range",
        _column("ledger_id", _BIG),
        _column("first_entry", _BIG),
        _column("entries", _BIG),
        _column("topic_id", _BIG),
        _column("tc_id", sa.Integer),
        _column("sequence", _BIG),
        sa.PrimaryKeyConstraint("ledger_id", "first_entry"),
    )
    op.create_index("buffer_range_by_topic", "buffer_range", ["topic_id"])
    op.create_index("buffer_range_by_transaction", "buffer_range", ["tc_id", "sequence"])
    op.create_table(
        "buffer_hidden",
        _column("ledger_id", _BIG),
        _column("topic_id", _BIG),
        _column("entries", sa.LargeBinary),
        sa.PrimaryKeyConstraint("ledger_id"),
    )
    op.create_index("buffer_hidden_by_topic", "buffer_hidden", ["topic_id", "ledger_id"])
    op.create_table(
        "transaction_snapshot",
        _column("topic_id", _BIG),
        _column("ledger_id", _BIG, nullable=True),
        _column("read_ledger", _BIG),
        _column("read_entry", _BIG),
        _column("changes", _BIG),
        _column("due_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("topic_id"),
    )
    op.create_index("transaction_snapshot_by_due", "transaction_snapshot", ["due_us"])
    op.create_index("transaction_snapshot_by_ledger", "transaction_snapshot", ["ledger_id"])


def _create_delayed_indexes() -> None:
    op.create_table(
        "delayed_index",
        _column("topic_id", _BIG),
        _column("version", _BIG),
        _column("sealed_ledger", _BIG),
        _column("sealed_entry", _BIG),
        _column("unsealed", _BIG),
        _column("changed_us", _BIG, nullable=True),
        *_claim(),
        sa.PrimaryKeyConstraint("topic_id"),
    )
    op.create_table(
        "delayed_bucket",
        _column("ledger_id", _BIG),
        _column("topic_id", _BIG),
        _column("first_ledger", _BIG),
        _column("first_entry", _BIG),
        _column("last_ledger", _BIG),
        _column("last_entry", _BIG),
        _column("messages", _BIG),
        _column("segments", _BIG),
        _column("first_ms", _BIG),
        _column("last_ms", _BIG),
        sa.PrimaryKeyConstraint("ledger_id"),
    )
    op.create_index("delayed_bucket_by_topic", "delayed_bucket", ["topic_id", "first_ledger", "first_entry"])


def _create_record_log() -> None:
    op.create_table(
        "record_outbox",
        _column("version", _BIG, autoincrement=True),
        _column("kind", sa.String),
        _column("id", _BIG),
        _column("sub", sa.String, server_default=""),
        _column("at_us", _BIG),
        sa.PrimaryKeyConstraint("version"),
        sqlite_autoincrement=True,
    )
    _create_partial_index(
        "record_outbox_by_record", "record_outbox", ["kind", "id"], "kind IN ('deletion', 'ledger', 'topic')"
    )
    op.create_table(
        "record_log",
        _column("id", sa.Integer),
        _column("manifest", _BIG),
        _column("stamp", sa.String),
        _column("pending", sa.JSON),
        _column("state", sa.String),
        _column("rebuild", sa.String, nullable=True),
        _column("ledger_ceiling", _BIG),
        _column("topic_ceiling", _BIG),
        _column("transaction_ceiling", _BIG),
        *_claim(),
        _column("flushed_us", _BIG, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "record_staged",
        _column("block_id", sa.String),
        _column("manifest", _BIG),
        _column("oldest_us", _BIG, nullable=True),
        _column("facts", sa.Text),
        sa.PrimaryKeyConstraint("block_id"),
    )
    op.create_table(
        "tombstone",
        _column("kind", sa.String),
        _column("id", _BIG),
        _column("topic_id", _BIG, nullable=True),
        _column("list_id", _BIG, nullable=True),
        _column("component", sa.String, nullable=True),
        _column("generation", _BIG),
        _column("epoch", _BIG),
        _column("at_us", _BIG),
        _column("raid", sa.String, nullable=True),
        sa.PrimaryKeyConstraint("kind", "id"),
    )
    op.create_index("tombstone_by_topic", "tombstone", ["topic_id"])
    op.create_table(
        "adoption",
        _column("ledger_id", _BIG),
        _column("topic_id", _BIG),
        _column("shard", sa.Integer),
        _column("standing", sa.String),
        _column("facts", sa.Text),
        _column("adoptee", sa.String, nullable=True),
        _column("segments", _BIG),
        sa.PrimaryKeyConstraint("ledger_id"),
    )
    op.create_index("adoption_by_topic", "adoption", ["topic_id", "ledger_id"])


def _insert_catalog_and_record_log_rows() -> None:
    catalog = sa.table("catalog", *map(sa.column, ("id", "epoch", "next_ledger_id", "bundles", "catalog_id")))
    op.bulk_insert(
        catalog,
        [{"id": 1, "epoch": 1, "next_ledger_id": 0, "bundles": _BUNDLES, "catalog_id": str(uuid.uuid4())}],
    )
    op.execute(
        "INSERT INTO record_log"  # noqa: S608 - a number of this module
        " (id, manifest, stamp, pending, state, ledger_ceiling, topic_ceiling, transaction_ceiling)"
        f" VALUES (1, 0, '', '{{}}', 'READY', {_FREE_IDS}, {_FREE_IDS}, {_FREE_IDS})"
    )


def _trigger_statements(dialect: str) -> Iterator[str]:
    for table, event, columns in _TRIGGERS:
        name = f"record_{table}_{event.lower()}"
        of_columns = f" OF {columns}" if columns else ""
        head = f'CREATE TRIGGER {name} AFTER {event}{of_columns} ON "{table}"'
        side = "OLD" if event == "DELETE" else "NEW"
        values = f"{_RECORD_KEYS[table]}, {_MICROSECONDS_NOW[dialect]}"
        if dialect == "sqlite":
            yield f"{head} FOR EACH ROW BEGIN {_INSERT_CHANGE} VALUES ({values.format(side)}); END"
            continue
        if columns:  # PostgreSQL allows no transition table in a trigger with a list of columns
            scope, source = "FOR EACH ROW", f"VALUES ({values.format(side)})"
        else:
            scope = f"REFERENCING {side} TABLE AS changed FOR EACH STATEMENT"
            source = f"SELECT {values.format('changed')} FROM changed"  # noqa: S608 - names of this module
        body = f"BEGIN {_INSERT_CHANGE} {source}; RETURN NULL; END"
        yield f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"
        yield f"{head} {scope} EXECUTE FUNCTION {name}()"
