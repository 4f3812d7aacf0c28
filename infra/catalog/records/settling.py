"""Settling a topic with what adoption found in storage: one transaction, in which all of it is taken in or none.

Nobody else writes to the catalog meanwhile, so locks are those of any statement.
"""

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pyroaring import BitMap
from sqlalchemy import Connection, exists, func, select

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import close_holes
from infra.catalog.deletion.intent_rows import file_intents
from infra.catalog.deletion.whole_topics import dissolve
from infra.catalog.engine.many import among
from infra.catalog.log.ledger_rows import GROWS, make_list, register, take_in, take_in_newborn
from infra.catalog.log.producer_rows import put_sequences, sequences_of
from infra.catalog.log.topic_rows import make_again
from infra.catalog.reconciliation.filing import file_orphans
from infra.catalog.records.adoption_rows import settled, staged
from infra.catalog.transactions.buffer_rows import hide, insert_ranges
from infra.catalog.transactions.deciding import acknowledge_held, put_decisions
from infra.catalog.transactions.participant_rows import hold, join
from infra.catalog.transactions.transaction_rows import insert_open, lock_transactions, states_of
from logstore.cursors.state import unpack_acknowledged
from logstore.log.ledgers import Component, CopyKind, LedgerState
from logstore.log.producers import ProducerSequence
from logstore.ports.catalog import Cause, OrphanCopy, StoredParticipant, TopicState
from logstore.ports.catalog.adoption import Adoptee, StagedLedger, Standing
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption import AdoptedSegment, FoundMarker, Tail, TopicAtFlush, adopted
from logstore.records.kinds import RecordKind
from logstore.transactions.transactions import Participant, TransactionId, TransactionState

CAUSE: Final = Cause(actor="sexton", reason="the catalog was rebuilt, and nothing names it", workflow_id="")

_L, _T = t.ledger.c, t.tombstone.c


@dataclass(slots=True)
class _Topic:
    """A topic that is being settled."""

    topic_id: TopicId
    name: str
    list_id: int
    found: list[StagedLedger]
    became: dict[LedgerId, Adoptee] = field(default_factory=dict)
    segments: dict[LedgerId, int] = field(default_factory=dict)


def settle(connection: Connection, topic_id: TopicId, *, now_us: int) -> None:
    """See `Adoption.settle`."""
    found = staged(connection, topic_id)
    if not found:
        return
    name = _standing(connection, topic_id, found, now_us)
    became: dict[LedgerId, Adoptee] = {}
    segments: dict[LedgerId, int] = {}
    if name is not None:
        list_id = make_list(connection, topic_id, Component.MANAGED_LEDGER, {})
        topic = _Topic(topic_id, name, list_id, found)
        _take_in(connection, topic, now_us)
        _absent(connection, topic, now_us)
        became, segments = topic.became, topic.segments
    strangers = [one for one in found if one.standing is Standing.STRANGER and one.ledger_id not in became]
    _file(connection, strangers, now_us)
    became |= {one.ledger_id: Adoptee.DETACHED for one in strangers}
    became |= {one.ledger_id: Adoptee.UNCHANGED for one in found if one.ledger_id not in became}
    settled(connection, became, segments)


def _standing(connection: Connection, topic_id: TopicId, found: Sequence[StagedLedger], now_us: int) -> str | None:
    """The name of a topic that can have ledgers, made again if need be; None: it is gone, or is going.

    Of two topics of one name the one with the higher id is the later one: the other was gone when it was made.
    """
    row = connection.execute(select(t.topic).where(t.topic.c.topic_id == topic_id)).first()
    if row is not None:
        return str(row.name) if row.state == TopicState.ACTIVE.value else None
    buried = exists().where(_T.kind == RecordKind.TOPIC.value, _T.id == topic_id)
    names = {one.statement.owner.topic for one in found if one.statement and one.uploads}
    if not names or connection.execute(select(buried)).scalar():
        return None
    name = min(names)
    other = connection.execute(select(t.topic.c.topic_id).where(t.topic.c.name == name)).scalar()
    if other is not None and other > topic_id:
        return None
    if other is not None:
        dissolve(connection, TopicId(other), cause=CAUSE, now_us=now_us)
    make_again(connection, topic_id, name, now_us=now_us)
    return name


