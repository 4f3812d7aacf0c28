"""The catalog's tables as they are declared; `infra.catalog.tables`, which queries import, is written from here.

Times are microseconds since 1970 by the database's clock. There are no foreign keys: rows of one ledger are
removed set-wise under the lock of their list, and a check per row would cost more than the removal.
"""

from typing import Any

from sqlalchemy import JSON, Index, Integer, LargeBinary, Text, UniqueConstraint, text
from sqlmodel import Field, SQLModel

import infra.declared.records  # noqa: F401 - their tables join the others
from infra.declared.transactions import Big
from infra.telemetry import current_trace_id


class CatalogRow(SQLModel, table=True):
    """The one row that speaks for the catalog as a whole."""

    __tablename__ = "catalog"
    id: int = Field(primary_key=True, sa_type=Integer)
    epoch: int = Field(sa_type=Big)
    next_ledger_id: int = Field(sa_type=Big)
    bundles: int = Field(sa_type=Integer, sa_column_kwargs={"server_default": "64"})  # never changed
    catalog_id: str = Field(default="", sa_column_kwargs={"server_default": text("''")})  # a UUID, never changed


class BucketMarkerRow(SQLModel, table=True):
    """A bucket in which this catalog has put its marker: from then on it is refused without it."""

    __tablename__ = "bucket_marker"
    role: str = Field(primary_key=True)  # primary, tiered or records
    bucket: str = Field(primary_key=True)
    marked_us: int = Field(sa_type=Big)


class BundleFenceRow(SQLModel, table=True):
    """How often a bundle was acquired, and by whom last; its row is the lock of writes under a lease."""

    __tablename__ = "bundle_fence"
    bundle: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    counter: int = Field(sa_type=Big)
    worker_id: str
    raised_us: int = Field(sa_type=Big)


class TopicRow(SQLModel, table=True):
    """A topic; a name created again has another id."""

    __tablename__ = "topic"
    __table_args__ = {"sqlite_autoincrement": True}
    topic_id: int | None = Field(default=None, primary_key=True, sa_type=Big)
    name: str = Field(unique=True)
    state: str
    retention_s: int = Field(sa_type=Big)
    retention_bytes: int | None = Field(default=None, sa_type=Big)
    durable_delete: int | None = None  # 1 or 0, for all of its operations; null: as each says
    created_us: int = Field(sa_type=Big)


class LedgerListRow(SQLModel, table=True):
    """The ledgers of one owner, in order. Its row is the lock of phase one."""

    __tablename__ = "ledger_list"
    __table_args__ = (UniqueConstraint("topic_id", "component", "owner"),)
    list_id: int | None = Field(default=None, primary_key=True, sa_type=Big)
    topic_id: int = Field(sa_type=Big)
    component: str
    owner: str  # the component's keys as canonical JSON
    version: int = Field(default=0, sa_type=Big)


class LedgerRow(SQLModel, table=True):
    """A ledger. It is listed while `place` is set."""

    __tablename__ = "ledger"
    __table_args__ = (
        Index("ledger_by_list", "list_id", "place"),
        Index(
            "ledger_unlisted", "created_us", sqlite_where=text("place IS NULL"), postgresql_where=text("place IS NULL")
        ),
    )
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    list_id: int = Field(sa_type=Big)
    place: int | None = Field(default=None, sa_type=Big)
    application: str
    state: str
    entries: int = Field(default=0, sa_type=Big)
    size_bytes: int = Field(default=0, sa_type=Big)
    segments: int = Field(default=0, sa_type=Big)
    last_segment: int = Field(default=-1, sa_type=Big)
    generation: int = Field(default=0, sa_type=Big)
    epoch: int = Field(sa_type=Big)
    created_us: int = Field(sa_type=Big)
    closed_us: int | None = Field(default=None, sa_type=Big)


class LedgerCopyRow(SQLModel, table=True):
    """One copy of a ledger: primary or tiered."""

    __tablename__ = "ledger_copy"
    __table_args__ = (
        Index(
            "ledger_copy_writing",
            "kind",
            sqlite_where=text("state = 'WRITING'"),
            postgresql_where=text("state = 'WRITING'"),
        ),
    )
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    kind: str = Field(primary_key=True)
    state: str
    context: dict[str, Any] = Field(default_factory=dict, sa_type=JSON)


