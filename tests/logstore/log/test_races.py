"""Lost races, unknown outcomes and short outages: nothing is lost, nothing is told too early."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from logstore.errors import (
    AlreadyExists,
    CatalogBusy,
    LedgerFenced,
    OutcomeUnknown,
    PreconditionFailed,
    SextonError,
    StoreUnavailable,
)
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.entries import ProducedEntries
from logstore.log.ledger_object_keys import segment_key, segment_number_from_key
from logstore.log.ledgers import LedgerState
from logstore.log.segment_format import EXTENT_FIELD, UPLOAD_ID_FIELD
from logstore.log.services import TopicLogs
from logstore.log.services.segment_placement import PlacementAttempts
from logstore.ports.catalog.log import (
    GroupCommitResult,
    GroupCommitWrite,
    Ledger,
    RegisterSegmentWrite,
    Segment,
    TopicState,
)
from logstore.positions import LedgerId, Position, TopicId
from tests.fakes.catalog import Misfortune, Moment
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.log.world import World, numbered, once, plain

_FIRST_SEGMENT = segment_key(LedgerId(0), 1)


def _warm(world: World) -> TopicLogs:
    """A process that has appended once: ledger 0, segment 0."""
    process = world.process()
    process.append(world.topic, plain(b"warm"))
    return process


def _meanwhile(action: Callable[[], object]) -> Misfortune:
    """Something happens between a writer's upload and its registration."""
    return Misfortune(moment=Moment.BEFORE, error=lambda: None, action=once(action))


def test_race_for_a_number_is_settled_by_the_store_and_the_loser_looks_ahead(world: World) -> None:
    """A taken key is never overwritten; the loser goes up to 16 further, and gaps are legal."""
    one, two = _warm(world), _warm(world)
    first = world.objects.get(_FIRST_SEGMENT)
    one.append(world.topic, plain(b"one"))
    assert two.append(world.topic, plain(b"two")).first == Position(LedgerId(0), 3)
    again = world.objects.get(_FIRST_SEGMENT)
    assert first is not None
    assert again is not None
    assert first.body == again.body
    numbers = [segment_number_from_key(key) or 0 for key in world.segments()]
    assert numbers == sorted(numbers)
    assert numbers[-1] - numbers[-2] <= 16
    assert world.payloads() == [b"warm", b"warm", b"one", b"two"]


def test_two_processes_that_append_in_turn_upload_nothing_in_vain(world: World) -> None:
    """Each has lost once; from then on it asks where the log ends first, as long as the other goes on."""
    one, two = _warm(world), _warm(world)
    for process in (one, two):
        process.append(world.topic, plain(b"lost"))
    wasted = _uploads(world) - len(world.segments())
    for _ in range(10):
        for process in (one, two):
            process.append(world.topic, plain(b"in turn"))
    assert _uploads(world) - len(world.segments()) == wasted


def test_process_that_is_alone_again_asks_once_more_and_then_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own hint is as good as the catalog's answer."""
    one, two = _warm(world), _warm(world)
    one.append(world.topic, plain(b"lost"))
    two.append(world.topic, plain(b"last of the other"))
    asked, real = list[TopicId](), world.catalog.ledgers.last_ledger

    def last(topic_id: TopicId) -> Ledger | None:
        asked.append(topic_id)
        return real(topic_id)

    monkeypatch.setattr(world.catalog.ledgers, "last_ledger", last)
    counts = []
    for _ in range(4):
        one.append(world.topic, plain(b"alone"))
        counts.append(len(asked))
    assert counts == [1, 2, 2, 2]


def test_race_lost_at_registration_uploads_again_under_a_later_number(world: World) -> None:
    """Registered numbers only grow, so a late registration below one is refused and repeated above it."""
    process, other = _warm(world), world.process()
    world.objects.put_if_absent(segment_key(LedgerId(0), 1), b"left by a crash", metadata={})
    world.catalog.misfortunes.append(_meanwhile(lambda: [other.append(world.topic, plain(b"x")) for _ in range(20)]))
    process.append(world.topic, plain(b"late"))
    assert world.payloads() == [b"warm", *[b"x"] * 20, b"late"]
    numbers = [segment_number_from_key(key) or 0 for key in world.segments()]
    assert numbers == sorted(set(numbers))


