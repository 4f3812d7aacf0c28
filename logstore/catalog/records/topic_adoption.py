"""Adoption, in one transaction, of all ledgers of a topic that wait for adoption (*staged* ledgers).

This module is the sole writer of `adoption`: staged ledgers, and the outcomes of adoption. The topic is not locked,
because no other process writes to the catalog. A topic's transactions are derived from its adopted segments and
transaction markers.
"""

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap
from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from logstore.catalog import tables as t
from logstore.catalog.deletion.topic_deletion import remove_topic_but_objects
from logstore.catalog.engine.dialect_sql import (
    BIG,
    TEXT,
    BulkStatement,
    build_bulk_parameter,
    build_insert_if_absent,
    is_one_of,
)
from logstore.catalog.log.ledger_rows import (
    GROWING_COLUMNS,
    add_newborns_to_list,
    ensure_ledger_list,
    insert_segments,
    insert_stored_ledgers,
)
from logstore.catalog.log.producer_sequence_rows import read_producer_sequences, store_producer_sequences
from logstore.catalog.log.topics import insert_topic_found_in_storage
from logstore.catalog.transactions.buffer_rows import hide_entries, insert_buffer_ranges, remove_entries_from_buffers
from logstore.catalog.transactions.participant_rows import insert_participants, replace_held_entries
from logstore.catalog.transactions.transaction_decisions import apply_decisions_to_cursors, store_transaction_decisions
from logstore.catalog.transactions.transaction_rows import (
    insert_open_transactions,
    lock_transactions,
    read_transaction_states,
)
from logstore.cursors.cursor_state import unpack_acknowledged
from logstore.log.entries import HighestSequenceIds
from logstore.log.ledgers import Component, LedgerState
from logstore.ports.catalog.log import TopicState
from logstore.ports.catalog.records import AdoptionOutcome, LedgerDiscrepancy, StorageDiscrepancy
from logstore.ports.catalog.transactions import StoredParticipant
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption_rule import (
    AdoptedSegment,
    LedgerWithUploads,
    TopicAtFlush,
    UploadedMarker,
    choose_adopted_uploads,
    find_last_attempt_by_append,
)
from logstore.records.record_kinds import RecordKind
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState

if TYPE_CHECKING:
    from pydantic import TypeAdapter


_L, _T = t.ledger.c, t.tombstone.c
_INCOMPLETE = {StorageDiscrepancy.ABSENT, StorageDiscrepancy.ENDED, StorageDiscrepancy.SHORT}


@dataclass(frozen=True, slots=True)
class _StatedNameAndLastAttempts:
    name: str | None  # topic name in the statements of ledgers with uploads; `None`: no ledger has uploads
    repeated: Mapping[str, int]


@dataclass(slots=True)
class _TopicInAdoption:
    topic_id: TopicId
    name: str
    list_id: int
    repeated: Mapping[str, int]
    rows_epoch: int  # epoch of the loaded rows
    marked_txns: set[TransactionId] = field(default_factory=set)  # transactions with a marker in adopted segments
    incomplete_ids: set[LedgerId] = field(default_factory=set)  # ledgers that lack some or all objects
    segments_by_ledger: dict[LedgerId, int] = field(default_factory=dict)  # number of adopted segments


def adopt_staged_ledgers(connection: Connection, topic_id: TopicId, *, rows_epoch: int, now_us: int) -> None:
    summary = _find_stated_name_and_last_attempts(connection, topic_id)
    if summary is None:
        return
    topic, name = None, _find_name_or_restore_topic(connection, topic_id, summary.name, now_us)
    if name is not None:
        list_id = ensure_ledger_list(connection, topic_id, Component.MANAGED_LEDGER, {})
        topic = _TopicInAdoption(topic_id, name, list_id, summary.repeated, rows_epoch)
    for ledgers in iterate_staged_ledgers(connection, topic_id):
        _adopt_page(connection, topic, ledgers, now_us)
    if topic is not None:
        store_outcomes_and_clear_staged_data(
            connection, _decide_outcomes_for_missing_objects(connection, topic), topic.segments_by_ledger
        )