class SegmentRow(SQLModel, table=True):
    """A registered segment; its registration is the moment at which its entries exist."""

    __tablename__ = "segment"
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    number: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    first_entry: int = Field(sa_type=Big)
    entries: int = Field(sa_type=Big)
    size_bytes: int = Field(sa_type=Big)
    sha256: str | None = None  # of the object, hexadecimal; segments from before digests have none
    delayed: int | None = Field(default=None, sa_type=Big)  # entries with a delivery time; null: not known, from before


class CursorRow(SQLModel, table=True):
    """A subscription and what it acknowledged."""

    __tablename__ = "cursor"
    __table_args__ = (UniqueConstraint("topic_id", "name"),)
    cursor_id: int | None = Field(default=None, primary_key=True, sa_type=Big)
    topic_id: int = Field(sa_type=Big)
    name: str
    mark_ledger: int = Field(sa_type=Big)
    mark_entry: int = Field(sa_type=Big)
    acknowledged: bytes = Field(default=b"", sa_type=LargeBinary)  # beyond the snapshot, if there is one
    snapshot_ledger: int | None = Field(default=None, sa_type=Big)  # its cursor ledger, once the state outgrew the row
    seeks: int = Field(default=0, sa_type=Big, sa_column_kwargs={"server_default": "0"})  # resets: tells states apart
    releases: int = Field(
        default=0, sa_type=Big, sa_column_kwargs={"server_default": "0"}
    )  # see `StoredCursor.releases`
    created_us: int = Field(sa_type=Big)


class SchemaVersionRow(SQLModel, table=True):
    """A version of a topic's schema, and the ledger that holds its content."""

    __tablename__ = "schema_version"
    topic_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    version: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})  # from 0
    ledger_id: int = Field(sa_type=Big)
    digest: str  # SHA-256 of the content, hexadecimal
    size_bytes: int = Field(sa_type=Big)
    created_us: int = Field(sa_type=Big)


class ProducerSequenceRow(SQLModel, table=True):
    """The last registered sequence id of a producer on a topic."""

    __tablename__ = "producer_sequence"
    __table_args__ = (
        Index(
            "producer_sequence_by_transaction",
            "txn_tc",
            "txn_seq",
            sqlite_where=text("txn_tc IS NOT NULL"),
            postgresql_where=text("txn_tc IS NOT NULL"),
        ),
    )
    topic_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    producer: str = Field(primary_key=True)
    sequence_id: int = Field(sa_type=Big)
    kept_id: int | None = Field(default=None, sa_type=Big)  # up to which ids count whatever becomes of the transaction
    txn_tc: int | None = None  # the transaction of the ids beyond; null: they count
    txn_seq: int | None = Field(default=None, sa_type=Big)


class PendingDeletionRow(SQLModel, table=True):
    """A deletion intent: one copy of one ledger, of one detach. Source: PIP-186, PendingDeleteLedgerInfo."""

    __tablename__ = "pending_deletion"
    __table_args__ = (
        UniqueConstraint("ledger_id", "copy", "generation"),
        Index("pending_deletion_by_batch", "batch_id", "row_id"),
        Index("pending_deletion_by_state", "state", "topic_id"),
        Index("pending_deletion_by_end", "state", "finished_us"),
        {"sqlite_autoincrement": True},  # pages go on behind the highest row id seen
    )
    row_id: int | None = Field(default=None, primary_key=True, sa_type=Big)
    batch_id: str
    ledger_id: int = Field(sa_type=Big)
    copy_kind: str = Field(sa_column_kwargs={"name": "copy"})
    generation: int = Field(sa_type=Big)
    application: str
    component: str
    topic_id: int = Field(sa_type=Big)
    topic: str
    keys: str  # canonical JSON
    context: dict[str, Any] = Field(default_factory=dict, sa_type=JSON)
    segments: int = Field(default=0, sa_type=Big)
    last_segment: int = Field(sa_type=Big)
    ledger_created_us: int = Field(sa_type=Big)
    size_bytes: int = Field(default=0, sa_type=Big)
    epoch: int = Field(sa_type=Big)
    state: str
    outcome: str | None = None
    attempts: int = 0
    last_error: str | None = Field(default=None, sa_type=Text)
    claim_workflow: str | None = None
    claim_run: str | None = None
    claim_until_us: int | None = Field(default=None, sa_type=Big)
    keys_left: int | None = Field(default=None, sa_type=Big)  # after the last attempt that storage answered
    keys_left_attempts: int = Field(default=0, sa_column_kwargs={"server_default": "0"})  # in a row that left as many
    objects_deleted: int = Field(default=0, sa_type=Big)
    bytes_deleted: int = Field(default=0, sa_type=Big)
    created_us: int = Field(sa_type=Big)
    finished_us: int | None = Field(default=None, sa_type=Big)
    actor: str = Field(default="", sa_column_kwargs={"server_default": text("''")})  # of the detach; empty: not known
    reason: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": text("''")})
    openings: int = Field(default=0, sa_type=Big, sa_column_kwargs={"server_default": "0"})  # again, after it had ended
    durable: int = Field(default=0, sa_column_kwargs={"server_default": "0"})  # 1: a tombstone stands for its ledger
    trace_id: str | None = Field(  # of whatever wrote the row last: its detach, or its last attempt
        default=None, sa_column_kwargs={"default": current_trace_id, "onupdate": current_trace_id}
    )


