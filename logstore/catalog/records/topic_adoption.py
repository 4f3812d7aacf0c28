"""Adoption, in one transaction, of all ledgers of a topic that wait for adoption (*staged* ledgers).

The topic is not locked, because no other process writes to the catalog.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, exists, select

from logstore.catalog import tables as t
from logstore.catalog.deletion.topic_deletion import remove_topic_but_objects
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.ledger_rows import (
    GROWING_COLUMNS,
    add_newborns_to_list,
    ensure_ledger_list,
    insert_segments,
    insert_stored_ledgers,
)
from logstore.catalog.log.producer_sequence_rows import read_producer_sequences, store_producer_sequences
from logstore.catalog.log.topics import insert_topic_found_in_storage
from logstore.catalog.records.adopted_transactions import adopt_transactions, lock_decided_before_flush
from logstore.catalog.records.adoption_rows import (
    iterate_staged_ledgers,
    store_outcomes_and_clear_staged_data,
    store_outcomes_of_unstaged_ledgers,
)
from logstore.log.ledgers import Component, LedgerState
from logstore.log.producer_sequences import HighestSequenceIds
from logstore.ports.catalog.log import TopicState
from logstore.ports.catalog.records import AdoptionOutcome, LedgerDiscrepancy, StorageDiscrepancy
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption_rule import (
    AdoptedSegment,
    LedgerWithUploads,
    TopicAtFlush,
    choose_adopted_uploads,
    find_last_attempt_by_append,
)
from logstore.records.record_kinds import RecordKind
from logstore.transactions.transaction_ids_and_states import TransactionId

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
