"""A catalog in memory: topics, ledgers, cursors and group commits under one lock.

It keeps the promises of the ports' docstrings and nothing else; phase one is played by `detach` and faults of a
commit by `Misfortune`.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from logstore import cursors
from logstore.cursors import CursorState, LedgerSpan
from logstore.errors import (
    AlreadyExists,
    InvalidInput,
    LedgerFenced,
    OutcomeUnknown,
    PreconditionFailed,
    ProducerFenced,
    SextonError,
    StaleCatalog,
    UnknownObject,
)
from logstore.ledgers import Component, LedgerOwner, LedgerState, LedgerStatement
from logstore.ports.catalog import (
    Acknowledge,
    Acknowledged,
    Ledger,
    Registered,
    RegisterSegment,
    Segment,
    Subscription,
    Topic,
    TopicState,
    Write,
    WriteResult,
)
from logstore.positions import LedgerId, Position, TopicId
from logstore.retention import RetentionPolicy

BEFORE_ANY = Position(LedgerId(-1), -1)


class Moment(StrEnum):
    """When a planned misfortune of a commit happens."""

    BEFORE = "before"  # nothing is written
    AFTER = "after"  # everything is written


@dataclass(frozen=True, kw_only=True)
class Misfortune:
    """What happens at one call of `commit`: `action` runs, then `error` is raised if there is one."""

    moment: Moment
    error: Callable[[], BaseException | None] = field(default=lambda: OutcomeUnknown("planned: connection lost"))
    action: Callable[[], None] = field(default=lambda: None)


class FakeCatalog:
    """The ports' in-memory state. Any number of threads may use it; every method is one transaction."""

    def __init__(self, *, now_us: int = 1_750_000_000_000_000, first_ledger: int = 0) -> None:
        self.now_us = now_us  # stands still until moved
        self.current_epoch = 1
        self.next_ledger = first_ledger
        self.lock = threading.RLock()
        self.topic_rows: dict[TopicId, Topic] = {}
        self.ledger_rows: dict[LedgerId, Ledger] = {}
        self.lists: dict[TopicId, list[LedgerId]] = {}
        self.segment_rows: dict[LedgerId, list[Segment]] = {}
        self.sequences: dict[tuple[TopicId, str], int] = {}
        self.cursor_rows: dict[tuple[TopicId, str], Subscription] = {}
        self.pending_deletion: list[LedgerId] = []
        self.misfortunes: list[Misfortune] = []
        self.batches: list[int] = []  # writes of every commit call
        self.topics = FakeTopics(self)
        self.ledgers = FakeLedgers(self)
        self.cursors = FakeCursors(self)
        self.commits = FakeCommits(self)

    def advance(self, *, seconds: float) -> None:
        """Move the catalog's clock."""
        self.now_us += round(seconds * 1_000_000)

    def detach(self, topic_id: TopicId, ledger_ids: Iterable[LedgerId]) -> None:
        """Phase one: out of the list, with an intent."""
        with self.lock:
            for ledger_id in ledger_ids:
                self.lists[topic_id].remove(ledger_id)
                self._retire(ledger_id)

    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        """Let the topic be deleted, or not."""
        with self.lock:
            self.topic_rows[topic_id] = replace(self.topic_rows[topic_id], state=state)

    def spans(self, topic_id: TopicId) -> list[LedgerSpan]:
        """The topic's listed ledgers as cursors need them."""
        return [self.ledger_rows[ledger_id].span for ledger_id in self.lists[topic_id]]

    def topic(self, topic_id: TopicId, *, active: bool = False) -> Topic:
        """The topic; ACTIVE if asked."""
        found = self.topic_rows.get(topic_id)
        if found is None:
            raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
        if active and found.state is not TopicState.ACTIVE:
            raise PreconditionFailed(f"topic {found.name}: expected state ACTIVE, found {found.state.value}")
        return found

    def _retire(self, ledger_id: LedgerId) -> None:
        del self.ledger_rows[ledger_id]
        self.segment_rows.pop(ledger_id, None)
        self.pending_deletion.append(ledger_id)