def _find_stated_name_and_last_attempts(connection: Connection, topic_id: TopicId) -> _StatedNameAndLastAttempts | None:
    names: set[str] = set()
    last_repeats: dict[str, int] = {}
    is_empty = True
    for ledgers in iterate_staged_ledgers(connection, topic_id):
        is_empty = False
        names |= {ledger.statement.owner.topic for ledger in ledgers if ledger.statement and ledger.uploads}
        last_repeats |= find_last_attempt_by_append(
            (upload for ledger in ledgers for upload in ledger.uploads), last_repeats
        )
    return None if is_empty else _StatedNameAndLastAttempts(min(names, default=None), last_repeats)


def _adopt_page(
    connection: Connection, topic: _TopicInAdoption | None, ledgers: Sequence[LedgerDiscrepancy], now_us: int
) -> None:
    outcome_by_ledger = dict.fromkeys((ledger.ledger_id for ledger in ledgers), AdoptionOutcome.UNCHANGED)
    outcome_by_ledger |= {
        ledger.ledger_id: AdoptionOutcome.DETACHED
        for ledger in ledgers
        if ledger.standing is StorageDiscrepancy.STRANGER
    }
    if topic is None:
        store_outcomes_and_clear_staged_data(connection, outcome_by_ledger, {})
        return
    outcome_by_ledger |= _adopt_uploads(connection, topic, ledgers, now_us)
    incomplete_ids = topic.incomplete_ids
    incomplete_ids |= {ledger.ledger_id for ledger in ledgers if ledger.standing in _INCOMPLETE}
    complete_outcomes = {
        ledger_id: outcome for ledger_id, outcome in outcome_by_ledger.items() if ledger_id not in incomplete_ids
    }
    store_outcomes_and_clear_staged_data(connection, complete_outcomes, topic.segments_by_ledger)
    topic.segments_by_ledger = {
        ledger_id: segments for ledger_id, segments in topic.segments_by_ledger.items() if ledger_id in incomplete_ids
    }


def _find_name_or_restore_topic(
    connection: Connection, topic_id: TopicId, stated_name: str | None, now_us: int
) -> str | None:
    """Return the topic's name, or `None` if the topic was deleted or is DELETING. Insert the topic if it was lost.

    If two topics have the same name, the topic with the lower id was deleted before the other topic was created.
    """
    row = connection.execute(select(t.topic).where(t.topic.c.topic_id == topic_id)).first()
    if row is not None:
        return str(row.name) if row.state == TopicState.ACTIVE.value else None
    is_buried = exists().where(_T.kind == RecordKind.TOPIC.value, _T.id == topic_id)
    if stated_name is None or connection.execute(select(is_buried)).scalar():
        return None
    namesake = connection.execute(select(t.topic.c.topic_id).where(t.topic.c.name == stated_name)).scalar()
    if namesake is not None and namesake > topic_id:
        return None
    if namesake is not None:
        revived_ledger_ids = remove_topic_but_objects(connection, TopicId(namesake))
        store_outcomes_of_unstaged_ledgers(
            connection, dict.fromkeys(revived_ledger_ids, TopicId(namesake)), AdoptionOutcome.REVIVED
        )
    insert_topic_found_in_storage(connection, topic_id, stated_name, now_us=now_us)
    return stated_name