def test_race_slow_writer_among_quick_ones_gets_through(world: World) -> None:
    """Whoever loses looks further ahead each time, so a large upload does not starve."""
    process, other = _warm(world), world.process()
    overtaken: list[int] = []
    overtaking: list[bool] = []

    def overtake() -> None:
        overtaking.append(True)
        overtaken.append(1)
        for _ in range(25):
            other.append(world.topic, plain(b"x"))
        overtaking.clear()

    world.objects.plan(
        Fault(
            operation=StoreOperation.PUT,
            kind=FaultKind.CALL,
            action=overtake,
            times=10**6,
            matches=lambda _key: not overtaking,
        )
    )
    process.append(world.topic, plain(b"slow"))
    assert len(overtaken) < 10
    assert world.payloads().count(b"slow") == 1


def _confirmed(world: World) -> list[str]:
    """What uploads say that are of no append."""
    seen = [world.objects.head(key) for key in world.objects.keys if segment_number_from_key(key) is not None]
    return [metadata[EXTENT_FIELD] for _, metadata in filter(None, seen) if UPLOAD_ID_FIELD not in metadata]


def _losing(world: World, monkeypatch: pytest.MonkeyPatch) -> TopicLogs:
    """A process whose next append uploads below the number of another one, and whose numbers are no longer random."""
    monkeypatch.setattr(random, "randint", lambda least, _: least + 1)
    one, two = _warm(world), _warm(world)
    one.append(world.topic, plain(b"one"))
    return two


def test_race_lost_is_confirmed_in_storage_before_it_is_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loser that leaves numbers free: storage would not tell where it stands. Others put one object."""
    process = _losing(world, monkeypatch)
    before = len(world.objects.keys)
    process.append(world.topic, plain(b"two", b"2"))
    last = world.catalog.ledger_rows[LedgerId(0)]
    assert f"{last.last_segment}:{last.entries}" in _confirmed(world)
    assert len(world.objects.keys) == before + 3, "what was refused, what was registered, and the confirmation"
    process.append(world.topic, plain(b"next"))
    assert len(world.objects.keys) == before + 4
    assert world.payloads()[-3:] == [b"two", b"2", b"next"]


def test_race_whose_confirmation_fails_is_not_answered_as_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is registered all the same, which a producer with sequence ids is told when it asks again."""
    process = _losing(world, monkeypatch)
    said, real = list[str](), world.objects.put_if_absent

    def put(key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        if UPLOAD_ID_FIELD not in metadata:
            said.append(metadata[EXTENT_FIELD])
            raise StoreUnavailable("planned")
        real(key, body, metadata=metadata)

    world.objects.put_if_absent = put  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown, match="registered, and storage was not told: planned"):
        process.append(world.topic, numbered([1]))
    del world.objects.put_if_absent
    last = world.catalog.ledger_rows[LedgerId(0)]
    assert set(said) == {f"{last.last_segment}:{last.entries}"}
    assert len(said) > 1, "a blip is borne"
    assert process.append(world.topic, numbered([1])).duplicates == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_race_crash_at_its_confirmation_stores_once_and_lets_others_append(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It is registered and not answered: a producer that asks again is told so, and others go on behind it."""
    process = _losing(world, monkeypatch)
    before = _confirmed(world)
    monkeypatch.setattr(random, "randint", lambda least, _: least + 1)
    arm(f"append.put_confirmation.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        process.append(world.topic, numbered([1]))
    disarm_all_and_take_hits()
    assert len(_confirmed(world)) == len(before) + (moment == "after")
    other = world.process()
    assert other.append(world.topic, numbered([1])).duplicates == 1
    other.append(world.topic, plain(b"behind"))
    assert world.payloads()[-2:] == [b"p1", b"behind"]


def test_race_confirmation_that_is_there_and_reported_as_failed_is_put_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another number: two that say the same do no harm."""
    numbers = iter([2, 70_000, 70_001])
    process = _losing(world, monkeypatch)
    before = _confirmed(world)
    monkeypatch.setattr(random, "randint", lambda *_: next(numbers))
    arm("append.put_confirmation.reported_failed", "fail")
    process.append(world.topic, plain(b"two"))
    disarm_all_and_take_hits()
    last = world.catalog.ledger_rows[LedgerId(0)]
    assert sorted(_confirmed(world)) == sorted([*before, *2 * [f"{last.last_segment}:{last.entries}"]])


def test_race_number_of_a_confirmation_that_is_taken_is_another_one_the_next_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is overwritten."""
    numbers = iter([2, 70_000, 70_001])
    process = _losing(world, monkeypatch)
    monkeypatch.setattr(random, "randint", lambda *_: next(numbers))
    number = world.catalog.ledger_rows[LedgerId(0)].last_segment + 2
    world.objects.put_if_absent(
        segment_key(LedgerId(0), number + 70_000), b"a stranger's", metadata={UPLOAD_ID_FIELD: "x"}
    )
    process.append(world.topic, plain(b"two"))
    last = world.catalog.ledger_rows[LedgerId(0)]
    assert f"{last.last_segment}:{last.entries}" in _confirmed(world)


def test_race_lost_for_ever_gives_up(world: World) -> None:
    """Bounded: a prefix full of strangers' objects is an error, not a loop."""
    process = _warm(world)
    world.objects.plan(
        Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE, times=10**6, error=lambda: AlreadyExists("planned"))
    )
    with pytest.raises(CatalogBusy, match="lost 25 races"):
        process.append(world.topic, plain(b"x"))
    assert world.payloads() == [b"warm"]


