"""Tables of the record log."""

from typing import Any

from sqlalchemy import JSON, Index, Integer, Text, text
from sqlmodel import Field, SQLModel

from logstore.catalog.declared.transaction_tables import Big


class RecordOutboxRow(SQLModel, table=True):
    """Change of a record that is in no block yet. Triggers on the catalog's tables insert most of these rows."""

    __tablename__ = "record_outbox"
    __table_args__ = (
        Index(
            "record_outbox_by_record",
            "kind",
            "id",
            sqlite_where=text("kind IN ('deletion', 'ledger', 'topic')"),
            postgresql_where=text("kind IN ('deletion', 'ledger', 'topic')"),
        ),  # only for kinds that are looked up by id, so that appends maintain no further index
        {"sqlite_autoincrement": True},
    )
    version: int | None = Field(default=None, primary_key=True, sa_type=Big)  # never reset
    kind: str
    id: int = Field(sa_type=Big)
    sub: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    at_us: int = Field(sa_type=Big)


class TombstoneRow(SQLModel, table=True):
    """Tombstone of a topic or a ledger that was deleted durably."""

    __tablename__ = "tombstone"
    __table_args__ = (Index("tombstone_by_topic", "topic_id"),)
    kind: str = Field(primary_key=True)
    id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    topic_id: int | None = Field(default=None, sa_type=Big)  # null: unknown, for example after a rebuild
    list_id: int | None = Field(default=None, sa_type=Big)  # list of a ledger; null for a topic
    component: str | None = None  # component of a ledger; null for a topic
    generation: int = Field(sa_type=Big)
    epoch: int = Field(sa_type=Big)
    at_us: int = Field(sa_type=Big)  # last update; never decreases
    raid: str | None = None  # raid that has marked the tombstone


class RecordStagedRow(SQLModel, table=True):
    """Staged block: a stored block of an unfinished flush."""

    __tablename__ = "record_staged"
    block_id: str = Field(primary_key=True)
    manifest: int = Field(sa_type=Big)  # number of the manifest that was stored after the block
    oldest_us: int | None = Field(default=None, sa_type=Big)  # oldest change that was in no block before that manifest
    facts: str = Field(sa_type=Text)  # description of the block for the manifest, as JSON


class RecordLogRow(SQLModel, table=True):
    """Single row with the state of the catalog's record log."""

    __tablename__ = "record_log"
    id: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    manifest: int = Field(sa_type=Big)  # number of the newest settled manifest; 0: none
    stamp: str  # stamp of the newest settled manifest
    pending: dict[str, Any] = Field(default_factory=dict, sa_type=JSON)  # time of each pending stamp in microseconds
    state: str  # READY, ADOPTING or REPLICA
    rebuild: str | None = None  # id of the unfinished rebuild; in a replica database, the name of the replica
    ledger_ceiling: int = Field(sa_type=Big)  # only lower ids may be given out
    topic_ceiling: int = Field(sa_type=Big)
    transaction_ceiling: int = Field(sa_type=Big)
    claim_workflow: str | None = None
    claim_run: str | None = None
    claim_until_us: int | None = Field(default=None, sa_type=Big)
    flushed_us: int | None = Field(default=None, sa_type=Big)  # when a manifest was last settled


class AdoptionRow(SQLModel, table=True):
    """Ledger whose content in storage differs from the rebuilt catalog, and the outcome of its adoption."""

    __tablename__ = "adoption"
    __table_args__ = (Index("adoption_by_topic", "topic_id", "ledger_id"),)
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    topic_id: int = Field(sa_type=Big)
    shard: int = Field(sa_type=Integer)
    standing: str
    facts: str = Field(sa_type=Text)  # `LedgerDiscrepancy` as JSON
    adoptee: str | None = None  # name of the `AdoptionOutcome`; null: the topic is not settled
    segments: int = Field(default=0, sa_type=Big)  # number of adopted segments
