"""Group commit in SQL: many small writes in one transaction of set-based statements.

1. All rows that the writes need are locked in the order topics, ledgers, producers, transactions, cursors. Rows of
   one kind are locked in the order of their keys.
2. Each write is accepted or refused under these locks.
3. All accepted writes are written. Each refused write gets an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

from pyroaring import BitMap
from sqlalchemy import Connection, select

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_epoch
from logstore.catalog.cursors.cursor_rows import apply_acknowledgements
from logstore.catalog.delayed.delayed_index import add_to_unsealed_counts
from logstore.catalog.deletion.intent_rows import reopen_intents_of_late_uploads
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.catalog.engine.dialect_sql import BIG, BulkStatement, build_bulk_parameter, dataclass_from_row
from logstore.catalog.log.ledger_rows import GROWING_COLUMNS, insert_segments
from logstore.catalog.log.producer_sequence_rows import ProducerKey, lock_producer_sequences, store_producer_sequences
from logstore.catalog.log.topics import add_share_lock
from logstore.catalog.transactions.buffer_rows import hide_entries, insert_buffer_ranges
from logstore.catalog.transactions.participant_rows import insert_participants
from logstore.catalog.transactions.transaction_decisions import begin_transactions, end_transactions
from logstore.catalog.transactions.transaction_rows import lock_transactions
from logstore.errors import (
    LedgerFenced,
    SextonError,
    TransactionNotOpen,
)
from logstore.log.entries import HighestSequenceIds
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.log import (
    AcknowledgeWrite,
    BeginTransactionWrite,
    EndTransactionWrite,
    GroupCommitResult,
    GroupCommitWrite,
    LedgerAppendState,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    TopicState,
)
from logstore.positions import LedgerId
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState

W = TypeVar("W", bound=GroupCommitWrite)


class GroupCommits(CatalogAdapter):
    @in_write_transaction("catalog.group_commit")
    def commit_writes(self, connection: Connection, writes: Sequence[GroupCommitWrite]) -> list[GroupCommitResult]:
        """Commit all writes in one transaction. Return a result or an error for each write, in order.

        A refused write does not affect the other writes. The error of a refused write is one of:

        - `LedgerFenced`, `ProducerFenced`, `UnknownObject`, `InvalidInput`, `StaleCatalog` or `TransactionNotOpen`.
        - `AlreadyExists`: the segment number is taken.
        - `SnapshotNeeded`: the acknowledgement lacks the cursor's snapshot.
        - `PreconditionFailed`: the topic is not ACTIVE.
        - `TransactionEnded`: the transaction has the opposite decision, or is past its deadline.
        - `AcknowledgementHeld`: another open transaction has acknowledged an entry, or a write with `txn` names a
          position that is already acknowledged.
        - `AcknowledgementStale`: entries were given back after `up_to` was read.

        If the method raises any error except `OutcomeUnknown`, no write happened.
        """
        registrations, ends = (
            _writes_of_kind(writes, RegisterSegmentWrite),
            _writes_of_kind(writes, EndTransactionWrite),
        )
        locked = _lock_registration_rows(connection, registrations) if registrations else None
        transactions = lock_transactions(connection, _collect_transaction_ids(writes))
        states = {txn: TransactionState(row.state) for txn, row in transactions.items()}
        begins, acknowledgements = (
            _writes_of_kind(writes, BeginTransactionWrite),
            _writes_of_kind(writes, AcknowledgeWrite),
        )
        cursors = {(acknowledgement.topic_id, acknowledgement.subscription) for acknowledgement in acknowledgements}
        now_us = self._db.now_us(connection) if begins or ends else 0  # read under the locks; appends need no clock
        results_by_kind: dict[type[GroupCommitWrite], Iterator[GroupCommitResult]] = {
            RegisterSegmentWrite: iter(_register_segments(connection, locked, registrations, states) if locked else ()),
            BeginTransactionWrite: iter(begin_transactions(connection, begins, now_us=now_us)),
            EndTransactionWrite: iter(
                end_transactions(connection, ends, transactions, states, cursors_to_lock_next=cursors, now_us=now_us)
            ),
            AcknowledgeWrite: iter(apply_acknowledgements(connection, acknowledgements, states)),
        }
        return [next(results_by_kind[type(write)]) for write in writes]


def _writes_of_kind(writes: Sequence[GroupCommitWrite], kind: type[W]) -> list[W]:
    return [write for write in writes if isinstance(write, kind)]


def _collect_transaction_ids(writes: Sequence[GroupCommitWrite]) -> set[TransactionId]:
    """Return the transactions of all writes. The caller locks them in one statement, which prevents deadlocks."""
    txns: set[TransactionId] = set()
    for write in writes:
        match write:
            case RegisterSegmentWrite():
                txns |= {part.txn for part in write.transactions}
            case AcknowledgeWrite(txn=TransactionId() as txn) | EndTransactionWrite(txn=txn):
                txns.add(txn)
    return txns


@dataclass(slots=True, kw_only=True)
class _LockedLedger:
    topic_id: int
    state: str
    entries: int
    size_bytes: int
    segments: int
    last_segment: int


@dataclass(slots=True, kw_only=True)
class _LockedRowsAndChanges:
    """Locked rows for the registrations of one commit, and changes of these rows. Only ACTIVE topics are locked."""

    epoch: int
    topics: dict[int, str]
    names: dict[int, str]
    ledgers: dict[int, _LockedLedger]
    sequences: dict[ProducerKey, HighestSequenceIds]
    segments: list[tuple[int, int, int, int, int, str | None, int]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    delayed: dict[int, int] = field(default_factory=dict)  # entries with a delivery time, by topic
    advanced: dict[ProducerKey, HighestSequenceIds] = field(default_factory=dict)


def _register_segments(
    connection: Connection,
    locked: _LockedRowsAndChanges,
    writes: Sequence[RegisterSegmentWrite],
    transactions: Mapping[TransactionId, TransactionState],
) -> list[GroupCommitResult]:
    """Register segments in the order of `writes`. A refused write changes neither ledgers nor producers' sequences."""
    results = [_decide_registration(locked, write, transactions) for write in writes]
    if locked.segments:
        rows = [
            (ledger_id, *(getattr(locked.ledgers[ledger_id], name) for name in GROWING_COLUMNS))
            for ledger_id in locked.touched
        ]
        insert_segments(connection, locked.segments, rows)
    registered = [
        (write, result)
        for write, result in zip(writes, results, strict=True)
        if isinstance(result, RegisterSegmentResult)
    ]
    _add_to_buffers(
        connection,
        locked,
        [(write, result.first_entry) for write, result in registered if write.transactions or write.markers],
    )
    store_producer_sequences(connection, locked.advanced)
    if locked.delayed:
        add_to_unsealed_counts(connection, locked.delayed)
    # An OPEN ledger has its primary copy, so phase two has not searched storage for this ledger. An upload to any
    # other ledger may have come after that search.
    open_ledgers = {ledger_id for ledger_id, ledger in locked.ledgers.items() if ledger.state == LedgerState.OPEN.value}
    late_ledgers = {
        write.ledger_id for write in writes if write.epoch == locked.epoch and write.ledger_id not in open_ledgers
    }
    if late_ledgers:
        reopen_intents_of_late_uploads(connection, late_ledgers, epoch=locked.epoch)
    return results


