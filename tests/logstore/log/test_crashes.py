"""Death between any two effects: what was acknowledged is there, once; what was not is there whole or not at all."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.errors import OutcomeUnknown, RetryableError, SextonError, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.entries import ProducedEntries
from logstore.log.ledger_object_keys import owner_digest_from_key
from logstore.log.services import AppendResult, RollPolicy, TopicLogs
from logstore.positions import Position
from tests.fakes.catalog import Misfortune, Moment
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.log.world import World, numbered, plain

_EFFECTS = ["roll.create_row", "roll.put_meta", "roll.attach", "append.put_segment", "append.register"]
_DEATHS = [f"{effect}.{moment}" for effect in _EFFECTS for moment in ("before", "after")]
_ONE_EACH = RollPolicy(max_entries=1)


def test_crash_points_are_all_there_are(world: World) -> None:
    """An effect added later must be added to these tests."""
    arm("none", "fail")
    process = world.process(_ONE_EACH)
    process.append(world.topic, plain(b"a"))
    process.append(world.topic, plain(b"b"))
    process.roll(world.topic)
    names = {point.rpartition(".")[0] for point in disarm_all_and_take_hits()}
    assert {name for name in names if not name.startswith("catalog.")} == set(_EFFECTS)


@pytest.mark.parametrize("policy", [None, _ONE_EACH])
@pytest.mark.parametrize("point", _DEATHS)
def test_crash_of_an_append_leaves_whole_or_nothing_and_a_repetition_stores_once(
    world: World, point: str, policy: RollPolicy | None
) -> None:
    """Another process repeats what was not acknowledged: no loss, no duplicate, never half (apache/pulsar#13526)."""
    policies = [policy] if policy else []
    first = world.process(*policies)
    acknowledged = not point.startswith("roll.") or policy is not None
    if acknowledged:
        first.append(world.topic, numbered([0, 1]))
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):  # noqa: PT012 - the second append reaches the points of a roll
        first.append(world.topic, numbered([2, 3]))
        first.append(world.topic, numbered([4]))
    disarm_all_and_take_hits()
    base = [b"p0", b"p1"] if acknowledged else []
    assert world.payloads() in (base, [*base, b"p2", b"p3"])
    world.process(*policies).append(world.topic, numbered([2, 3]))
    assert world.payloads() == [*base, b"p2", b"p3"]


@pytest.mark.parametrize("point", [death for death in _DEATHS if death.startswith("roll.")])
def test_crash_of_a_roll_leaves_a_topic_that_goes_on(world: World, point: str) -> None:
    """Every ledger row is in the list or in none; objects without a listed row are only statements."""
    process = world.process()
    process.append(world.topic, plain(b"a"))
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        process.roll(world.topic)
    disarm_all_and_take_hits()
    other = world.process()
    other.append(world.topic, plain(b"b"))
    other.roll(world.topic)
    other.append(world.topic, plain(b"c"))
    assert world.payloads() == [b"a", b"b", b"c"]
    listed = {ledger.ledger_id for ledger in world.catalog.ledgers.list_ledgers(world.topic.topic_id)}
    newborn = set(world.catalog.ledger_rows) - listed
    assert all(world.catalog.ledger_rows[ledger].entries == 0 for ledger in newborn)
    assert sum(owner_digest_from_key(key) is not None for key in world.objects.keys) >= len(listed)


@pytest.mark.parametrize("effect", _EFFECTS)
@pytest.mark.parametrize("moment", ["before", "after", "reported_failed"])
@pytest.mark.parametrize("produced", [plain(b"x", b"y"), numbered([0, 1])])
def test_effect_reported_as_failed_is_ridden_out_by_the_same_process(
    world: World, effect: str, moment: str, produced: ProducedEntries
) -> None:
    """Done or not done, one failure is no reason to fail an append, and never to store it twice."""
    process = world.process()
    arm(f"{effect}.{moment}", "fail")
    found = process.append(world.topic, produced)
    assert f"{effect}.{moment}" in disarm_all_and_take_hits()
    assert found.count == 2
    assert [entry.position for entry in world.entries()] == [found.first, found.last]


def test_crash_of_the_committing_thread_fails_the_append_and_repeats_safely(world: World) -> None:
    """The writer's death is everybody's, and the next process takes over."""
    process = world.process()
    process.append(world.topic, numbered([0]))
    world.catalog.misfortunes.append(Misfortune(moment=Moment.AFTER, error=lambda: SimulatedCrash("planned")))
    with pytest.raises(SimulatedCrash):
        process.append(world.topic, numbered([1]))
    with pytest.raises(StoreUnavailable, match="died"):
        process.append(world.topic, numbered([2]))
    assert world.process().append(world.topic, numbered([1, 2])).duplicates == 1
    assert world.payloads() == [b"p0", b"p1", b"p2"]


class _Producer:
    """Sends ascending ids, repeating each batch until it is answered, as a client would."""

    def __init__(self, world: World, name: str, processes: list[TopicLogs], seed: int) -> None:
        self._world = world
        self._name = name
        self._processes = processes
        self._random = random.Random(seed)
        self.answers: list[tuple[range, AppendResult]] = []

    def run(self) -> None:
        at = 0
        while at < 40:
            ids = range(at, at + self._random.randint(1, 3))
            self.answers.append((ids, self._send(ids)))
            at = ids.stop

    def _send(self, ids: range) -> AppendResult:
        for _ in range(200):
            process = self._random.choice(self._processes)
            try:
                if self._random.random() < 0.05:
                    process.roll(self._world.topic)
                return process.append(self._world.topic, numbered(ids, producer=self._name))
            except (RetryableError, OutcomeUnknown):
                continue
        raise AssertionError("never answered")


@pytest.mark.parametrize("seed", range(5))
def test_many_producers_processes_and_failures_store_every_entry_once_in_order(world: World, seed: int) -> None:
    """Under rolls, lost races, outages and unknown outcomes: exactly what was acknowledged, exactly once."""
    chance = random.Random(seed)
    processes = [world.process(RollPolicy(max_entries=20)) for _ in range(3)]
    for _ in range(60):
        kind = chance.choice([FaultKind.BEFORE, FaultKind.AFTER])
        world.objects.plan(Fault(operation=StoreOperation.PUT, kind=kind, matches=lambda _key: chance.random() < 0.05))
        error: SextonError = chance.choice([OutcomeUnknown("planned"), StoreUnavailable("planned")])
        moment = chance.choice(list(Moment)) if isinstance(error, OutcomeUnknown) else Moment.BEFORE
        world.catalog.misfortunes.append(Misfortune(moment=moment, error=lambda error=error: error))  # type: ignore[misc]
        world.catalog.misfortunes.extend([Misfortune(moment=Moment.BEFORE, error=lambda: None)] * 3)
    producers = [_Producer(world, f"p{at}-", processes, seed * 100 + at) for at in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(producer.run) for producer in producers]:
            done.result(60)
    entries = world.entries()
    by_position: dict[Position, bytes] = {entry.position: entry.payload or b"" for entry in entries}
    assert len(by_position) == len(entries)
    for producer in producers:
        name = producer._name
        stored = [entry.sequence_id for entry in entries if entry.producer == name]
        assert stored == list(range(producer.answers[-1][0].stop))
        for ids, answer in producer.answers:
            assert answer.count + answer.duplicates == len(ids)
            if answer.first:
                assert by_position[answer.first] == f"{name}{ids[-answer.count]}".encode()