class RunRow(SQLModel, table=True):
    """One batch of work, claimed as a whole."""

    __tablename__ = "run"
    __table_args__ = (Index("run_by_end", "finished_us"),)
    run_id: str = Field(primary_key=True)
    kind: str
    topic_id: int = Field(sa_type=Big)
    summary: dict[str, Any] = Field(default_factory=dict, sa_type=JSON)
    claim_workflow: str | None = None
    claim_run: str | None = None
    claim_until_us: int | None = Field(default=None, sa_type=Big)
    created_us: int = Field(sa_type=Big)
    finished_us: int | None = Field(default=None, sa_type=Big)
    paused_us: int | None = Field(default=None, sa_type=Big)  # since when its batch is paused; none: it is not


class AuditRow(SQLModel, table=True):
    """A destructive act: actor, reason, workflow and outcome."""

    __tablename__ = "audit"
    __table_args__ = (Index("audit_by_topic", "topic_id", "audit_id"), Index("audit_by_run", "run_id"))
    audit_id: int | None = Field(default=None, primary_key=True, sa_type=Big)
    at_us: int = Field(sa_type=Big)
    act: str
    actor: str
    reason: str = Field(sa_type=Text)
    workflow_id: str
    topic_id: int | None = Field(default=None, sa_type=Big)
    topic: str | None = None
    run_id: str | None = None  # the batch it was a step of
    first_ledger: int | None = Field(default=None, sa_type=Big)  # inclusive; none: it is not about ledgers
    last_ledger: int | None = Field(default=None, sa_type=Big)
    detail: dict[str, Any] = Field(default_factory=dict, sa_type=JSON)


class DelayedIndexRow(SQLModel, table=True):
    """How far a topic's log was read for delayed messages, and which workflow works on its list of buckets."""

    __tablename__ = "delayed_index"
    topic_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    version: int = Field(default=0, sa_type=Big)  # of the list: every change compares and sets it
    sealed_ledger: int = Field(default=-1, sa_type=Big)  # up to this entry, inclusive, the log was looked through
    sealed_entry: int = Field(default=-1, sa_type=Big)
    unsealed: int = Field(default=0, sa_type=Big)  # entries behind it that have a delivery time
    changed_us: int | None = Field(default=None, sa_type=Big)  # when the newest of them was registered
    claim_workflow: str | None = None
    claim_run: str | None = None
    claim_until_us: int | None = Field(default=None, sa_type=Big)


class DelayedBucketRow(SQLModel, table=True):
    """A bucket, and the ledger that holds its snapshot. Delivery times are milliseconds since 1970."""

    __tablename__ = "delayed_bucket"
    __table_args__ = (Index("delayed_bucket_by_topic", "topic_id", "first_ledger", "first_entry"),)
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    topic_id: int = Field(sa_type=Big)
    first_ledger: int = Field(sa_type=Big)  # of the range that it covers, inclusive
    first_entry: int = Field(sa_type=Big)
    last_ledger: int = Field(sa_type=Big)
    last_entry: int = Field(sa_type=Big)
    messages: int = Field(sa_type=Big)
    segments: int = Field(sa_type=Big)
    first_ms: int = Field(sa_type=Big)
    last_ms: int = Field(sa_type=Big)


metadata = SQLModel.metadata
