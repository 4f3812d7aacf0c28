"""Tables of transactions."""

from sqlalchemy import BigInteger, Index, Integer, LargeBinary, Text, text
from sqlmodel import Field, SQLModel

from logstore.trace_id import current_trace_id

Big = BigInteger().with_variant(Integer, "sqlite")  # SQLite generates ids only for a key of type INTEGER


class TransactionCoordinatorRow(SQLModel, table=True):
    __tablename__ = "transaction_coordinator"
    tc_id: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    next_sequence: int = Field(default=0, sa_type=Big)


class TransactionRow(SQLModel, table=True):
    """Transaction. Only its state decides whether its messages are visible."""

    __tablename__ = "transaction"
    __table_args__ = (
        Index(
            "transaction_unfinished",
            "state",
            "tc_id",
            "deadline_us",
            sqlite_where=text("finished_us IS NULL"),
            postgresql_where=text("finished_us IS NULL"),
        ),
        Index("transaction_by_end", "finished_us"),
    )
    tc_id: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    sequence: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    state: str
    created_us: int = Field(sa_type=Big)
    deadline_us: int = Field(sa_type=Big)
    decided_us: int | None = Field(default=None, sa_type=Big)
    finished_us: int | None = Field(default=None, sa_type=Big)
    timed_out: int = Field(default=0, sa_type=Integer)  # 1: aborted because its deadline passed
    claim_workflow: str | None = None
    claim_run: str | None = None
    claim_until_us: int | None = Field(default=None, sa_type=Big)
    attempts: int = 0  # number of failed broadcasts
    last_error: str | None = Field(default=None, sa_type=Text)
    trace_id: str | None = Field(default=None, sa_column_kwargs={"default": current_trace_id})


class TransactionParticipantRow(SQLModel, table=True):
    """Participant of a transaction: a topic with messages, or a subscription with acknowledgements."""

    __tablename__ = "transaction_participant"
    __table_args__ = (Index("transaction_participant_by_topic", "topic_id", "subscription"),)
    tc_id: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    sequence: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    topic_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    subscription: str = Field(primary_key=True)  # empty: the topic, for its messages
    topic: str
    positions: bytes = Field(default=b"", sa_type=LargeBinary)  # entries that the transaction holds, packed
    settled_us: int | None = Field(default=None, sa_type=Big)  # null: not settled
    how: str | None = None  # MARKED, GONE or RESOLVED
    last_error: str | None = Field(default=None, sa_type=Text)


class BufferRangeRow(SQLModel, table=True):
    """Consecutive entries of one transaction in a ledger. The row stays until the ledger's topic is told."""

    __tablename__ = "buffer_range"
    __table_args__ = (
        Index("buffer_range_by_topic", "topic_id"),
        Index("buffer_range_by_transaction", "tc_id", "sequence"),
    )
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    first_entry: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    entries: int = Field(sa_type=Big)
    topic_id: int = Field(sa_type=Big)
    tc_id: int = Field(sa_type=Integer)
    sequence: int = Field(sa_type=Big)


class BufferHiddenRow(SQLModel, table=True):
    """Hidden entries of a ledger: transaction markers, and messages of aborted transactions."""

    __tablename__ = "buffer_hidden"
    __table_args__ = (Index("buffer_hidden_by_topic", "topic_id", "ledger_id"),)
    ledger_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    topic_id: int = Field(sa_type=Big)
    entries: bytes = Field(sa_type=LargeBinary)  # a roaring bitmap


class TransactionSnapshotRow(SQLModel, table=True):
    __tablename__ = "transaction_snapshot"
    __table_args__ = (
        Index("transaction_snapshot_by_ledger", "ledger_id"),
        Index("transaction_snapshot_by_due", "due_us"),
    )
    topic_id: int = Field(primary_key=True, sa_type=Big, sa_column_kwargs={"autoincrement": False})
    ledger_id: int | None = Field(default=None, sa_type=Big)
    read_ledger: int = Field(default=-1, sa_type=Big)  # last entry that the snapshot covers
    read_entry: int = Field(default=-1, sa_type=Big)
    changes: int = Field(default=0, sa_type=Big)  # settled transactions since the newest snapshot began
    due_us: int | None = Field(default=None, sa_type=Big)  # null: no change since the last snapshot