def _lock_registration_rows(connection: Connection, writes: Sequence[RegisterSegmentWrite]) -> _LockedRowsAndChanges:
    """Lock topics, ledgers, then producers' sequences, in the order of keys. So two group commits cannot deadlock."""
    locks = _compile_registration_locks(connection.dialect.name)
    topic_ids = {write.topic_id for write in writes}
    topics = locks.topics.execute(connection, {(topic_id,) for topic_id in topic_ids}).all()
    states = {row.topic_id: row.state for row in topics}
    ledgers = locks.ledgers.execute(connection, {(write.ledger_id,) for write in writes}).all()
    pairs = {(write.topic_id, part.producer) for write in writes for part in write.producers}
    sequences = lock_producer_sequences(connection, pairs)
    topic_columns, inactive = t.topic.c, topic_ids - states.keys()
    if inactive:
        rows = connection.execute(
            select(topic_columns.topic_id, topic_columns.state).where(topic_columns.topic_id.in_(inactive))
        )
        states |= {row.topic_id: row.state for row in rows}
    return _LockedRowsAndChanges(
        # without the catalog's row, `read_epoch` raises
        epoch=(topics and topics[0].epoch) or read_epoch(connection),
        topics=states,
        names={row.topic_id: row.name for row in topics},
        ledgers={row.ledger_id: dataclass_from_row(_LockedLedger, row) for row in ledgers},
        sequences=sequences,
    )