def test_race_ledger_rolled_under_a_writer_sends_it_to_the_next_one(world: World) -> None:
    """A write after the close fails and goes where it is readable (apache/bookkeeper#4462, #4812)."""
    process, other = _warm(world), world.process()
    world.catalog.misfortunes.append(_meanwhile(lambda: other.roll(world.topic)))
    found = process.append(world.topic, plain(b"x"))
    assert found.first == Position(LedgerId(1), 0)
    assert world.payloads() == [b"warm", b"x"]


def test_race_ledger_rolled_and_trimmed_under_a_writer_sends_it_to_the_next_one(world: World) -> None:
    """Nothing is acknowledged into a ledger that was deleted (apache/bookkeeper#4462)."""
    process, other = _warm(world), world.process()

    def roll_and_trim() -> None:
        other.roll(world.topic)
        world.catalog.detach(world.topic.topic_id, [LedgerId(0)])

    world.catalog.misfortunes.append(_meanwhile(roll_and_trim))
    assert process.append(world.topic, plain(b"x")).first == Position(LedgerId(1), 0)
    assert world.payloads() == [b"x"]


def test_race_ledger_closed_with_none_behind_it_is_rolled_by_the_writer(world: World) -> None:
    """A process that died between close and open, or a forced detach, leaves no topic that takes nothing."""
    process = _warm(world)
    world.catalog.misfortunes.append(_meanwhile(lambda: world.catalog.detach(world.topic.topic_id, [LedgerId(0)])))
    assert process.append(world.topic, plain(b"x")).first == Position(LedgerId(1), 0)


def test_race_ledger_known_to_be_closed_gets_no_upload(world: World) -> None:
    """An object below a closed ledger could only become an orphan."""
    _warm(world)
    row = world.catalog.ledger_rows[LedgerId(0)]
    world.catalog.ledger_rows[LedgerId(0)] = replace(row, state=LedgerState.CLOSED)
    assert world.process().append(world.topic, plain(b"x")).first == Position(LedgerId(1), 0)
    assert _FIRST_SEGMENT not in world.objects.keys


