"""The tables of the record log as they are declared; see `models`."""

from typing import Any

from sqlalchemy import JSON, Index, Integer, Text, text
from sqlmodel import Field, SQLModel

from infra.declared.transactions import Big


class RecordOutboxRow(SQLModel, table=True):
    """A change of a record that is in no block yet, inserted by a trigger; see `infra.catalog.records.outbox_rows`."""

    __tablename__ = "record_outbox"
    __table_args__ = (
        Index(
            "record_outbox_by_record",
            "kind",
            "id",
            sqlite_where=text("kind IN ('deletion', 'ledger', 'topic')"),
            postgresql_where=text("kind IN ('deletion', 'ledger', 'topic')"),
        ),  # what is asked for by id; an append's rows are in no index but the key's
        {"sqlite_autoincrement": True},
    )
    version: int | None = Field(default=None, primary_key=True, sa_type=Big)  # never reset
    kind: str
    id: int = Field(sa_type=Big)
    sub: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    at_us: int = Field(sa_type=Big)


class TombstoneRow(SQLModel, table=True):
    """What a durable delete left of a topic or of a ledger."""

    __tablename__ = "tombstone"
    __table_args__ = (Index("tombstone_by_topic", "topic_id"),)
    kind: str = Field(primary_key=True)
    id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    topic_id: int | None = Field(default=None, sa_type=Big)  # null: not known, as after a rebuild
    list_id: int | None = Field(default=None, sa_type=Big)  # of a ledger
    component: str | None = None  # of a ledger
    generation: int = Field(sa_type=Big)
    epoch: int = Field(sa_type=Big)
    at_us: int = Field(sa_type=Big)  # of its last update; never below what it was
    raid: str | None = None  # the raid whose candidate it is


class RecordStagedRow(SQLModel, table=True):
    """A block of a page of a flush: it is stored, and the manifest that ends the flush is to name it."""

    __tablename__ = "record_staged"
    block_id: str = Field(primary_key=True)
    manifest: int = Field(sa_type=Big)  # that of its page
    oldest_us: int | None = Field(default=None, sa_type=Big)  # of the changes that were in no block before that page
    facts: str = Field(sa_type=Text)  # JSON: what a manifest says of it


class RecordLogRow(SQLModel, table=True):
    """The one row that says how the catalog stands to its record log."""

    __tablename__ = "record_log"
    id: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    manifest: int = Field(sa_type=Big)  # number of the newest one that is known to be put; 0: none
    stamp: str  # of that one
    pending: dict[str, Any] = Field(default_factory=dict, sa_type=JSON)  # stamps begun since, each with its time in us
    state: str  # READY or ADOPTING
    rebuild: str | None = None  # the rebuild that loads it; of a replica, the name under which it was seeded
    ledger_ceiling: int = Field(sa_type=Big)  # ids below it may be given out
    topic_ceiling: int = Field(sa_type=Big)
    transaction_ceiling: int = Field(sa_type=Big)
    claim_workflow: str | None = None
    claim_run: str | None = None
    claim_until_us: int | None = Field(default=None, sa_type=Big)
    flushed_us: int | None = Field(default=None, sa_type=Big)  # when a manifest was last settled


class AdoptionRow(SQLModel, table=True):
    """A ledger of which storage holds something else than the rebuilt catalog says, and what became of that."""

    __tablename__ = "adoption"
    __table_args__ = (Index("adoption_by_topic", "topic_id", "ledger_id"),)
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    topic_id: int = Field(sa_type=Big)
    shard: int = Field(sa_type=Integer)
    standing: str
    facts: str = Field(sa_type=Text)  # JSON: what was found
    adoptee: str | None = None  # null: its topic is not settled
    segments: int = Field(default=0, sa_type=Big)  # adopted