def _add_to_buffers(
    connection: Connection, locked: _LockedRowsAndChanges, writes: Sequence[tuple[RegisterSegmentWrite, int]]
) -> None:
    if not writes:
        return
    ranges, hidden, participants = [], dict[LedgerId, BitMap](), set()
    for write, first_entry in writes:
        for part in write.transactions:
            row = (
                write.ledger_id,
                first_entry + part.offset,
                part.entries,
                write.topic_id,
                part.txn.tc_id,
                part.txn.sequence,
            )
            ranges.append(row)
            participants.add((part.txn, Participant(write.topic_id), locked.names[write.topic_id]))
        if write.markers:
            bits = BitMap(first_entry + offset for offset in write.markers)
            hidden[write.ledger_id] = hidden.get(write.ledger_id, BitMap()) | bits
    insert_participants(connection, participants)
    insert_buffer_ranges(connection, ranges)
    hide_entries(connection, {write.ledger_id: write.topic_id for write, _ in writes}, hidden)


def _decide_registration(
    locked: _LockedRowsAndChanges, write: RegisterSegmentWrite, transactions: Mapping[TransactionId, TransactionState]
) -> GroupCommitResult:
    ledger = locked.ledgers.get(write.ledger_id)
    keys = {(write.topic_id, advance.producer) for advance in write.producers}
    refusal = write.refusal(
        catalog_epoch=locked.epoch,
        topic_state=locked.topics.get(write.topic_id),
        ledger=LedgerAppendState(ledger.topic_id, ledger.state, ledger.last_segment) if ledger else None,
        sequences={key[1]: locked.sequences[key] for key in keys & locked.sequences.keys()},
    ) or _refuse_unless_transactions_open(write, transactions)
    if refusal or ledger is None:  # an unlisted ledger is refused
        return refusal or LedgerFenced(f"ledger {write.ledger_id}: expected one in a list")
    first_entry = ledger.entries
    ledger.entries += write.entries
    ledger.size_bytes += write.size_bytes
    ledger.segments += 1
    ledger.last_segment = write.number
    locked.touched.add(write.ledger_id)
    locked.segments.append(
        (write.ledger_id, write.number, first_entry, write.entries, write.size_bytes, write.sha256, write.delayed)
    )
    if write.delayed:
        locked.delayed[write.topic_id] = locked.delayed.get(write.topic_id, 0) + write.delayed
    for part in write.producers:
        key = (write.topic_id, part.producer)
        sequence = locked.sequences.get(key, HighestSequenceIds())
        locked.sequences[key] = locked.advanced[key] = sequence.advance(part.last, part.txn)
    return RegisterSegmentResult(
        first_entry=first_entry, ledger_entries=ledger.entries, ledger_size_bytes=ledger.size_bytes
    )


def _refuse_unless_transactions_open(
    write: RegisterSegmentWrite, transactions: Mapping[TransactionId, TransactionState]
) -> SextonError | None:
    for part in write.transactions:
        state = transactions.get(part.txn)
        if state is None:
            return TransactionNotOpen(str(part.txn), doing="append", state="no such transaction")
        if state is not TransactionState.OPEN:
            return TransactionNotOpen(str(part.txn), doing="append", state=state.value)
    return None


class _RegistrationLockStatements(NamedTuple):
    topics: BulkStatement  # share-locks ACTIVE topics, and reads the catalog's epoch
    ledgers: BulkStatement  # locks listed ledgers, and reads the topic of each ledger's list


@cache
def _compile_registration_locks(dialect: str) -> _RegistrationLockStatements:
    topics, ledgers = (
        build_bulk_parameter(dialect, "asked", {"topic_id": BIG}),
        build_bulk_parameter(dialect, "asked", {"ledger_id": BIG}),
    )
    epoch = select(t.catalog.c.epoch).scalar_subquery()
    of_topics = select(t.topic.c.topic_id, t.topic.c.name, t.topic.c.state, epoch.label("epoch"))
    active = (t.topic.c.topic_id.in_(select(topics.source.c.topic_id)), t.topic.c.state == TopicState.ACTIVE.value)
    listed = (t.ledger.c.ledger_id.in_(select(ledgers.source.c.ledger_id)), t.ledger.c.place.is_not(None))
    columns = (
        t.ledger.c.ledger_id,
        t.ledger.c.state,
        *(t.ledger.c[name] for name in GROWING_COLUMNS),
        t.ledger_list.c.topic_id,
    )
    of_ledgers = select(*columns).join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id).where(*listed)
    return _RegistrationLockStatements(
        topics=BulkStatement(sql=add_share_lock(of_topics.where(*active).order_by(t.topic.c.topic_id)), rows=topics),
        ledgers=BulkStatement(sql=of_ledgers.order_by(t.ledger.c.ledger_id).with_for_update(of=t.ledger), rows=ledgers),
    )