def _adopt_uploads(
    connection: Connection, topic: _TopicInAdoption, ledgers: Sequence[LedgerDiscrepancy], now_us: int
) -> dict[LedgerId, AdoptionOutcome]:
    with_uploads = [ledger for ledger in ledgers if ledger.uploads]
    query = select(t.ledger).where(is_one_of(connection, _L.ledger_id, [ledger.ledger_id for ledger in with_uploads]))
    row_by_ledger = {row.ledger_id: row for row in connection.execute(query)}
    ledgers_with_uploads = [
        _build_ledger_with_uploads(ledger, row_by_ledger.get(ledger.ledger_id)) for ledger in with_uploads
    ]
    segments = choose_adopted_uploads(
        ledgers_with_uploads, _read_topic_at_flush(connection, topic, ledgers_with_uploads)
    )
    segments_by_ledger: dict[LedgerId, list[AdoptedSegment]] = {}
    for segment in segments:
        segments_by_ledger.setdefault(segment.ledger_id, []).append(segment)
    topic.segments_by_ledger |= {
        ledger_id: len(ledger_segments) for ledger_id, ledger_segments in segments_by_ledger.items()
    }
    topic.marked_txns |= {marker.txn for segment in segments for marker in segment.upload.markers}
    unknown_ids = segments_by_ledger.keys() - row_by_ledger.keys()
    insert_stored_ledgers(
        connection,
        topic.list_id,
        [ledger.statement for ledger in ledgers if ledger.statement and ledger.ledger_id in unknown_ids],
    )
    newborn_ids = [
        ledger_id
        for ledger_id in segments_by_ledger
        if ledger_id in row_by_ledger and row_by_ledger[ledger_id].state == LedgerState.CREATING.value
    ]
    add_newborns_to_list(connection, topic.list_id, newborn_ids)
    _store_adopted_segments_and_sequences(connection, topic, segments, row_by_ledger)
    adopt_transactions(connection, topic.topic_id, topic.name, segments, now_us=now_us)
    outcome_by_ledger: dict[LedgerId, AdoptionOutcome] = {}
    for ledger_id, ledger_segments in segments_by_ledger.items():
        row = row_by_ledger.get(ledger_id)
        if not _are_contiguous(ledger_segments, first_entry=0 if row is None else row.entries):
            outcome_by_ledger[ledger_id] = AdoptionOutcome.MISSING
        else:
            outcome_by_ledger[ledger_id] = AdoptionOutcome.ADOPTED if row is None else AdoptionOutcome.EXTENDED
    return outcome_by_ledger


def _are_contiguous(segments: Sequence[AdoptedSegment], *, first_entry: int) -> bool:
    """Return whether the segments have every entry from `first_entry` on. A gap means lost data."""
    for segment in sorted(segments, key=lambda segment: segment.first_entry):
        if segment.first_entry > first_entry:
            return False
        first_entry = segment.first_entry + segment.upload.entries
    return True


def _build_ledger_with_uploads(ledger: LedgerDiscrepancy, row: Any) -> LedgerWithUploads:  # noqa: ANN401 - a row
    if row is None:
        return LedgerWithUploads(ledger_id=ledger.ledger_id, uploads=ledger.uploads)
    return LedgerWithUploads(
        ledger_id=ledger.ledger_id, last_segment=row.last_segment, entries=row.entries, uploads=ledger.uploads
    )


def _read_topic_at_flush(
    connection: Connection, topic: _TopicInAdoption, ledgers_with_uploads: Sequence[LedgerWithUploads]
) -> TopicAtFlush:
    uploads = [upload for ledger in ledgers_with_uploads for upload in ledger.uploads]
    producers = {advance.producer for upload in uploads for advance in upload.producers}
    txns = {run.txn for upload in uploads for run in upload.transactions}
    return TopicAtFlush(
        epoch=topic.rows_epoch,
        sequences=read_producer_sequences(connection, topic.topic_id, producers) if producers else {},
        decided_transactions=lock_decided_before_flush(connection, txns) | topic.marked_txns,
        last_attempt_by_append=topic.repeated,
    )


