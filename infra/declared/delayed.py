"""The tables of delayed messages as they are declared; see `models`."""

from sqlalchemy import Index
from sqlmodel import Field, SQLModel

from infra.declared.transactions import Big


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
