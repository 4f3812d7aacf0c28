"""One law: a subscription has acknowledged what a plain set of entries says, whatever snapshots, seeks and races do.

Processes with limits of their own change one cursor; while one of them writes to storage another one comes in
between, storage fails, or the process dies. After each step a process that knows nothing reads the whole state.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.cursors.services.subscriptions import CursorSnapshots, Subscriptions
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledgers import Component
from logstore.log.services import Clock
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.log.services.group_commit import GroupCommitter
from logstore.positions import LedgerId, Position, TopicId
from tests.contracts.catalog.steps import append, new_topic, roll
from tests.contracts.catalog.worlds import MemoryWorld, SqlWorld, World
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.migrated_catalogs import create_migrated_sqlite

_LIMITS = (1, 40, 90)
_NAME = "billing"
_POINTS = [
    f"{effect}.{moment}"
    for effect in (
        "catalog.create_component_ledger",
        "component.put_meta",
        "component.put_segment",
        "catalog.publish_snapshot",
        "catalog.fold_snapshot",
    )
    for moment in ("before", "after", "reported_failed")
]

Entry = tuple[LedgerId, int]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one process does; `choices` pick ledgers and entries among those that there are."""

    what: str
    process: int
    choices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A step, what comes in between at one of its writes to storage, and what goes wrong."""

    step: Step
    between: Step | None
    at_write: int
    point: str | None
    action: str


def _some(*what: str) -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        what=st.sampled_from(what),
        process=st.integers(0, len(_LIMITS) - 1),
        choices=st.lists(st.integers(0, 10_000), min_size=1, max_size=8).map(tuple),
    )


_turns = st.builds(
    Turn,
    step=_some("ack", "ack", "ack", "ack", "to", "seek", "settle", "append", "roll", "detach"),
    between=st.none() | _some("ack", "ack", "seek", "to", "settle", "detach"),
    at_write=st.integers(0, 1),
    point=st.none() | st.none() | st.sampled_from(_POINTS),
    action=st.sampled_from(["crash", "fail"]),
)


@dataclass
class _Play:
    """One topic, its processes, and the plain set."""

    world: World
    objects: FakeObjectStore = field(default_factory=FakeObjectStore)
    acknowledged: set[Entry] = field(default_factory=set)
    topic_id: TopicId = field(init=False)
    now_s: float = 0.0
    _open: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.topic_id = new_topic(self.world).topic_id
        append(self.world, self.topic_id, roll(self.world, self.topic_id))
        self.processes = [self.process(limit) for limit in _LIMITS]
        self.processes[0].subscribe(self.topic_id, _NAME, latest=False)

    def process(self, limit: int) -> Subscriptions:
        catalog = self.world.catalog
        clock = Clock(now_us=lambda: 1, monotonic_s=self._tick, sleep=lambda _: None)
        contents = ComponentLedgers(
            components=catalog.components,
            ledgers=catalog.ledgers,
            objects=self.objects,
            application="sexton",
            clock=clock,
        )
        snapshots = CursorSnapshots(
            cursors=catalog.cursors,
            ledgers=catalog.ledgers,
            component_ledgers=contents,
            inline_bytes=limit,
            clock=clock,
        )
        committer = self._open.enter_context(closing(GroupCommitter(catalog.commits.commit_writes)))
        return Subscriptions(
            cursors=catalog.cursors, transactions=catalog.transactions, committer=committer, snapshots=snapshots
        )

    def _tick(self) -> float:
        self.now_s += 3.0
        return self.now_s

    def close(self) -> None:
        self._open.close()

    def entries(self) -> list[Entry]:
        """Every entry of a listed ledger, in order."""
        spans = [ledger.span for ledger in self.world.catalog.ledgers.list_ledgers(self.topic_id)]
        return [(span.ledger_id, entry) for span in spans for entry in range(span.entries)]

    def play(self, turn: Turn) -> None:
        """One turn; a process that died is another one from then on."""
        if turn.between:
            self.objects.plan(*self._in_between(turn))
        if turn.point:
            arm(turn.point, turn.action)
        try:
            self.do(turn.step)
        except SimulatedCrash:
            self.processes[turn.step.process] = self.process(_LIMITS[turn.step.process])
        finally:
            disarm_all_and_take_hits()
            self.objects._faults.clear()

    def _in_between(self, turn: Turn) -> Iterator[Fault]:
        step = turn.between
        assert step
        if turn.at_write:
            yield Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, times=turn.at_write)
        yield Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lambda: self.do(step))

    def do(self, step: Step) -> None:
        """The step, on the set first: whatever fails behind the commit, the commit counts."""
        process, entries = self.processes[step.process], self.entries()
        chosen = [entries[choice % len(entries)] for choice in step.choices] if entries else []
        match step.what:
            case "ack" if chosen:
                self.acknowledged.update(chosen)
                process.acknowledge(self.topic_id, _NAME, positions=[Position(*entry) for entry in chosen])
            case "to" if chosen:
                self.acknowledged.update(entry for entry in entries if entry <= chosen[0])
                releases = self.world.catalog.cursors.get_cursor(self.topic_id, _NAME).releases
                process.acknowledge(self.topic_id, _NAME, up_to=Position(*chosen[0]), releases=releases)
            case "seek" if chosen:
                self.acknowledged = {entry for entry in entries if entry < chosen[0]}
                process.seek(self.topic_id, _NAME, Position(*chosen[0]))
            case "settle":
                process.advance_and_fold_cursors_with_snapshots(self.topic_id)
            case "append":
                append(self.world, self.topic_id, self._ledgers()[-1], entries=1 + step.choices[0] % 20)
            case "roll":
                append(self.world, self.topic_id, roll(self.world, self.topic_id))
            case "detach" if len(self._ledgers()) > 1:
                self.world.detach(self.topic_id, [self._ledgers()[step.choices[0] % (len(self._ledgers()) - 1)]])

    def _ledgers(self) -> list[LedgerId]:
        return [ledger.ledger_id for ledger in self.world.catalog.ledgers.list_ledgers(self.topic_id)]

    def check(self) -> None:
        """Neither less nor more than the set; and no cursor ledger that nothing names."""
        entries = self.entries()
        found = self.process(1_000).get(self.topic_id, _NAME).state
        covered = {entry for entry in entries if found.covers(Position(*entry))}
        assert covered == self.acknowledged & set(entries)
        listed = [
            one.ledger_id
            for one in self.world.catalog.components.list_ledgers(self.topic_id)
            if one.component is Component.MANAGED_CURSOR
        ]
        needed = self.world.catalog.cursors.get_cursor(self.topic_id, _NAME).snapshot_ledger
        assert listed == ([] if needed is None else [needed])
        stored = {int(key.split("/")[2], 16) for key in self.objects.keys}
        assert stored <= {*self.world.rows().ledgers, *self.world.intents()}

    def check_end(self) -> None:
        """Without traffic the cursor stands at the first entry that is not acknowledged (apache/pulsar#9136)."""
        self.process(1).advance_and_fold_cursors_with_snapshots(self.topic_id)
        self.check()
        mark = self.world.catalog.cursors.get_cursor(self.topic_id, _NAME).state.mark_delete
        behind = [entry for entry in self.entries() if entry not in self.acknowledged]
        first = Position(*behind[0]) if behind else None
        has_snapshot = self.world.catalog.cursors.get_cursor(self.topic_id, _NAME).snapshot_ledger is not None
        assert first is None or mark < first
        if has_snapshot:
            earlier = [entry for entry in self.entries() if first is None or Position(*entry) < first]
            assert not earlier or mark >= Position(*earlier[-1])


@contextmanager
def _memory() -> Iterator[World]:
    yield MemoryWorld()


@contextmanager
def _sqlite() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        found = SqlWorld(create_migrated_sqlite(Path(folder) / "catalog.db"))
        yield found
        found.database.close()


def _obey(make: Callable[[], Any], turns: list[Turn]) -> None:
    with make() as world:
        play = _Play(world)
        try:
            for turn in turns:
                play.play(turn)
                play.check()
            play.check_end()
        finally:
            play.close()


@pytest.mark.timeout(300)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(_turns, min_size=1, max_size=25))
def test_cursor_in_memory_is_the_plain_set(turns: list[Turn]) -> None:
    """Nothing acknowledged is lost, and nothing is invented (apache/pulsar#20638, #982)."""
    _obey(_memory, turns)


@pytest.mark.timeout(300)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(_turns, min_size=1, max_size=25))
def test_cursor_in_sql_is_the_plain_set(turns: list[Turn]) -> None:
    """The same on SQLite."""
    _obey(_sqlite, turns)