def _take_in(connection: Connection, topic: _Topic, now_us: int) -> None:
    """Register the uploads that had been registered, in ledgers that are listed from now on."""
    ids = [one.ledger_id for one in topic.found if one.uploads]
    rows = {
        row.ledger_id: row for row in connection.execute(select(t.ledger).where(among(connection, _L.ledger_id, ids)))
    }
    tails = [_tail(one, rows.get(one.ledger_id)) for one in topic.found if one.uploads]
    taken = adopted(tails, _at_flush(connection, topic.topic_id, tails))
    of_ledger: dict[int, list[AdoptedSegment]] = {}
    for each in taken:
        of_ledger.setdefault(each.ledger_id, []).append(each)
    for one in topic.found:
        mine = of_ledger.get(one.ledger_id)
        if not mine:
            continue
        topic.segments[one.ledger_id] = len(mine)
        row = rows.get(one.ledger_id)
        if row is None and one.statement:
            take_in(connection, topic.list_id, one.statement)
        elif row is not None and row.state == LedgerState.CREATING.value:
            take_in_newborn(connection, topic.list_id, one.ledger_id)
        whole = _is_whole(mine, 0 if row is None else row.entries)
        became = Adoptee.ADOPTED if row is None else Adoptee.EXTENDED
        topic.became[one.ledger_id] = became if whole else Adoptee.MISSING
    _register(connection, topic, taken, rows)
    _Told(connection, topic, taken, now_us).write()


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


def _at_flush(connection: Connection, topic_id: TopicId, tails: Sequence[Tail]) -> TopicAtFlush:
    uploads = [upload for tail in tails for upload in tail.uploads]
    epoch = connection.execute(select(t.catalog.c.epoch)).scalar_one() - 1
    producers = {one.producer for upload in uploads for one in upload.producers}
    named = {one.txn for upload in uploads for one in upload.transactions}
    decided = _decided(connection, named)
    sequences = sequences_of(connection, topic_id, producers) if producers else {}
    return TopicAtFlush(epoch=epoch, sequences=sequences, decided=decided)


def _decided(connection: Connection, named: Iterable[TransactionId]) -> set[TransactionId]:
    """Those that were decided at the flush; what adoption has decided since is later, whatever clock it has."""
    flushed = _flushed_us(connection)
    rows = lock_transactions(connection, named)
    return {txn for txn, row in rows.items() if row.decided_us is not None and row.decided_us <= flushed}


def _flushed_us(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(t.record_log.c.flushed_us, 0))).scalar_one())


def _register(connection: Connection, topic: _Topic, taken: Sequence[AdoptedSegment], rows: Mapping[int, Any]) -> None:
    """Insert the segments, let ledgers grow, and advance producers, as their registrations had done."""
    if not taken:
        return
    grown: dict[int, list[int]] = {}
    segments = []
    for one in taken:
        upload, row = one.upload, rows.get(one.ledger_id)
        totals = grown.setdefault(one.ledger_id, [getattr(row, name) for name in GROWS] if row else [0, 0, 0, -1])
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
    register(connection, segments, [(ledger_id, *totals) for ledger_id, totals in grown.items()])
    moved: dict[tuple[int, str], ProducerSequence] = {}
    known = sequences_of(connection, topic.topic_id, {one.producer for each in taken for one in each.upload.producers})
    for advance in (one for each in taken for one in each.upload.producers):
        before = moved.get((topic.topic_id, advance.producer)) or known.get(advance.producer, ProducerSequence())
        last = max(before.last, advance.last)
        moved[topic.topic_id, advance.producer] = before.advanced(last, advance.txn)
    put_sequences(connection, moved)


