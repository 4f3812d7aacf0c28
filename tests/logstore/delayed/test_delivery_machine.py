"""Consumers against a model: nothing early, nothing lost, nothing twice, whatever becomes of the index meanwhile.

Field cases 49, 57, 58, 61, 62, 65, 67 and 68: promise 6 as a consumer sees it.
"""

import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.delayed.services.consumers import Consumer
from logstore.delayed.tracker import IndexSnapshotGone
from logstore.errors import StoreUnavailable
from logstore.positions import Position
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.delivering import Process, World

_NAMES = ("billing", "shipping")
_DELAYS = (None, -5, 0, 3, 7, 20, 60, 400)
_OFTEN = {"receive": 8, "append": 4, "advance": 4, "seal": 2, "acknowledge": 2, "join": 3}


@dataclass
class _Attached:
    name: str
    consumer: Consumer
    out: set[Position] = field(default_factory=set)  # what it has neither given back nor acknowledged


class _Course:
    """Two subscriptions of one topic; any number of consumers, in one process after the other."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.subscribe(*_NAMES)
        self.acked: dict[str, set[Position]] = {name: set() for name in _NAMES}
        self.live: list[_Attached] = []
        self.process: Process = world.process()
        self.random = random.Random(0)
        self.failures = 0  # of the store, that no consumer has met yet
        for _ in _NAMES:
            self.join()

    def take(self, step: str, seed: int) -> None:
        """One step; what it chooses, it chooses by the seed."""
        self.random = random.Random(seed)
        getattr(self, step)()
        assert len(self.process.delivery._trackers) == bool(self.live)

    def join(self) -> None:
        name = self.random.choice(_NAMES)
        self.live.append(_Attached(name, self.process.delivery.create_consumer(self.world.topic, name)))

    def leave(self) -> None:
        if self.live:
            self.live.pop(self.random.randrange(len(self.live))).consumer.close()

    def crash(self) -> None:
        """The process ends without a word; what it had handed out may come again."""
        self.process, self.live = self.world.process(), []
        self.join()

    def append(self) -> None:
        self.world.append(*self.random.choices(_DELAYS, k=self.random.randint(1, 4)))

    def advance(self) -> None:
        self.world.advance(self.random.choice([1, 5, 20, 100, 11_000]))

    def receive(self) -> None:
        if self.live:
            self._receive(self.random.choice(self.live), self.random.randint(1, 12))

    def fail(self) -> None:
        """The store does not answer once, and what is received then or next comes again as if nothing had been."""
        self.world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE))
        self.failures += 1

    def _receive(self, one: _Attached, limit: int) -> None:
        may_come = self._available(one.name)
        try:
            got = [entry.position for entry in one.consumer.receive(limit)]
        except StoreUnavailable:
            self.failures -= 1
            assert self.failures >= 0
            return
        assert len({*got}) == len(got) <= limit
        there = {*got} & self.world.messages.keys()  # a trimmed one may have been fetched before
        assert there <= may_come
        assert len(got) == limit or there == may_come, f"left out: {sorted(may_come - there)}"
        one.out |= there

    def _available(self, name: str) -> set[Position]:
        """What is due, and neither acknowledged, held by a transaction, nor with a consumer."""
        held = {at for at in self.world.messages if at.entry_id in self.world.held.get(name, {}).get(at.ledger_id, ())}
        for one in self.live:
            one.out -= held if one.name == name else set()
        with_others = set[Position]().union(*(one.out for one in self.live if one.name == name))
        due = {at for at, ms in self.world.messages.items() if (ms or 0) <= self.world.now_ms}
        return due - self.acked[name] - with_others - held

    def nack(self) -> None:
        if self.live:
            one, given = self.random.choice(self.live), self._some()
            one.consumer.nack(given)
            one.out -= {*given}

    def acknowledge(self) -> None:
        name, given = self.random.choice(_NAMES), self._some()
        self.world.acknowledge(name, given)
        self.acked[name] |= {*given}
        self._take_back(name, {*given})

    def acknowledge_what_was_received(self) -> None:
        for one in self.live:
            self.world.acknowledge(one.name, sorted(one.out))
            self.acked[one.name] |= one.out
            one.out.clear()

    def hold(self) -> None:
        """A transaction acknowledges."""
        name = self.random.choice(_NAMES)
        self.world.hold(name, [at for at in self._some() if at not in self.acked[name]])

    def hold_until_seen(self) -> None:
        """And its consumers look, before it may be aborted."""
        self.hold()
        self.receive()

    def abort(self) -> None:
        self.world.held.pop(self.random.choice(_NAMES), None)

    def seek(self) -> None:
        if self.world.messages:
            name, to = self.random.choice(_NAMES), self.random.choice(sorted(self.world.messages))
            self.world.catalog.cursors.seek_cursor(self.world.topic.topic_id, name, to)
            self.acked[name] = {at for at in self.world.messages if at < to}
            self._take_back(name, {*self.world.messages})

    def seal(self) -> None:
        self.world.seal()

    def merge(self) -> None:
        if len(self.world.buckets.buckets) > 1:
            with suppress(IndexSnapshotGone):
                self.world.merge(self.random.randrange(len(self.world.buckets.buckets) - 1))

    def drop(self) -> None:
        if self.world.buckets.buckets:
            self.world.drop(self.random.randrange(len(self.world.buckets.buckets)))

    def lose(self) -> None:
        """A snapshot that is listed vanishes from storage."""
        if self.world.buckets.buckets:
            self.world.snapshots.files.pop(self.random.choice(self.world.buckets.buckets).bucket_id, None)

    def clear(self) -> None:
        self.world.clear()

    def trim(self) -> None:
        if len(self.world.catalog.lists[self.world.topic.topic_id]) > 2:
            self.world.trim()
            for one in self.live:
                one.out &= {*self.world.messages}

    def _some(self) -> list[Position]:
        return self.random.sample(sorted(self.world.messages), min(len(self.world.messages), self.random.randint(0, 6)))

    def _take_back(self, name: str, given: set[Position]) -> None:
        for one in self.live:
            one.out -= given if one.name == name else set()

    def drain(self) -> None:
        """At the end all that is not acknowledged comes, to whichever consumer asks."""
        self.world.advance(100_000)
        self.world.held.clear()
        self.crash()
        for name in _NAMES:
            self.live.append(_Attached(name, self.process.delivery.create_consumer(self.world.topic, name)))
            while self._available(name):
                self._receive(self.live[-1], 5)


_STEPS = [name for name in vars(_Course) if not name.startswith("_") and name not in {"take", "drain"}]
_WEIGHTED = [name for name in _STEPS for _ in range(_OFTEN.get(name, 1))]


_COURSES = given(
    steps=st.lists(st.tuples(st.sampled_from(_WEIGHTED), st.integers(0, 999)), min_size=20, max_size=100),
    ledger_entries=st.sampled_from([3, 8, 50]),
)


@settings(max_examples=60, deadline=None)
@_COURSES
def test_consumers_get_each_message_when_it_is_due_and_no_other(
    steps: list[tuple[str, int]], ledger_entries: int
) -> None:
    """Never early, never lost, never twice without a reason: each receipt is all that may come, up to its limit."""
    _go(steps, ledger_entries)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@settings(max_examples=1_000, deadline=None)
@_COURSES
def test_consumers_get_each_message_in_many_more_courses(steps: list[tuple[str, int]], ledger_entries: int) -> None:
    """The same, for `make faults`."""
    _go(steps, ledger_entries)


def _go(steps: list[tuple[str, int]], ledger_entries: int) -> None:
    with World(ledger_entries=ledger_entries) as world:
        course = _Course(world)
        for step, seed in steps:
            course.take(step, seed)
        course.drain()
