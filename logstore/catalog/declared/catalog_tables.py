"""Tables of the catalog. `make tables` generates `logstore.catalog.tables`, which queries import, from these classes.

Times are microseconds since 1970 by the database's clock. There are no foreign keys, because a check of each removed
row would cost more than the removal.
"""

from typing import Any

from sqlalchemy import JSON, Index, Integer, LargeBinary, Text, UniqueConstraint, text
from sqlmodel import Field, SQLModel

import logstore.catalog.declared.record_log_tables  # noqa: F401 - adds its tables to the metadata
from logstore.catalog.declared.transaction_tables import Big
from logstore.trace_id import current_trace_id


class CatalogRow(SQLModel, table=True):
    """Single row with the epoch, the identity and the number of bundles of the catalog."""

    __tablename__ = "catalog"
    id: int = Field(primary_key=True, sa_type=Integer)
    epoch: int = Field(sa_type=Big)
    next_ledger_id: int = Field(sa_type=Big)
    bundles: int = Field(sa_type=Integer, sa_column_kwargs={"server_default": "64"})  # never changed
    catalog_id: str = Field(default="", sa_column_kwargs={"server_default": text("''")})  # a UUID, never changed


class BucketMarkerRow(SQLModel, table=True):
    """Bucket that has got this catalog's marker. If the marker is missing later, the bucket is refused."""

    __tablename__ = "bucket_marker"
    role: str = Field(primary_key=True)  # primary, tiered or records
    bucket: str = Field(primary_key=True)
    marked_us: int = Field(sa_type=Big)


class BundleFenceRow(SQLModel, table=True):
    """Fence of a bundle: its number of acquisitions, and its last bundle owner. Writes under a lease lock this row."""

    __tablename__ = "bundle_fence"
    bundle: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    counter: int = Field(sa_type=Big)
    worker_id: str
    raised_us: int = Field(sa_type=Big)


class TopicRow(SQLModel, table=True):
    """Topic. If a name is used again, the new topic gets another id."""

    __tablename__ = "topic"
    __table_args__ = {"sqlite_autoincrement": True}
    topic_id: int | None = Field(default=None, primary_key=True, sa_type=Big)
    name: str = Field(unique=True)
    state: str
    retention_s: int = Field(sa_type=Big)
    retention_bytes: int | None = Field(default=None, sa_type=Big)
    durable_delete: int | None = None  # 1 or 0 for all operations of the topic; null: each operation decides
    created_us: int = Field(sa_type=Big)


class LedgerListRow(SQLModel, table=True):
    """Ordered list of the ledgers of one ledger owner. Phase one locks this row."""

    __tablename__ = "ledger_list"
    __table_args__ = (UniqueConstraint("topic_id", "component", "owner"),)
    list_id: int | None = Field(default=None, primary_key=True, sa_type=Big)
    topic_id: int = Field(sa_type=Big)
    component: str
    owner: str  # keys of the ledger owner as canonical JSON
    version: int = Field(default=0, sa_type=Big)


class LedgerRow(SQLModel, table=True):
    """Ledger. It is in its list while `place` is set."""

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
    """Registered segment. Its entries exist as soon as this row is committed."""

    __tablename__ = "segment"
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    number: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    first_entry: int = Field(sa_type=Big)
    entries: int = Field(sa_type=Big)
    size_bytes: int = Field(sa_type=Big)
    sha256: str | None = None  # of the object, hexadecimal; null: unknown
    delayed: int | None = Field(default=None, sa_type=Big)  # entries with a delivery time


class CursorRow(SQLModel, table=True):
    __tablename__ = "cursor"
    __table_args__ = (UniqueConstraint("topic_id", "name"),)
    cursor_id: int | None = Field(default=None, primary_key=True, sa_type=Big)
    topic_id: int = Field(sa_type=Big)
    name: str
    mark_ledger: int = Field(sa_type=Big)
    mark_entry: int = Field(sa_type=Big)
    acknowledged: bytes = Field(default=b"", sa_type=LargeBinary)  # only since the cursor snapshot, if there is one
    snapshot_ledger: int | None = Field(default=None, sa_type=Big)  # ledger of the cursor snapshot
    seeks: int = Field(default=0, sa_type=Big, sa_column_kwargs={"server_default": "0"})  # number of seeks
    # Number of times that the subscription has given entries back.
    releases: int = Field(default=0, sa_type=Big, sa_column_kwargs={"server_default": "0"})
    created_us: int = Field(sa_type=Big)


class SchemaVersionRow(SQLModel, table=True):
    __tablename__ = "schema_version"
    topic_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    version: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})  # from 0
    ledger_id: int = Field(sa_type=Big)
    digest: str  # SHA-256 of the content, hexadecimal
    size_bytes: int = Field(sa_type=Big)
    created_us: int = Field(sa_type=Big)


class ProducerSequenceRow(SQLModel, table=True):
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
    kept_id: int | None = Field(default=None, sa_type=Big)  # last id that stays valid if the transaction aborts
    txn_tc: int | None = None  # coordinator of the transaction to which later ids belong; null: all ids are valid
    txn_seq: int | None = Field(default=None, sa_type=Big)


