"""The catalog's tables for queries; written from `infra.declared.models` by `make tables`."""

from sqlalchemy import JSON, BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text, text

from infra.telemetry import current_trace_id

Big = BigInteger().with_variant(Integer, "sqlite")
metadata = MetaData()
catalog = Table(
    "catalog",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("epoch", Big, nullable=False),
    Column("next_ledger_id", Big, nullable=False),
    Column("bundles", Integer, nullable=False, server_default="64"),
    Column("catalog_id", String, nullable=False, default="", server_default=text("''")),
)
bucket_marker = Table(
    "bucket_marker",
    metadata,
    Column("role", String, primary_key=True),
    Column("bucket", String, primary_key=True),
    Column("marked_us", Big, nullable=False),
)
bundle_fence = Table(
    "bundle_fence",
    metadata,
    Column("bundle", Integer, primary_key=True, autoincrement=False),
    Column("counter", Big, nullable=False),
    Column("worker_id", String, nullable=False),
    Column("raised_us", Big, nullable=False),
)
topic = Table(
    "topic",
    metadata,
    Column("topic_id", Big, primary_key=True),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    Column("retention_s", Big, nullable=False),
    Column("retention_bytes", Big),
    Column("created_us", Big, nullable=False),
)
ledger_list = Table(
    "ledger_list",
    metadata,
    Column("list_id", Big, primary_key=True),
    Column("topic_id", Big, nullable=False),
    Column("component", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("version", Big, nullable=False, default=0),
)
ledger = Table(
    "ledger",
    metadata,
    Column("ledger_id", Big, primary_key=True, autoincrement=False),
    Column("list_id", Big, nullable=False),
    Column("place", Big),
    Column("application", String, nullable=False),
    Column("state", String, nullable=False),
    Column("entries", Big, nullable=False, default=0),
    Column("size_bytes", Big, nullable=False, default=0),
    Column("segments", Big, nullable=False, default=0),
    Column("last_segment", Big, nullable=False, default=-1),
    Column("generation", Big, nullable=False, default=0),
    Column("epoch", Big, nullable=False),
    Column("created_us", Big, nullable=False),
    Column("closed_us", Big),
)
ledger_copy = Table(
    "ledger_copy",
    metadata,
    Column("ledger_id", Big, primary_key=True, autoincrement=False),
    Column("kind", String, primary_key=True),
    Column("state", String, nullable=False),
    Column("context", JSON, nullable=False, default=dict),
)
segment = Table(
    "segment",
    metadata,
    Column("ledger_id", Big, primary_key=True, autoincrement=False),
    Column("number", Big, primary_key=True, autoincrement=False),
    Column("first_entry", Big, nullable=False),
    Column("entries", Big, nullable=False),
    Column("size_bytes", Big, nullable=False),
    Column("sha256", String),
)
cursor = Table(
    "cursor",
    metadata,
    Column("cursor_id", Big, primary_key=True),
    Column("topic_id", Big, nullable=False),
    Column("name", String, nullable=False),
    Column("mark_ledger", Big, nullable=False),
    Column("mark_entry", Big, nullable=False),
    Column("acknowledged", LargeBinary, nullable=False, default=b""),
    Column("snapshot_ledger", Big),
    Column("seeks", Big, nullable=False, default=0, server_default="0"),
    Column("created_us", Big, nullable=False),
)
schema_version = Table(
    "schema_version",
    metadata,
    Column("topic_id", Big, primary_key=True, autoincrement=False),
    Column("version", Big, primary_key=True, autoincrement=False),
    Column("ledger_id", Big, nullable=False),
    Column("digest", String, nullable=False),
    Column("size_bytes", Big, nullable=False),
    Column("created_us", Big, nullable=False),
)
producer_sequence = Table(
    "producer_sequence",
    metadata,
    Column("topic_id", Big, primary_key=True, autoincrement=False),
    Column("producer", String, primary_key=True),
    Column("sequence_id", Big, nullable=False),
)
pending_deletion = Table(
    "pending_deletion",
    metadata,
    Column("row_id", Big, primary_key=True),
    Column("batch_id", String, nullable=False),
    Column("ledger_id", Big, nullable=False),
    Column("copy", String, nullable=False),
    Column("generation", Big, nullable=False),
    Column("application", String, nullable=False),
    Column("component", String, nullable=False),
    Column("topic_id", Big, nullable=False),
    Column("topic", String, nullable=False),
    Column("keys", String, nullable=False),
    Column("context", JSON, nullable=False, default=dict),
    Column("segments", Big, nullable=False, default=0),
    Column("last_segment", Big, nullable=False),
    Column("ledger_created_us", Big, nullable=False),
    Column("size_bytes", Big, nullable=False, default=0),
    Column("epoch", Big, nullable=False),
    Column("state", String, nullable=False),
    Column("outcome", String),
    Column("attempts", Integer, nullable=False, default=0),
    Column("last_error", Text),
    Column("claim_workflow", String),
    Column("claim_run", String),
    Column("claim_until_us", Big),
    Column("keys_left", Big),
    Column("keys_left_attempts", Integer, nullable=False, default=0, server_default="0"),
    Column("objects_deleted", Big, nullable=False, default=0),
    Column("bytes_deleted", Big, nullable=False, default=0),
    Column("created_us", Big, nullable=False),
    Column("finished_us", Big),
    Column("actor", String, nullable=False, default="", server_default=text("''")),
    Column("reason", Text, nullable=False, default="", server_default=text("''")),
    Column("openings", Big, nullable=False, default=0, server_default="0"),
    Column("trace_id", String, default=current_trace_id, onupdate=current_trace_id),
)
run = Table(
    "run",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("topic_id", Big, nullable=False),
    Column("summary", JSON, nullable=False, default=dict),
    Column("claim_workflow", String),
    Column("claim_run", String),
    Column("claim_until_us", Big),
    Column("created_us", Big, nullable=False),
    Column("finished_us", Big),
    Column("paused_us", Big),
)
audit = Table(
    "audit",
    metadata,
    Column("audit_id", Big, primary_key=True),
    Column("at_us", Big, nullable=False),
    Column("act", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("workflow_id", String, nullable=False),
    Column("topic_id", Big),
    Column("topic", String),
    Column("run_id", String),
    Column("first_ledger", Big),
    Column("last_ledger", Big),
    Column("detail", JSON, nullable=False, default=dict),
)