def test_race_ledger_fenced_though_listed_as_open_is_left_behind(world: World) -> None:
    """A ledger that refused once is rolled by its writer, whatever an old view says of it."""
    process = _warm(world)
    real = world.catalog.commits.commit_writes

    def commit(writes: Sequence[GroupCommitWrite]) -> list[GroupCommitResult]:
        (write,) = writes
        if isinstance(write, RegisterSegmentWrite) and write.ledger_id == 0:
            return [LedgerFenced("planned")]
        return real(writes)

    world.catalog.commits.commit_writes = commit  # type: ignore[method-assign]
    assert process.append(world.topic, plain(b"x")).first == Position(LedgerId(1), 0)


def test_race_numbers_are_above_all_that_is_known_and_tried(world: World) -> None:
    """The next one while nothing was lost; then ahead at random, and further with every loss, up to the last key."""
    _warm(world)
    ledger = world.catalog.ledger_rows[LedgerId(0)]
    race = PlacementAttempts(deadline_s=0.0)
    assert race.next_number(ledger) == 1
    race.highest_tried_number_by_ledger[ledger.ledger_id] = 7
    assert race.next_number(ledger) == 8
    for losses, reach in [(1, 16), (2, 32), (3, 64), (40, 1 << 16)]:
        race.lost_races = losses
        drawn = {race.next_number(ledger) for _ in range(500)}
        assert 8 <= min(drawn) <= max(drawn) <= 7 + reach
        assert len(drawn) > 10
    assert race.has_numbers(replace(ledger, last_segment=99_999_999 - 3 * (1 << 16)))
    assert not race.has_numbers(replace(ledger, last_segment=99_999_999 - 3 * (1 << 16) + 1))


def test_race_ledger_without_numbers_left_is_rolled(world: World) -> None:
    """Keys have eight digits; the ledger after has all of them again."""
    _warm(world)
    row = world.catalog.ledger_rows[LedgerId(0)]
    world.catalog.ledger_rows[LedgerId(0)] = replace(row, last_segment=99_999_998)
    assert world.process().append(world.topic, plain(b"x")).first == Position(LedgerId(1), 0)


def test_race_of_one_producer_in_two_processes_stores_each_entry_once(world: World) -> None:
    """The loser reads the sequences again, drops what became a duplicate and stores the rest."""
    process, other = _warm(world), world.process()
    process.append(world.topic, numbered([0]))
    world.catalog.misfortunes.append(_meanwhile(lambda: other.append(world.topic, numbered([1, 2]))))
    found = process.append(world.topic, numbered([1, 2, 3]))
    assert (found.count, found.duplicates) == (1, 2)
    assert world.payloads() == [b"warm", b"p0", b"p1", b"p2", b"p3"]


def test_race_of_one_producer_lost_whole_is_all_duplicates(world: World) -> None:
    """Nothing is left to store, and nothing is."""
    process, other = _warm(world), world.process()
    world.catalog.misfortunes.append(_meanwhile(lambda: other.append(world.topic, numbered([0, 1]))))
    found = process.append(world.topic, numbered([0, 1]))
    assert (found.count, found.duplicates, found.first) == (0, 2, None)
    assert world.payloads() == [b"warm", b"p0", b"p1"]


def test_race_with_a_rebuilt_catalog_is_settled_by_asking_it_again(world: World) -> None:
    """A process that remembers another epoch forgets all it knew."""
    process = _warm(world)
    process.append(world.topic, numbered([0]))
    world.catalog.current_epoch = 2
    world.catalog.sequences.clear()
    assert process.append(world.topic, numbered([0])).count == 1
    assert len(world.payloads()) == 3


def test_race_of_equal_contents_in_two_processes_stores_both(world: World) -> None:
    """Two uploads of the same bytes under one key are two appends: only one of them owns the object."""
    one, two = _warm(world), _warm(world)
    world.catalog.misfortunes.append(_meanwhile(lambda: two.append(world.topic, plain(b"same"))))
    one.append(world.topic, plain(b"same"))
    assert world.payloads() == [b"warm", b"warm", b"same", b"same"]


