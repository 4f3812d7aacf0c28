"""Group commit in SQL: many small writes in one transaction of set-based statements.

Every row that a write depends on is locked first, in the order topic, ledger, sequence, cursor and by key within each;
then each write is decided under those locks, and then all are written. So a batch either registers a segment because
all of its conditions hold, or answers why not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from sqlalchemy import Connection, and_, select

from infra.catalog import tables as t
from infra.catalog.cursors.acknowledgements import acknowledge_all
from infra.catalog.deletion.intent_rows import reopen_late
from infra.catalog.engine.database import OnDatabase
from infra.catalog.engine.many import BIG, TEXT, Statement, rows_of, value_of
from infra.catalog.log.ledger_rows import GROWS, register
from infra.catalog.log.ledgers import epoch
from infra.catalog.log.topic_rows import advance_producers, holding
from logstore.errors import (
    AlreadyExists,
    LedgerFenced,
    PreconditionFailed,
    ProducerFenced,
    SextonError,
    StaleCatalog,
    UnknownObject,
)
from logstore.failpoints import effect
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog import Acknowledge, Registered, RegisterSegment, TopicState, Write, WriteResult


class SqlCommits(OnDatabase):
    """The `Commits` port."""

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """See `Commits.commit`."""
        with effect("catalog.group_commit"):
            return self._db.write(lambda connection: _commit(connection, writes))


def _commit(connection: Connection, writes: Sequence[Write]) -> list[WriteResult]:
    registered = iter(_register_all(connection, [write for write in writes if isinstance(write, RegisterSegment)]))
    acknowledged = iter(acknowledge_all(connection, [write for write in writes if isinstance(write, Acknowledge)]))
    return [next(registered) if isinstance(write, RegisterSegment) else next(acknowledged) for write in writes]


@dataclass(slots=True, kw_only=True)
class _Ledger:
    """A locked ledger row, as this batch changes it."""

    topic_id: int
    state: str
    entries: int
    size_bytes: int
    segments: int
    last_segment: int


@dataclass(slots=True, kw_only=True)
class _Locked:
    """Everything the batch's registrations depend on; of topics, those that are ACTIVE are locked."""

    epoch: int
    topics: dict[int, str]
    ledgers: dict[int, _Ledger]
    sequences: dict[tuple[int, str], int]
    segments: list[tuple[int, int, int, int, int, str | None]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    advanced: dict[tuple[int, str], int] = field(default_factory=dict)


def _register_all(connection: Connection, writes: Sequence[RegisterSegment]) -> list[WriteResult]:
    """Decide registrations in order; a refused one leaves its ledger and its producers as they were."""
    if not writes:
        return []
    locked = _lock(connection, writes)
    results = [_decide(locked, write) for write in writes]
    if locked.segments:
        grown = [(one, *(getattr(locked.ledgers[one], name) for name in GROWS)) for one in locked.touched]
        register(connection, locked.segments, grown)
    if locked.advanced:
        advance_producers(connection, [(*key, last) for key, last in locked.advanced.items()])
    # of one that is OPEN the primary copy stands for certain: nobody can have looked for the last time
    standing = {ledger_id for ledger_id, ledger in locked.ledgers.items() if ledger.state == LedgerState.OPEN.value}
    late = {write.ledger_id for write in writes if write.epoch == locked.epoch and write.ledger_id not in standing}
    if late:
        reopen_late(connection, late, epoch=locked.epoch)
    return results


def _lock(connection: Connection, writes: Sequence[RegisterSegment]) -> _Locked:
    """Lock topics, then ledgers, then sequences, each by key: nobody that does the same can deadlock with us."""
    locks = _locks(connection.dialect.name)
    asked = {write.topic_id for write in writes}
    topics = locks.topics.execute(connection, {(topic_id,) for topic_id in asked}).all()
    states = {row.topic_id: row.state for row in topics}
    ledgers = locks.ledgers.execute(connection, {(write.ledger_id,) for write in writes}).all()
    pairs = {(write.topic_id, part.producer) for write in writes for part in write.producers}
    sequences = locks.sequences.execute(connection, pairs).all() if pairs else []
    t_, inactive = t.topic.c, asked - states.keys()
    if inactive:
        found = connection.execute(select(t_.topic_id, t_.state).where(t_.topic_id.in_(inactive)))
        states |= {row.topic_id: row.state for row in found}
    return _Locked(
        epoch=topics[0].epoch if topics else epoch(connection),
        topics=states,
        ledgers={row.ledger_id: value_of(_Ledger, row) for row in ledgers},
        sequences={(row.topic_id, row.producer): row.sequence_id for row in sequences},
    )


def _decide(locked: _Locked, write: RegisterSegment) -> WriteResult:
    refused = _refusal(locked, write)
    if refused:
        return refused
    ledger = locked.ledgers[write.ledger_id]
    first = ledger.entries
    ledger.entries += write.entries
    ledger.size_bytes += write.size_bytes
    ledger.segments += 1
    ledger.last_segment = write.number
    locked.touched.add(write.ledger_id)
    locked.segments.append((write.ledger_id, write.number, first, write.entries, write.size_bytes, write.sha256))
    for part in write.producers:
        key = (write.topic_id, part.producer)
        locked.sequences[key] = locked.advanced[key] = part.last
    return Registered(first_entry=first, ledger_entries=ledger.entries, ledger_size_bytes=ledger.size_bytes)


def _refusal(locked: _Locked, write: RegisterSegment) -> SextonError | None:
    """The first condition of an append that does not hold. Source: the rule of an append, in this order."""
    topic = locked.topics.get(write.topic_id)
    if write.epoch != locked.epoch:
        return StaleCatalog(f"append: expected catalog epoch {locked.epoch}, found {write.epoch}")
    if topic is None:
        return UnknownObject("topic_id", expected="an existing topic", found=write.topic_id)
    if topic != TopicState.ACTIVE.value:
        return PreconditionFailed(f"topic {write.topic_id}: expected state ACTIVE, found {topic}")
    return _ledger_refusal(locked, write) or _producer_refusal(locked, write)


def _ledger_refusal(locked: _Locked, write: RegisterSegment) -> SextonError | None:
    ledger = locked.ledgers.get(write.ledger_id)
    if ledger is None or ledger.state != LedgerState.OPEN.value:
        found = ledger.state if ledger else "not listed"
        return LedgerFenced(f"ledger {write.ledger_id}: expected state OPEN, found {found}")
    if ledger.topic_id != write.topic_id:
        return LedgerFenced(
            f"ledger {write.ledger_id}: expected a ledger of topic {write.topic_id}, found one of {ledger.topic_id}"
        )
    if write.number <= ledger.last_segment:
        return AlreadyExists(
            f"ledger {write.ledger_id}: expected a segment above {ledger.last_segment}, found {write.number}"
        )
    return None


def _producer_refusal(locked: _Locked, write: RegisterSegment) -> SextonError | None:
    ahead: dict[str, int] = {}
    for part in write.producers:
        last = ahead.get(part.producer, locked.sequences.get((write.topic_id, part.producer), -1))
        if part.first <= last:
            return ProducerFenced(
                f"producer {part.producer!r}: expected a sequence id above {last}, found {part.first}"
            )
        ahead[part.producer] = part.last
    return None


class _Locks(NamedTuple):
    """What an append locks, in this order."""

    topics: Statement  # those that are ACTIVE, share-locked, with the catalog's epoch
    ledgers: Statement  # locked, listed ones only, with the topic of their list
    sequences: Statement  # locked, those that exist


@cache
def _locks(dialect: str) -> _Locks:
    """Built once for `sqlite` or `postgresql`."""
    topics, ledgers = rows_of(dialect, "asked", {"topic_id": BIG}), rows_of(dialect, "asked", {"ledger_id": BIG})
    producers = rows_of(dialect, "asked", {"topic_id": BIG, "producer": TEXT})
    epoch = select(t.catalog.c.epoch).scalar_subquery()
    of_topics = select(t.topic.c.topic_id, t.topic.c.state, epoch.label("epoch"))
    active = (t.topic.c.topic_id.in_(select(topics.source.c.topic_id)), t.topic.c.state == TopicState.ACTIVE.value)
    listed = (t.ledger.c.ledger_id.in_(select(ledgers.source.c.ledger_id)), t.ledger.c.place.is_not(None))
    columns = (t.ledger.c.ledger_id, t.ledger.c.state, *(t.ledger.c[name] for name in GROWS), t.ledger_list.c.topic_id)
    of_ledgers = select(*columns).join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id).where(*listed)
    p, asked = t.producer_sequence.c, producers.source.c
    same = and_(p.topic_id == asked.topic_id, p.producer == asked.producer)
    of_producers = select(p.topic_id, p.producer, p.sequence_id).join(producers.source, same)
    in_order = of_producers.order_by(p.topic_id, p.producer).with_for_update(of=t.producer_sequence)
    return _Locks(
        topics=Statement(sql=holding(of_topics.where(*active).order_by(t.topic.c.topic_id)), rows=topics),
        ledgers=Statement(sql=of_ledgers.order_by(t.ledger.c.ledger_id).with_for_update(of=t.ledger), rows=ledgers),
        sequences=Statement(sql=in_order, rows=producers),
    )
