"""Group commit in SQL: many small writes in one transaction of set-based statements.

Rows are locked first, in the order topic, ledger, cursor and by id within each, and every decision is taken
under those locks. So a batch either registers a segment because all of its conditions hold, or answers why not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from infra.catalog import tables as t
from infra.catalog.acknowledgements import acknowledge_all
from infra.catalog.database import Database
from infra.catalog.ledgers import epoch
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
from logstore.ledgers import LedgerState
from logstore.ports.catalog import Acknowledge, Registered, RegisterSegment, TopicState, Write, WriteResult


class SqlCommits:
    """The `Commits` port."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """See `Commits.commit`."""
        with effect("catalog.group_commit"):
            return self._db.write(lambda connection: _commit(connection, writes))


def _commit(connection: Connection, writes: Sequence[Write]) -> list[WriteResult]:
    registered = iter(_register(connection, [write for write in writes if isinstance(write, RegisterSegment)]))
    acknowledged = iter(acknowledge_all(connection, [write for write in writes if isinstance(write, Acknowledge)]))
    return [next(registered) if isinstance(write, RegisterSegment) else next(acknowledged) for write in writes]


@dataclass(slots=True)
class _Ledger:
    """A locked ledger row, as this batch changes it."""

    state: str
    entries: int
    size_bytes: int
    segments: int
    last_segment: int


@dataclass(slots=True)
class _Locked:
    """Everything the batch's registrations depend on."""

    epoch: int
    topics: dict[int, str]
    ledgers: dict[int, _Ledger]
    sequences: dict[tuple[int, str], int]
    segments: list[dict[str, int]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    advanced: dict[tuple[int, str], int] = field(default_factory=dict)


def _register(connection: Connection, writes: list[RegisterSegment]) -> list[WriteResult]:
    if not writes:
        return []
    locked = _lock(connection, writes)
    results = [_decide(locked, write) for write in writes]
    _flush(connection, locked)
    return results


def _lock(connection: Connection, writes: list[RegisterSegment]) -> _Locked:
    topic_ids = sorted({write.topic_id for write in writes})
    ledger_ids = sorted({write.ledger_id for write in writes})
    pairs = sorted({(int(write.topic_id), part.producer) for write in writes for part in write.producers})
    topics = select(t.topic.c.topic_id, t.topic.c.state).where(t.topic.c.topic_id.in_(topic_ids))
    ledgers = select(t.ledger).where(t.ledger.c.ledger_id.in_(ledger_ids), t.ledger.c.place.is_not(None))
    found_topics = connection.execute(topics.order_by(t.topic.c.topic_id).with_for_update(read=True)).all()
    found_ledgers = connection.execute(ledgers.order_by(t.ledger.c.ledger_id).with_for_update()).all()
    return _Locked(
        epoch=epoch(connection),
        topics={row.topic_id: row.state for row in found_topics},
        ledgers={
            row.ledger_id: _Ledger(row.state, row.entries, row.size_bytes, row.segments, row.last_segment)
            for row in found_ledgers
        },
        sequences=_sequences(connection, pairs),
    )


def _sequences(connection: Connection, pairs: list[tuple[int, str]]) -> dict[tuple[int, str], int]:
    if not pairs:
        return {}
    p = t.producer_sequence.c
    query = select(t.producer_sequence).where(tuple_(p.topic_id, p.producer).in_(pairs))
    rows = connection.execute(query.order_by(p.topic_id, p.producer).with_for_update())
    return {(row.topic_id, row.producer): row.sequence_id for row in rows}


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
    locked.segments.append(
        {
            "ledger_id": write.ledger_id,
            "number": write.number,
            "first_entry": first,
            "entries": write.entries,
            "size_bytes": write.size_bytes,
        }
    )
    for part in write.producers:
        key = (int(write.topic_id), part.producer)
        locked.sequences[key] = locked.advanced[key] = part.last
    return Registered(first_entry=first, ledger_entries=ledger.entries, ledger_size_bytes=ledger.size_bytes)


def _refusal(locked: _Locked, write: RegisterSegment) -> SextonError | None:
    """The first condition of an append that does not hold. Source: the rule of an append, in this order."""
    topic = locked.topics.get(write.topic_id)
    ledger = locked.ledgers.get(write.ledger_id)
    if write.epoch != locked.epoch:
        return StaleCatalog(f"append: expected catalog epoch {locked.epoch}, found {write.epoch}")
    if topic is None:
        return UnknownObject("topic_id", expected="an existing topic", found=write.topic_id)
    if topic != TopicState.ACTIVE.value:
        return PreconditionFailed(f"topic {write.topic_id}: expected state ACTIVE, found {topic}")
    if ledger is None or ledger.state != LedgerState.OPEN.value:
        found = ledger.state if ledger else "not listed"
        return LedgerFenced(f"ledger {write.ledger_id}: expected state OPEN, found {found}")
    if write.number <= ledger.last_segment:
        return AlreadyExists(
            f"ledger {write.ledger_id}: expected a segment above {ledger.last_segment}, found {write.number}"
        )
    return _producer_refusal(locked, write)


def _producer_refusal(locked: _Locked, write: RegisterSegment) -> SextonError | None:
    for part in write.producers:
        last = locked.sequences.get((write.topic_id, part.producer), -1)
        if part.first <= last:
            return ProducerFenced(
                f"producer {part.producer!r}: expected a sequence id above {last}, found {part.first}"
            )
    return None


def _flush(connection: Connection, locked: _Locked) -> None:
    if not locked.segments:
        return
    connection.execute(insert(t.segment), locked.segments)
    changed = (
        update(t.ledger)
        .where(t.ledger.c.ledger_id == bindparam("row"))
        .values({name: bindparam(f"new_{name}") for name in ("entries", "size_bytes", "segments", "last_segment")})
    )
    connection.execute(changed, [_changes(row, locked.ledgers[row]) for row in sorted(locked.touched)])
    if locked.advanced:
        _advance(connection, locked.advanced.items())


def _changes(row: int, ledger: _Ledger) -> dict[str, int]:
    return {
        "row": row,
        "new_entries": ledger.entries,
        "new_size_bytes": ledger.size_bytes,
        "new_segments": ledger.segments,
        "new_last_segment": ledger.last_segment,
    }


def _advance(connection: Connection, advanced: Iterable[tuple[tuple[int, str], int]]) -> None:
    """Raise producers' sequences; the lock of the topic's open ledger stands for rows not yet there."""
    rows = [{"topic_id": topic, "producer": name, "sequence_id": last} for (topic, name), last in sorted(advanced)]
    dialect: Any = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(t.producer_sequence)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["topic_id", "producer"],
            set_={"sequence_id": statement.excluded.sequence_id},
            where=t.producer_sequence.c.sequence_id < statement.excluded.sequence_id,
        ),
        rows,
    )