class FakeTopics:
    """The `Topics` port."""

    def __init__(self, catalog: FakeCatalog) -> None:
        self._catalog = catalog

    def create(self, name: str, policy: RetentionPolicy) -> Topic:
        """See the port."""
        with self._catalog.lock:
            rows = self._catalog.topic_rows
            if any(topic.name == name for topic in rows.values()):
                raise AlreadyExists(f"topic {name!r} exists already")
            topic = Topic(
                topic_id=TopicId(len(rows) + 1),
                name=name,
                state=TopicState.ACTIVE,
                policy=policy,
                created_us=self._catalog.now_us,
            )
            rows[topic.topic_id] = topic
            self._catalog.lists[topic.topic_id] = []
            return topic

    def get(self, name: str) -> Topic:
        """See the port."""
        with self._catalog.lock:
            found = next((topic for topic in self._catalog.topic_rows.values() if topic.name == name), None)
        if found is None:
            raise UnknownObject("topic", expected="an existing topic", found=name)
        return found

    def by_id(self, topic_id: TopicId) -> Topic:
        """See the port."""
        with self._catalog.lock:
            return self._catalog.topic(topic_id)

    def all(self) -> list[Topic]:
        """See the port."""
        with self._catalog.lock:
            return sorted(self._catalog.topic_rows.values(), key=lambda topic: topic.name)