class PendingDeletionRow(SQLModel, table=True):
    """Deletion intent for one copy of a ledger, filed by one detach. Source: PIP-186, PendingDeleteLedgerInfo."""

    __tablename__ = "pending_deletion"
    __table_args__ = (
        UniqueConstraint("ledger_id", "copy", "generation"),
        Index("pending_deletion_by_batch", "batch_id", "row_id"),
        Index("pending_deletion_by_state", "state", "topic_id"),
        Index("pending_deletion_by_end", "state", "finished_us"),
        {"sqlite_autoincrement": True},  # readers page by row id, so an id is never used again
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
    keys_left: int | None = Field(default=None, sa_type=Big)  # number of keys after the last answered attempt
    # Number of consecutive attempts that left `keys_left` keys.
    keys_left_attempts: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    objects_deleted: int = Field(default=0, sa_type=Big)
    bytes_deleted: int = Field(default=0, sa_type=Big)
    created_us: int = Field(sa_type=Big)
    finished_us: int | None = Field(default=None, sa_type=Big)
    actor: str = Field(default="", sa_column_kwargs={"server_default": text("''")})  # detaching actor; empty: unknown
    reason: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": text("''")})
    # Number of times that the row was reopened after it ended.
    openings: int = Field(default=0, sa_type=Big, sa_column_kwargs={"server_default": "0"})
    durable: int = Field(default=0, sa_column_kwargs={"server_default": "0"})  # 1: the ledger left a tombstone
    trace_id: str | None = Field(  # trace of the last write: of the detach, or of the last attempt
        default=None, sa_column_kwargs={"default": current_trace_id, "onupdate": current_trace_id}
    )


class RunRow(SQLModel, table=True):
    """Run of a batch, a plan, an apply or a scrub."""

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
    paused_us: int | None = Field(default=None, sa_type=Big)  # begin of the batch's pause; null: not paused


class DeletedZnodeRow(SQLModel, table=True):
    """Znode of a ledger of a Pulsar cluster that an apply deletes, with all that an undo needs."""

    __tablename__ = "deleted_znode"
    run_id: str = Field(primary_key=True)  # run of the apply
    ledger_id: int = Field(primary_key=True, sa_type=Big)
    path: str  # below the root of the cluster's ledgers
    version: int = Field(sa_type=Big)
    czxid: int = Field(sa_type=Big)
    data: bytes
    journaled_us: int = Field(sa_type=Big)
    deleted_us: int | None = Field(default=None, sa_type=Big)
    restoration: str | None = None
    stored_data: str | None = None


class ClusterRemovalRow(SQLModel, table=True):
    """Finding of a plan of a Pulsar cluster that an apply removes for good, as it was right before."""

    __tablename__ = "cluster_removal"
    run_id: str = Field(primary_key=True)  # run of the apply
    number: int = Field(primary_key=True, sa_type=Big)  # of the finding
    kind: str
    path: str = Field(sa_type=Text)  # of a managed ledger, or key of an offload
    bucket: str  # "" for a managed ledger
    parts: list[dict[str, Any]] = Field(sa_type=JSON)  # objects, uploads, or the znode
    journaled_us: int = Field(sa_type=Big)
    removed_us: int | None = Field(default=None, sa_type=Big)


class FindingFateRow(SQLModel, table=True):
    """Decision of an apply about a finding of its plan, and the fate of the finding."""

    __tablename__ = "finding_fate"
    run_id: str = Field(primary_key=True)  # run of the apply
    page: int = Field(primary_key=True, sa_type=Big)
    number: int = Field(primary_key=True, sa_type=Big)  # of the finding
    fate: str | None = None  # `FindingFate`; null: decided to remove it, and nothing more is known
    reason: str = Field(default="", sa_type=Text)
    objects: int = Field(default=0, sa_type=Big)  # confirmed as deleted
    size_bytes: int = Field(default=0, sa_type=Big)


class AuditRow(SQLModel, table=True):
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
    run_id: str | None = None  # batch of the act
    first_ledger: int | None = Field(default=None, sa_type=Big)  # inclusive; null: the act is not about ledgers
    last_ledger: int | None = Field(default=None, sa_type=Big)
    detail: dict[str, Any] = Field(default_factory=dict, sa_type=JSON)


class DelayedIndexRow(SQLModel, table=True):
    """Position up to which the index buckets cover a topic's log, and the claim on their list."""

    __tablename__ = "delayed_index"
    topic_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    version: int = Field(default=0, sa_type=Big)  # list version, for compare-and-set
    sealed_ledger: int = Field(default=-1, sa_type=Big)  # last entry in an index bucket
    sealed_entry: int = Field(default=-1, sa_type=Big)
    unsealed: int = Field(default=0, sa_type=Big)  # number of later entries with a delivery time
    changed_us: int | None = Field(default=None, sa_type=Big)  # registration time of the newest unsealed entry
    claim_workflow: str | None = None
    claim_run: str | None = None
    claim_until_us: int | None = Field(default=None, sa_type=Big)


class DelayedBucketRow(SQLModel, table=True):
    """Index bucket of delayed messages, with the ledger of its snapshot. Delivery times are milliseconds since 1970."""

    __tablename__ = "delayed_bucket"
    __table_args__ = (Index("delayed_bucket_by_topic", "topic_id", "first_ledger", "first_entry"),)
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    topic_id: int = Field(sa_type=Big)
    first_ledger: int = Field(sa_type=Big)  # first entry of the range, inclusive
    first_entry: int = Field(sa_type=Big)
    last_ledger: int = Field(sa_type=Big)
    last_entry: int = Field(sa_type=Big)
    messages: int = Field(sa_type=Big)
    segments: int = Field(sa_type=Big)
    first_ms: int = Field(sa_type=Big)
    last_ms: int = Field(sa_type=Big)


metadata = SQLModel.metadata