class _Told:
    """What the adopted segments of a topic tell of transactions."""

    def __init__(self, connection: Connection, topic: _Topic, taken: Sequence[AdoptedSegment], now_us: int) -> None:
        self._connection, self._topic, self._taken, self._now = connection, topic, taken, now_us

    def write(self) -> None:
        """Ranges and markers, and the transactions themselves: as far as a marker says, else open and past their time.

        What a transaction acknowledged comes back with its marker, and a commit is applied to the subscription.
        """
        runs = [
            (one.ledger_id, one.first_entry + run.offset, run.entries, self._topic.topic_id, run.txn)
            for one in self._taken
            for run in one.upload.transactions
        ]
        named = {run[-1] for run in runs} | {marker.txn for marker in self._markers}
        unknown = sorted(named - states_of(self._connection, named).keys()) if named else []
        if unknown:
            insert_open(self._connection, [(txn, -1) for txn in unknown], now_us=self._now)
        who = {(txn, Participant(self._topic.topic_id), self._topic.name) for *_, txn in runs}
        who |= {(one.txn, self._of(one), self._topic.name) for one in self._markers if one.subscription}
        join(self._connection, who)
        rows = [(*run[:-1], run[-1].tc_id, run[-1].sequence) for run in runs]
        insert_ranges(self._connection, rows)
        hidden: dict[LedgerId, BitMap] = {}
        for one in self._taken:
            bits = BitMap(one.first_entry + marker.offset for marker in one.upload.markers)
            if bits:
                hidden[one.ledger_id] = hidden.get(one.ledger_id, BitMap()) | bits
        hide(self._connection, dict.fromkeys(hidden, self._topic.topic_id), hidden)
        self._decide()

    def _decide(self) -> None:
        held = [one for one in self._markers if one.subscription and one.positions]
        for one in held:
            hold(self._connection, one.txn, self._of(one), unpack_acknowledged(b64decode(one.positions)))
        states = states_of(self._connection, {one.txn for one in self._markers}) if self._markers else {}
        decided = {
            one.txn: TransactionState.COMMITTING if one.commits else TransactionState.ABORTING
            for one in self._markers
            if states[one.txn] is TransactionState.OPEN
        }
        put_decisions(self._connection, decided, now_us=max(self._now, _flushed_us(self._connection) + 1))
        acknowledge_held(
            self._connection,
            [
                StoredParticipant(
                    participant=self._of(one),
                    topic=self._topic.name,
                    positions=unpack_acknowledged(b64decode(one.positions)),
                )
                for one in held
                if one.commits
            ],
        )

    @cached_property
    def _markers(self) -> list[FoundMarker]:
        return [marker for one in self._taken for marker in one.upload.markers]

    def _of(self, marker: FoundMarker) -> Participant:
        return Participant(self._topic.topic_id, marker.subscription)


def _absent(connection: Connection, topic: _Topic, now_us: int) -> None:
    """Ledgers at the head of the list, or in none, of which nothing is stored had been detached; others lost data."""
    standing = {one.ledger_id: one.standing for one in topic.found}
    lost = {one for one, what in standing.items() if what in {Standing.ABSENT, Standing.SHORT}}
    if not lost:
        return
    listed = select(_L.ledger_id).where(_L.list_id == topic.list_id, _L.place.is_not(None)).order_by(_L.place)
    ids = [LedgerId(one) for one in connection.execute(listed).scalars()]
    head = []
    for ledger_id in ids[:-1]:  # the last one of a list is never detached
        if standing.get(ledger_id) is not Standing.ABSENT:
            break
        head.append(ledger_id)
    if head:
        doomed = among(connection, _L.ledger_id, head)
        file_intents(connection, doomed, batch_id="", now_us=now_us, cause=CAUSE)
        close_holes(connection, topic.topic_id, head)
    unlisted = select(_L.ledger_id).where(among(connection, _L.ledger_id, lost), _L.place.is_(None))
    strays = {LedgerId(one) for one in connection.execute(unlisted).scalars()}  # they are detached again at the end
    for ledger_id in lost:
        topic.became[ledger_id] = Adoptee.REVIVED if ledger_id in strays or ledger_id in head else Adoptee.MISSING


def _file(connection: Connection, strangers: Sequence[StagedLedger], now_us: int) -> None:
    """Intents for objects that nothing names: phase two looks at them once more, and at whose they are."""
    orphans = [
        OrphanCopy(number=at, copy=CopyKind.LEDGER, statement=one.statement, size_bytes=one.size_bytes)
        for at, one in enumerate(strangers)
        if one.statement
    ]
    if orphans:
        file_orphans(connection, orphans, {}, batch_id="", cause=CAUSE, now_us=now_us)