class FakeLedgers:
    """The `Ledgers` port."""

    def __init__(self, catalog: FakeCatalog) -> None:
        self._catalog = catalog

    def epoch(self) -> int:
        """See the port."""
        return self._catalog.current_epoch

    def listed(self, topic_id: TopicId) -> list[Ledger]:
        """See the port."""
        with self._catalog.lock:
            return [self._catalog.ledger_rows[ledger_id] for ledger_id in self._catalog.lists.get(topic_id, [])]

    def last(self, topic_id: TopicId) -> Ledger | None:
        """See the port."""
        return next(reversed(self.listed(topic_id)), None)

    def create(self, topic_id: TopicId, *, application: str) -> LedgerStatement:
        """See the port."""
        with self._catalog.lock:
            topic = self._catalog.topic(topic_id, active=True)
            ledger_id = LedgerId(self._catalog.next_ledger)
            self._catalog.next_ledger += 1
            self._catalog.ledger_rows[ledger_id] = Ledger(
                ledger_id=ledger_id,
                topic_id=topic_id,
                component=Component.MANAGED_LEDGER,
                state=LedgerState.CREATING,
                entries=0,
                size_bytes=0,
                last_segment=-1,
                generation=0,
                created_us=self._catalog.now_us,
                closed_us=None,
            )
            owner = LedgerOwner(
                application=application,
                component=Component.MANAGED_LEDGER,
                topic_id=topic_id,
                topic=topic.name,
                keys={},
            )
            return LedgerStatement(
                owner=owner,
                ledger_id=ledger_id,
                created_us=self._catalog.now_us,
                epoch=self._catalog.current_epoch,
            )

    def attach(self, ledger_id: LedgerId, *, after: LedgerId | None) -> bool:
        """See the port."""
        with self._catalog.lock:
            rows = self._catalog.ledger_rows
            newborn = rows.get(ledger_id)
            if newborn is None:
                return False
            self._catalog.topic(newborn.topic_id, active=True)
            listed = self._catalog.lists[newborn.topic_id]
            if ledger_id in listed:
                return True
            last = listed[-1] if listed else None
            if last != after or (last is not None and ledger_id < last):
                self._catalog._retire(ledger_id)
                return False
            if last is not None and rows[last].state is LedgerState.OPEN:
                rows[last] = replace(rows[last], state=LedgerState.CLOSED, closed_us=self._catalog.now_us)
            rows[ledger_id] = replace(newborn, state=LedgerState.OPEN)
            listed.append(ledger_id)
            return True

    def segments(self, ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        """See the port."""
        with self._catalog.lock:
            rows = self._catalog.segment_rows.get(ledger_id, [])
            return [row for row in rows if row.first_entry + row.entries > from_entry]

    def producer_sequences(self, topic_id: TopicId, producers: Iterable[str]) -> dict[str, int]:
        """See the port."""
        with self._catalog.lock:
            found = {name: self._catalog.sequences.get((topic_id, name)) for name in producers}
        return {name: last for name, last in found.items() if last is not None}


class FakeCursors:
    """The `Cursors` port."""

    def __init__(self, catalog: FakeCatalog) -> None:
        self._catalog = catalog

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> Subscription:
        """See the port."""
        with self._catalog.lock:
            self._catalog.topic(topic_id, active=True)
            existing = self._catalog.cursor_rows.get((topic_id, name))
            if existing:
                return existing
            spans = self._catalog.spans(topic_id)
            start = BEFORE_ANY
            if spans:
                start = spans[-1].last if latest else Position(spans[0].ledger_id, -1)
            return self._store(topic_id, name, cursors.advance(CursorState(start), spans))

    def get(self, topic_id: TopicId, name: str) -> Subscription:
        """See the port."""
        with self._catalog.lock:
            found = self._catalog.cursor_rows.get((topic_id, name))
        if found is None:
            raise UnknownObject("subscription", expected="an existing subscription", found=name)
        return found

    def all(self, topic_id: TopicId) -> list[Subscription]:
        """See the port."""
        with self._catalog.lock:
            return [row for key, row in sorted(self._catalog.cursor_rows.items()) if key[0] == topic_id]

    def seek(self, topic_id: TopicId, name: str, position: Position) -> Subscription:
        """See the port."""
        with self._catalog.lock:
            self._catalog.topic(topic_id, active=True)
            self.get(topic_id, name)
            return self._store(topic_id, name, cursors.seek(position, self._catalog.spans(topic_id)))

    def _store(self, topic_id: TopicId, name: str, state: CursorState) -> Subscription:
        existing = self._catalog.cursor_rows.get((topic_id, name))
        created_us = existing.created_us if existing else self._catalog.now_us
        row = Subscription(name=name, state=state, created_us=created_us)
        self._catalog.cursor_rows[topic_id, name] = row
        return row


class FakeCommits:
    """The `Commits` port."""

    def __init__(self, catalog: FakeCatalog) -> None:
        self._catalog = catalog

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """See the port."""
        self._suffer(Moment.BEFORE)
        with self._catalog.lock:
            self._catalog.batches.append(len(writes))
            results = [self._one(write) for write in writes]
        self._suffer(Moment.AFTER)
        return results

    def _suffer(self, moment: Moment) -> None:
        with self._catalog.lock:
            planned = self._catalog.misfortunes
            if not planned or planned[0].moment is not moment:
                return
            misfortune = planned.pop(0)
        misfortune.action()
        error = misfortune.error()
        if error is not None:
            raise error

    def _one(self, write: Write) -> WriteResult:
        try:
            return self._register(write) if isinstance(write, RegisterSegment) else self._acknowledge(write)
        except SextonError as refused:
            return refused

    def _register(self, write: RegisterSegment) -> Registered:
        if write.epoch != self._catalog.current_epoch:
            raise StaleCatalog(f"append: expected catalog epoch {self._catalog.current_epoch}, found {write.epoch}")
        self._catalog.topic(write.topic_id, active=True)
        ledger = self._catalog.ledger_rows.get(write.ledger_id)
        if ledger is None or ledger.topic_id != write.topic_id or ledger.state is not LedgerState.OPEN:
            raise LedgerFenced(f"ledger {write.ledger_id}: expected state OPEN")
        if write.number <= ledger.last_segment:
            raise AlreadyExists(f"ledger {write.ledger_id}: expected a segment above {ledger.last_segment}")
        self._advance_producers(write)
        row = Segment(
            ledger_id=write.ledger_id,
            number=write.number,
            first_entry=ledger.entries,
            entries=write.entries,
            size_bytes=write.size_bytes,
        )
        self._catalog.segment_rows.setdefault(write.ledger_id, []).append(row)
        grown = replace(
            ledger,
            entries=ledger.entries + write.entries,
            size_bytes=ledger.size_bytes + write.size_bytes,
            last_segment=write.number,
        )
        self._catalog.ledger_rows[write.ledger_id] = grown
        return Registered(first_entry=ledger.entries, ledger_entries=grown.entries, ledger_size_bytes=grown.size_bytes)

    def _advance_producers(self, write: RegisterSegment) -> None:
        if write.entries < 1:
            raise InvalidInput("entries", expected="1 or more", found=write.entries)
        known = self._catalog.sequences
        for part in write.producers:
            last = known.get((write.topic_id, part.producer), -1)
            if part.first <= last:
                raise ProducerFenced(f"producer {part.producer!r}: expected an id above {last}, found {part.first}")
        known.update({(write.topic_id, part.producer): part.last for part in write.producers})

    def _acknowledge(self, write: Acknowledge) -> Acknowledged:
        row = self._catalog.cursors.get(write.topic_id, write.subscription)
        spans = self._catalog.spans(write.topic_id)
        state = cursors.acknowledge(row.state, write.positions, spans)
        if write.up_to is not None:
            state = cursors.acknowledge_to(state, write.up_to, spans)
        self._catalog.cursors._store(write.topic_id, write.subscription, state)
        return Acknowledged(mark_delete=state.mark_delete)