def _store_adopted_segments_and_sequences(
    connection: Connection,
    topic: _TopicInAdoption,
    segments: Sequence[AdoptedSegment],
    row_by_ledger: Mapping[int, Any],
) -> None:
    if not segments:
        return
    totals_by_ledger: dict[int, list[int]] = {}
    segment_rows = []
    for segment in segments:
        upload, ledger_id = segment.upload, segment.ledger_id
        segment_rows.append(
            (
                ledger_id,
                upload.number,
                segment.first_entry,
                upload.entries,
                upload.size_bytes,
                upload.sha256,
                upload.delayed,
            )
        )
        row = row_by_ledger.get(ledger_id)
        totals = [getattr(row, name) for name in GROWING_COLUMNS] if row else [0, 0, 0, -1]
        entries, size_bytes, count, last = totals_by_ledger.get(ledger_id, totals)
        totals_by_ledger[ledger_id] = [
            max(entries, segment.first_entry + upload.entries),
            size_bytes + upload.size_bytes,
            count + 1,
            max(last, upload.number),
        ]
    insert_segments(connection, segment_rows, [(ledger_id, *totals) for ledger_id, totals in totals_by_ledger.items()])
    advances = [advance for segment in segments for advance in segment.upload.producers]
    producers = {advance.producer for advance in advances}
    known_sequences = read_producer_sequences(connection, topic.topic_id, producers)
    sequence_by_producer = {producer: known_sequences.get(producer, HighestSequenceIds()) for producer in producers}
    for advance in advances:
        sequence = sequence_by_producer[advance.producer]
        sequence_by_producer[advance.producer] = sequence.advance(max(sequence.last, advance.last), advance.txn)
    store_producer_sequences(
        connection, {(topic.topic_id, producer): sequence for producer, sequence in sequence_by_producer.items()}
    )


def _decide_outcomes_for_missing_objects(
    connection: Connection, topic: _TopicInAdoption
) -> dict[LedgerId, AdoptionOutcome]:
    """Return the outcome of each ledger that lacks objects. The rows of these ledgers stay until the end of adoption.

    If a listed ledger lacks objects, data is lost or the object store hides objects. A deletion is not the cause,
    because the record log gets an intent before the first object is deleted.
    """
    if not topic.incomplete_ids:
        return {}
    is_mine = is_one_of(connection, _L.ledger_id, topic.incomplete_ids)
    unlisted = set(connection.execute(select(_L.ledger_id).where(is_mine, _L.place.is_(None))).scalars())
    return {
        ledger_id: AdoptionOutcome.REVIVED if ledger_id in unlisted else AdoptionOutcome.MISSING
        for ledger_id in topic.incomplete_ids
    }


_A: Final = t.adoption.c
_MAX_LEDGERS_PER_PAGE: Final = 500
_MAX_PAGE_CHARACTERS: Final = 2 << 20  # JSON text; parsed JSON takes about ten times as much memory


@cache
def _ledger_adapter() -> "TypeAdapter[LedgerDiscrepancy]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - start-up time

    return TypeAdapter(LedgerDiscrepancy)


def replace_staged_ledgers(
    connection: Connection,
    shard: int,
    ledgers: Sequence[LedgerDiscrepancy],
    *,
    above_id: LedgerId,
    up_to_id: LedgerId | None,
) -> None:
    part = [_A.shard == shard, _A.ledger_id > above_id, _A.adoptee.is_(None)]
    if up_to_id is not None:
        part.append(_A.ledger_id <= up_to_id)
    connection.execute(delete(t.adoption).where(*part))
    rows = [
        {
            "ledger_id": ledger.ledger_id,
            "topic_id": ledger.topic_id,
            "shard": shard,
            "standing": ledger.standing.value,
            "facts": _ledger_adapter().dump_json(ledger).decode(),
            "segments": 0,
        }
        for ledger in ledgers
    ]
    if rows:
        connection.execute(build_insert_if_absent(connection, t.adoption), rows)


def iterate_staged_ledgers(connection: Connection, topic_id: TopicId) -> Iterator[list[LedgerDiscrepancy]]:
    """Yield pages of ledgers to adopt, ascending. Only a page of one ledger may exceed `_MAX_PAGE_CHARACTERS`."""
    after = -1
    while ids := _read_next_page_ids(connection, topic_id, after):
        facts = select(_A.facts).where(is_one_of(connection, _A.ledger_id, ids)).order_by(_A.ledger_id)
        yield [_ledger_adapter().validate_json(text) for text in connection.execute(facts).scalars()]
        after = ids[-1]