def _unknown(moment: Moment) -> Misfortune:
    return Misfortune(moment=moment)


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("produced", [plain(b"x"), numbered([0])])
def test_unknown_outcome_is_re_read_and_stored_once(world: World, moment: Moment, produced: ProducedEntries) -> None:
    """Landed or not, the entry is there once and its place is told, with a producer and without."""
    process = _warm(world)
    world.catalog.misfortunes.append(_unknown(moment))
    found = process.append(world.topic, produced)
    assert found.first == Position(LedgerId(0), 1)
    assert len(world.payloads()) == 2
    assert len(world.catalog.batches) == 2, "what landed is found by reading, not by committing again"
    assert process.append(world.topic, plain(b"next")).first == Position(LedgerId(0), 2)


def test_unknown_outcome_of_a_commit_that_lands_late_is_not_stored_twice(world: World) -> None:
    """The first try lands after the re-read missed it: the second is refused by its number, and read for that."""
    process = _warm(world)
    held: list[Callable[[], None]] = []
    real = world.catalog.commits.commit_writes

    def commit(writes: Sequence[GroupCommitWrite]) -> list[GroupCommitResult]:
        if not held:
            held.append(once(lambda: real(writes)))
            raise OutcomeUnknown("planned: still under way")
        held[0]()
        return real(writes)

    world.catalog.commits.commit_writes = commit  # type: ignore[method-assign]
    assert process.append(world.topic, plain(b"x")).first == Position(LedgerId(0), 1)
    assert world.payloads() == [b"warm", b"x"]


def test_unknown_outcome_of_a_commit_that_landed_before_a_roll_is_found(world: World) -> None:
    """A ledger that was closed meanwhile refuses the repetition; the segment in it counts."""
    process, other = _warm(world), world.process()
    real = world.catalog.ledgers.list_segments
    misses = iter([True, False])

    def segments(ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        if next(misses, False):
            other.roll(world.topic)
            raise CatalogBusy("planned")
        return real(ledger_id, from_entry=from_entry)

    world.catalog.ledgers.list_segments = segments  # type: ignore[method-assign]
    world.catalog.misfortunes.append(_unknown(Moment.AFTER))
    assert process.append(world.topic, plain(b"x")).first == Position(LedgerId(0), 1)
    assert world.payloads() == [b"warm", b"x"]


def test_unknown_outcome_for_ever_is_told_as_such(world: World) -> None:
    """With nobody to ask, the caller is not told that nothing happened."""
    process = _warm(world)
    world.catalog.misfortunes.append(_unknown(Moment.AFTER))
    world.catalog.misfortunes.extend(
        Misfortune(moment=Moment.BEFORE, error=lambda: StoreUnavailable("planned")) for _ in range(50)
    )
    real = world.catalog.ledgers.list_segments

    def segments(ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        raise StoreUnavailable("planned")

    world.catalog.ledgers.list_segments = segments  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        process.append(world.topic, numbered([0]))
    world.catalog.misfortunes.clear()
    world.catalog.ledgers.list_segments = real  # type: ignore[method-assign]
    assert process.append(world.topic, numbered([0])).duplicates == 1
    assert world.payloads() == [b"warm", b"p0"]


@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.AFTER])
def test_outage_of_the_store_is_ridden_out_under_the_same_number(world: World, kind: FaultKind) -> None:
    """An upload that landed but was reported as failed is recognised as our own; no orphan is left."""
    process = _warm(world)
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=kind, times=4))
    process.append(world.topic, plain(b"x"))
    assert world.payloads() == [b"warm", b"x"]
    assert sum(key.endswith(".parquet") for key in world.objects.keys) == 2
    assert world.slept == sorted(world.slept)
    assert len(world.slept) == 4


class _Forgetful(FakeObjectStore):
    """Refuses a taken key whoever took it: it does not know an earlier call's upload again."""

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        if key in self._held:
            raise AlreadyExists("planned: taken")
        super().put_if_absent(key, body, metadata=metadata)


