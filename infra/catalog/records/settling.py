"""Settling a topic with what adoption found in storage: one transaction, in which all of it is taken in or none.

No other process writes to the catalog meanwhile, so locks are those of any statement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, exists, select

from infra.catalog import tables as t
from infra.catalog.deletion.whole_topics import dissolve
from infra.catalog.engine.dialects import among
from infra.catalog.log.ledger_rows import (
    GROWING_COLUMNS,
    ensure_list,
    insert_segments,
    insert_stored_ledgers,
    list_newborns,
)
from infra.catalog.log.producer_rows import put_sequences, read_sequences
from infra.catalog.log.topic_rows import recreate_topic
from infra.catalog.records.adopted_transactions import adopt_transactions, decided_at_flush
from infra.catalog.records.adoption_rows import settled, staged, tell
from logstore.log.ledgers import Component, LedgerState
from logstore.log.producers import ProducerSequence
from logstore.ports.catalog import TopicState
from logstore.ports.catalog.rebuilding import Adoptee, StagedLedger, Standing
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption import AdoptedSegment, Tail, TopicAtFlush, adopted, repeated
from logstore.records.kinds import RecordKind
from logstore.transactions.transactions import TransactionId

_L, _T = t.ledger.c, t.tombstone.c
_LOST = {Standing.ABSENT, Standing.ENDED, Standing.SHORT}


@dataclass(frozen=True, slots=True)
class _Whole:
    """Facts of all staged ledgers of a topic, known before the first of them is taken in."""

    name: str | None  # of the topic, as those say that may be taken in
    repeated: Mapping[str, int]


@dataclass(slots=True)
class _Topic:
    """A topic that is being settled, ledger by ledger."""

    topic_id: TopicId
    name: str
    list_id: int
    repeated: Mapping[str, int]
    rows_epoch: int  # of the catalog whose rows were loaded
    ended: set[TransactionId] = field(default_factory=set)  # by markers of ledgers that were taken in
    lost: dict[LedgerId, Standing] = field(default_factory=dict)  # of these not all is stored
    segments: dict[LedgerId, int] = field(default_factory=dict)  # that were taken in


def settle(connection: Connection, topic_id: TopicId, *, rows_epoch: int, now_us: int) -> None:
    """See `Adoption.settle`."""
    whole = _whole(connection, topic_id)
    if whole is None:
        return
    topic, name = None, _standing(connection, topic_id, whole.name, now_us)
    if name is not None:
        list_id = ensure_list(connection, topic_id, Component.MANAGED_LEDGER, {})
        topic = _Topic(topic_id, name, list_id, whole.repeated, rows_epoch)
    for found in staged(connection, topic_id):
        _settle_page(connection, topic, found, now_us)
    if topic is not None:
        settled(connection, _lost(connection, topic), topic.segments)


def _whole(connection: Connection, topic_id: TopicId) -> _Whole | None:
    """None where nothing is staged."""
    names: set[str] = set()
    again: dict[str, int] = {}
    nothing = True
    for found in staged(connection, topic_id):
        nothing = False
        names |= {one.statement.owner.topic for one in found if one.statement and one.uploads}
        again |= repeated((upload for one in found for upload in one.uploads), again)
    return None if nothing else _Whole(min(names, default=None), again)


def _settle_page(connection: Connection, topic: _Topic | None, found: Sequence[StagedLedger], now_us: int) -> None:
    """Take in some ledgers; what becomes of those of which not all is stored is told at the end."""
    became = dict.fromkeys((one.ledger_id for one in found), Adoptee.UNCHANGED)
    taken = _take_in(connection, topic, found, now_us) if topic else {}
    strangers = [one for one in found if one.standing is Standing.STRANGER and one.ledger_id not in taken]
    became |= taken | dict.fromkeys((one.ledger_id for one in strangers), Adoptee.DETACHED)
    if topic is None:
        settled(connection, became, {})
        return
    topic.lost |= {one.ledger_id: one.standing for one in found if one.standing in _LOST}
    settled(connection, {one: what for one, what in became.items() if one not in topic.lost}, topic.segments)
    topic.segments = {one: count for one, count in topic.segments.items() if one in topic.lost}


def _standing(connection: Connection, topic_id: TopicId, said: str | None, now_us: int) -> str | None:
    """The name of a topic that can have ledgers, made again if need be; None: it is gone, or is going.

    Of two topics of one name the one with the higher id is the later one: the other was gone when it was made.
    """
    row = connection.execute(select(t.topic).where(t.topic.c.topic_id == topic_id)).first()
    if row is not None:
        return str(row.name) if row.state == TopicState.ACTIVE.value else None
    buried = exists().where(_T.kind == RecordKind.TOPIC.value, _T.id == topic_id)
    if said is None or connection.execute(select(buried)).scalar():
        return None
    other = connection.execute(select(t.topic.c.topic_id).where(t.topic.c.name == said)).scalar()
    if other is not None and other > topic_id:
        return None
    if other is not None:
        revived = dissolve(connection, TopicId(other))
        tell(connection, dict.fromkeys(revived, TopicId(other)), Adoptee.REVIVED)
    recreate_topic(connection, topic_id, said, now_us=now_us)
    return said


def _take_in(
    connection: Connection, topic: _Topic, found: Sequence[StagedLedger], now_us: int
) -> dict[LedgerId, Adoptee]:
    """Register the uploads that had been registered, in ledgers that are listed from now on."""
    ids = [one.ledger_id for one in found if one.uploads]
    query = select(t.ledger).where(among(connection, _L.ledger_id, ids))
    rows = {row.ledger_id: row for row in connection.execute(query)}
    tails = [_tail(one, rows.get(one.ledger_id)) for one in found if one.uploads]
    taken = adopted(tails, _at_flush(connection, topic, tails))
    of_ledger: dict[LedgerId, list[AdoptedSegment]] = {}
    for each in taken:
        of_ledger.setdefault(each.ledger_id, []).append(each)
    topic.segments |= {one: len(mine) for one, mine in of_ledger.items()}
    topic.ended |= {marker.txn for one in taken for marker in one.upload.markers}
    unknown = [one.statement for one in found if one.statement and one.ledger_id in of_ledger.keys() - rows.keys()]
    insert_stored_ledgers(connection, topic.list_id, unknown)
    born = [one for one in of_ledger if one in rows and rows[one].state == LedgerState.CREATING.value]
    list_newborns(connection, topic.list_id, born)
    _register(connection, topic, taken, rows)
    adopt_transactions(connection, topic.topic_id, topic.name, taken, now_us=now_us)
    became: dict[LedgerId, Adoptee] = {}
    for ledger_id, mine in of_ledger.items():
        row = rows.get(ledger_id)
        is_whole = _is_whole(mine, 0 if row is None else row.entries)
        became[ledger_id] = Adoptee.MISSING if not is_whole else Adoptee.EXTENDED if row else Adoptee.ADOPTED
    return became


def _is_whole(taken: Sequence[AdoptedSegment], reached: int) -> bool:
    """Whether they hold every entry from `reached` on: what was registered in between must be stored."""
    for one in sorted(taken, key=lambda one: one.first_entry):
        if one.first_entry > reached:
            return False
        reached = one.first_entry + one.upload.entries
    return True


def _tail(one: StagedLedger, row: Any) -> Tail:  # noqa: ANN401 - a row
    if row is None:
        return Tail(ledger_id=one.ledger_id, uploads=one.uploads)
    return Tail(ledger_id=one.ledger_id, last_segment=row.last_segment, entries=row.entries, uploads=one.uploads)


def _at_flush(connection: Connection, topic: _Topic, tails: Sequence[Tail]) -> TopicAtFlush:
    uploads = [upload for tail in tails for upload in tail.uploads]
    producers = {one.producer for upload in uploads for one in upload.producers}
    named = {one.txn for upload in uploads for one in upload.transactions}
    return TopicAtFlush(
        epoch=topic.rows_epoch,
        sequences=read_sequences(connection, topic.topic_id, producers) if producers else {},
        decided=decided_at_flush(connection, named) | topic.ended,
        repeated=topic.repeated,
    )


def _register(connection: Connection, topic: _Topic, taken: Sequence[AdoptedSegment], rows: Mapping[int, Any]) -> None:
    """Insert the segments, let ledgers grow, and advance producers, as their registrations had done."""
    if not taken:
        return
    grown: dict[int, list[int]] = {}
    segments = []
    for one in taken:
        upload, row = one.upload, rows.get(one.ledger_id)
        totals = grown.setdefault(
            one.ledger_id, [getattr(row, name) for name in GROWING_COLUMNS] if row else [0, 0, 0, -1]
        )
        segments.append(
            (
                one.ledger_id,
                upload.number,
                one.first_entry,
                upload.entries,
                upload.size_bytes,
                upload.sha256,
                upload.delayed,
            )
        )
        entries, size_bytes, count, last = totals
        totals[:] = [
            max(entries, one.first_entry + upload.entries),
            size_bytes + upload.size_bytes,
            count + 1,
            max(last, upload.number),
        ]
    insert_segments(connection, segments, [(ledger_id, *totals) for ledger_id, totals in grown.items()])
    moved: dict[tuple[int, str], ProducerSequence] = {}
    known = read_sequences(
        connection, topic.topic_id, {one.producer for each in taken for one in each.upload.producers}
    )
    for advance in (one for each in taken for one in each.upload.producers):
        before = moved.get((topic.topic_id, advance.producer)) or known.get(advance.producer, ProducerSequence())
        last = max(before.last, advance.last)
        moved[topic.topic_id, advance.producer] = before.advance(last, advance.txn)
    put_sequences(connection, moved)


def _lost(connection: Connection, topic: _Topic) -> dict[LedgerId, Adoptee]:
    """Return what becomes of the ledgers that are absent or short; each keeps its row until the end.

    No deletion explains the absence of one that its list names, wherever it stands there: before the first object goes
    the record log knows of the intent, and of a list without the ledger. So that is a loss of data, or a store that
    does not show what it holds. Those in no list are expected to be gone: the last step removes their rows.
    """
    if not topic.lost:
        return {}
    unlisted = select(_L.ledger_id).where(among(connection, _L.ledger_id, topic.lost), _L.place.is_(None))
    strays = {LedgerId(one) for one in connection.execute(unlisted).scalars()}
    return {one: Adoptee.REVIVED if one in strays else Adoptee.MISSING for one in topic.lost}