def _read_next_page_ids(connection: Connection, topic_id: TopicId, after: int) -> list[int]:
    mine = (_A.topic_id == topic_id, _A.ledger_id > after, _A.adoptee.is_(None))
    sizes = select(_A.ledger_id, func.length(_A.facts)).where(*mine)
    sizes = sizes.order_by(_A.ledger_id).limit(_MAX_LEDGERS_PER_PAGE)
    ids, page_characters = list[int](), 0
    for ledger_id, characters in connection.execute(sizes):
        page_characters += characters
        if ids and page_characters > _MAX_PAGE_CHARACTERS:
            break
        ids.append(ledger_id)
    return ids


def store_outcomes_and_clear_staged_data(
    connection: Connection,
    outcome_by_ledger: Mapping[LedgerId, AdoptionOutcome],
    segments_by_ledger: Mapping[LedgerId, int],
) -> None:
    rows = [
        (ledger_id, outcome.value, segments_by_ledger.get(ledger_id, 0))
        for ledger_id, outcome in outcome_by_ledger.items()
    ]
    _compile_outcome_update(connection.dialect.name).execute(connection, rows, facts="{}")


@cache
def _compile_outcome_update(dialect: str) -> BulkStatement:
    settled = build_bulk_parameter(dialect, "settled", {"ledger_id": BIG, "adoptee": TEXT, "segments": BIG})
    c = settled.source.c
    mine = update(t.adoption).where(_A.ledger_id == c.ledger_id)
    values = {"adoptee": c.adoptee, "segments": c.segments, "facts": bindparam("facts")}
    return BulkStatement(sql=mine.values(values), rows=settled)


def store_outcomes_of_unstaged_ledgers(
    connection: Connection,
    topic_by_ledger: Mapping[LedgerId, TopicId],
    outcome: AdoptionOutcome,
    *,
    overwrite: bool = False,
) -> None:
    rows = [
        {
            "ledger_id": ledger_id,
            "topic_id": topic_id,
            "shard": -1,
            "standing": "",
            "facts": "{}",
            "adoptee": outcome.value,
            "segments": 0,
        }
        for ledger_id, topic_id in topic_by_ledger.items()
    ]
    if rows:
        connection.execute(build_insert_if_absent(connection, t.adoption), rows)
        if overwrite:
            store_outcomes_and_clear_staged_data(connection, dict.fromkeys(topic_by_ledger, outcome), {})


def lock_decided_before_flush(connection: Connection, txns: Iterable[TransactionId]) -> set[TransactionId]:
    """Lock the transactions. Return the transactions that were decided before the last flush.

    Transactions that adoption decided are not returned, because these decisions are later than the flush.
    """
    flushed_us = _read_flushed_us(connection)
    row_by_txn = lock_transactions(connection, txns)
    return {txn for txn, row in row_by_txn.items() if row.decided_us is not None and row.decided_us <= flushed_us}


def adopt_transactions(
    connection: Connection, topic_id: TopicId, topic_name: str, segments: Sequence[AdoptedSegment], *, now_us: int
) -> None:
    """Store the transactions, ranges and transaction markers of `segments`, which must be in the order of the log.

    A transaction marker decides its transaction. An unknown transaction is inserted as open, with a deadline in the
    past.

    A subscription's marker contains acknowledgements. The marker of a commit applies them to the cursor.
    Acknowledgements of a transaction that was decided before the last flush are skipped: the flushed cursor already
    includes them, or a later seek has replaced them.
    """
    _TransactionAdoption(connection, topic_id, topic_name, segments, now_us).adopt_ranges_and_markers()


def _read_flushed_us(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(t.record_log.c.flushed_us, 0))).scalar_one())