def test_outage_of_a_store_that_refuses_our_own_upload_leaves_no_orphan() -> None:
    """The refused object carries the mark of this very upload, so it is registered and not uploaded again."""
    with World(objects=_Forgetful()) as world:
        process = _warm(world)
        world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.AFTER))
        process.append(world.topic, plain(b"x"))
        assert world.payloads() == [b"warm", b"x"]
        assert sum(key.endswith(".parquet") for key in world.objects.keys) == 2


def test_outage_of_the_store_that_lasts_is_raised_and_nothing_is_registered(world: World) -> None:
    """Bounded tries, then the caller decides."""
    process = _warm(world)
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.AFTER, times=5))
    with pytest.raises(StoreUnavailable):
        process.append(world.topic, plain(b"x"))
    assert world.payloads() == [b"warm"]


@pytest.mark.parametrize("error", [CatalogBusy("planned"), StoreUnavailable("planned")])
def test_outage_of_the_catalog_is_ridden_out(world: World, error: SextonError) -> None:
    """The object is there already: only the registration is repeated."""
    process = _warm(world)
    world.catalog.misfortunes.extend(Misfortune(moment=Moment.BEFORE, error=lambda: error) for _ in range(4))
    process.append(world.topic, plain(b"x"))
    assert world.payloads() == [b"warm", b"x"]
    assert sum(key.endswith(".parquet") for key in world.objects.keys) == 2


@pytest.mark.parametrize("error", [CatalogBusy("planned"), StoreUnavailable("planned")])
def test_outage_of_the_catalog_that_lasts_is_raised(world: World, error: SextonError) -> None:
    """Known not to have happened, so the error says so."""
    process = _warm(world)
    world.catalog.misfortunes.extend(Misfortune(moment=Moment.BEFORE, error=lambda: error) for _ in range(5))
    with pytest.raises(type(error)):
        process.append(world.topic, plain(b"x"))
    assert world.payloads() == [b"warm"]


def test_writer_that_has_not_registered_in_time_gives_up(world: World) -> None:
    """Reconciliation may take an older object for an orphan: after the time-out it is never registered."""
    process = world.process(registration_timeout_s=600)
    process.append(world.topic, plain(b"warm"))
    world.objects.plan(
        Fault(
            operation=StoreOperation.PUT, kind=FaultKind.CALL, action=once(lambda: world.catalog.advance(seconds=601))
        )
    )
    with pytest.raises(CatalogBusy, match="giving up"):
        process.append(world.topic, plain(b"x"))
    assert world.payloads() == [b"warm"]
    assert process.append(world.topic, plain(b"y")).count == 1


def test_race_topic_deleted_under_a_writer_uploads_no_second_time(world: World) -> None:
    """A producer that goes on trying leaves one object at the most, and not one a try."""
    process = world.process()
    process.append(world.topic, plain(b"a"))
    world.catalog.set_state(world.topic.topic_id, TopicState.DELETING)
    world.catalog.detach(world.topic.topic_id, list(world.catalog.lists[world.topic.topic_id]))
    before = len(world.objects.keys)
    for _ in range(3):
        with pytest.raises(PreconditionFailed, match="DELETING"):
            process.append(world.topic, plain(b"late"))
    assert len(world.objects.keys) - before <= 1


def test_load_again_takes_up_what_others_did_meanwhile(world: World) -> None:
    """A topic whose bundle changed hands is read anew: the next append uploads once, and where the log ends."""
    process = _warm(world)
    world.process().roll(world.topic)
    assert process.reload_last_ledgers(lambda topic: topic == world.topic) == 1
    assert process.append(world.topic, plain(b"next")).first == Position(LedgerId(1), 0)
    assert _uploads(world) == 2


def test_load_again_leaves_other_topics_alone(world: World) -> None:
    """Of another bundle: its hint is as it was, and costs an upload in vain."""
    process = _warm(world)
    world.process().roll(world.topic)
    assert process.reload_last_ledgers(lambda topic: False) == 0
    assert process.append(world.topic, plain(b"next")).first == Position(LedgerId(1), 0)
    assert _uploads(world) == 3


def _uploads(world: World) -> int:
    return sum(key.endswith(".parquet") for key in world.objects.keys)