class _TransactionAdoption:
    def __init__(
        self,
        connection: Connection,
        topic_id: TopicId,
        topic_name: str,
        segments: Sequence[AdoptedSegment],
        now_us: int,
    ) -> None:
        self._connection, self._topic_id, self._topic_name = connection, topic_id, topic_name
        self._segments, self._now_us = segments, now_us

    def adopt_ranges_and_markers(self) -> None:
        ranges = [
            (segment.ledger_id, segment.first_entry + run.offset, run.entries, self._topic_id, run.txn)
            for segment in self._segments
            for run in segment.upload.transactions
        ]
        txns = {txn for *_, txn in ranges} | {marker.txn for marker in self._markers}
        if txns and (unknown := sorted(txns - read_transaction_states(self._connection, txns).keys())):
            insert_open_transactions(self._connection, [(txn, -1) for txn in unknown], now_us=self._now_us)
        participants = {(txn, Participant(self._topic_id), self._topic_name) for *_, txn in ranges}
        participants |= {
            (marker.txn, self._to_participant(marker), self._topic_name)
            for marker in self._markers
            if marker.subscription
        }
        insert_participants(self._connection, participants)
        self._remove_entries_to_register_again()
        insert_buffer_ranges(self._connection, [(*columns, txn.tc_id, txn.sequence) for *columns, txn in ranges])
        self._hide_markers()
        self._decide_marked_transactions()

    def _remove_entries_to_register_again(self) -> None:
        """Remove entries of adopted segments from buffers. A rebuild may have loaded them without the segments."""
        first_entry_by_ledger: dict[LedgerId, int] = {}
        for segment in self._segments:
            first_entry = first_entry_by_ledger.get(segment.ledger_id, segment.first_entry)
            first_entry_by_ledger[segment.ledger_id] = min(first_entry, segment.first_entry)
        remove_entries_from_buffers(self._connection, first_entry_by_ledger)

    def _hide_markers(self) -> None:
        entries_by_ledger: dict[LedgerId, BitMap] = {}
        for segment in self._segments:
            if entries := BitMap(segment.first_entry + marker.offset for marker in segment.upload.markers):
                entries_by_ledger[segment.ledger_id] = entries_by_ledger.get(segment.ledger_id, BitMap()) | entries
        hide_entries(self._connection, dict.fromkeys(entries_by_ledger, self._topic_id), entries_by_ledger)

    def _decide_marked_transactions(self) -> None:
        marked_txns = {marker.txn for marker in self._markers}
        decided_before_flush = lock_decided_before_flush(self._connection, marked_txns) if marked_txns else set()
        acknowledging_markers = [
            marker
            for marker in self._markers
            if marker.subscription and marker.positions and marker.txn not in decided_before_flush
        ]
        for marker in acknowledging_markers:
            positions = unpack_acknowledged(b64decode(marker.positions))
            replace_held_entries(self._connection, marker.txn, self._to_participant(marker), positions)
        states = read_transaction_states(self._connection, marked_txns) if marked_txns else {}
        decisions = {
            marker.txn: TransactionState.COMMITTING if marker.commits else TransactionState.ABORTING
            for marker in self._markers
            if states[marker.txn] is TransactionState.OPEN
        }
        store_transaction_decisions(
            self._connection, decisions, now_us=max(self._now_us, _read_flushed_us(self._connection) + 1)
        )
        apply_decisions_to_cursors(
            self._connection,
            [
                StoredParticipant(
                    participant=self._to_participant(marker),
                    topic=self._topic_name,
                    positions=unpack_acknowledged(b64decode(marker.positions)),
                )
                for marker in acknowledging_markers
                if marker.commits
            ],
        )

    @cached_property
    def _markers(self) -> list[UploadedMarker]:
        return [marker for segment in self._segments for marker in segment.upload.markers]

    def _to_participant(self, marker: UploadedMarker) -> Participant:
        return Participant(self._topic_id, marker.subscription)
