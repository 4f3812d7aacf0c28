"""Rolling: by limit, by hand, by age, against others."""

import pytest

from logstore.errors import CatalogBusy, PreconditionFailed
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import LedgerState
from logstore.log.services import RollPolicy, RollResult, TopicLogs
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, Position
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.builders import OWNER
from tests.logstore.log.world import World, once, plain


def _fill(process: TopicLogs, world: World, appends: int, payload: bytes = b"x") -> list[int]:
    """Ledger ids that the appends went to."""
    places = [process.append(world.topic, plain(payload)).first for _ in range(appends)]
    return [place.ledger_id for place in places if place]


def test_roll_by_entries_starts_the_next_ledger_at_the_limit(world: World) -> None:
    """The ledger that is full is closed by the append that finds it so."""
    process = world.process(RollPolicy(max_entries=2))
    assert _fill(process, world, 5) == [0, 0, 1, 1, 2]
    assert [row.state for row in world.catalog.ledgers.list_ledgers(world.topic.topic_id)] == [
        LedgerState.CLOSED,
        LedgerState.CLOSED,
        LedgerState.OPEN,
    ]
    assert len(world.payloads()) == 5


def test_roll_by_size_counts_stored_bytes(world: World) -> None:
    """What counts is what the segments take in storage."""
    process = world.process(RollPolicy(max_size_bytes=1))
    assert _fill(process, world, 3) == [0, 1, 2]


def test_roll_by_age_counts_from_creation(world: World) -> None:
    """Young ledgers are kept, and the limit is inclusive."""
    process = world.process(RollPolicy(max_age_s=60))
    assert _fill(process, world, 2) == [0, 0]
    world.catalog.advance(seconds=59.9)
    assert _fill(process, world, 1) == [0]
    world.catalog.advance(seconds=0.1)
    assert _fill(process, world, 1) == [1]


def test_roll_by_age_spares_an_empty_ledger(world: World) -> None:
    """An old empty ledger takes the next append; rolling it would leave an empty one behind."""
    process = world.process(RollPolicy(max_age_s=60))
    process.roll(world.topic)
    world.catalog.advance(seconds=600)
    assert not process.roll_if_due(world.topic)
    assert _fill(process, world, 1) == [0]


def test_roll_by_limit_sees_what_other_processes_appended(world: World) -> None:
    """A full ledger is found full by a process that knew it half empty, once it looks."""
    one, two = world.process(RollPolicy(max_entries=3)), world.process(RollPolicy(max_entries=3))
    found = [_fill(process, world, 1)[0] for process in [one, two] * 4]
    assert found == sorted(found)
    sizes = [row.entries for row in world.catalog.ledgers.list_ledgers(world.topic.topic_id)]
    assert sum(sizes) == 8
    assert all(size <= 4 for size in sizes)
    assert world.catalog.pending_deletion == []


def test_roll_by_hand_closes_and_opens(world: World) -> None:
    """The closed ledger takes nothing more, the opened one everything."""
    process = world.process()
    _fill(process, world, 1)
    assert process.roll(world.topic) == RollResult(closed=LedgerId(0), opened=LedgerId(1))
    assert _fill(process, world, 1) == [1]
    assert _fill(world.process(), world, 1) == [1]


def test_roll_by_hand_leaves_no_debris_of_the_next_append(world: World) -> None:
    """The process that rolled does not upload to the ledger it has just closed."""
    process = world.process()
    _fill(process, world, 1)
    process.roll(world.topic)
    _fill(process, world, 1)
    segments = [found.key for found in world.objects.list("") if found.key.endswith(".parquet")]
    assert segments == [segment_key(LedgerId(0), 0), segment_key(LedgerId(1), 0)]


def test_roll_of_a_topic_without_ledgers_opens_the_first(world: World) -> None:
    """There is nothing to close."""
    assert world.process().roll(world.topic) == RollResult(closed=None, opened=LedgerId(0))


def test_roll_of_an_empty_ledger_changes_nothing(world: World) -> None:
    """Rolling again and again leaves no trail of empty ledgers."""
    process = world.process()
    process.roll(world.topic)
    assert process.roll(world.topic) == RollResult(closed=None, opened=LedgerId(0))
    assert len(world.catalog.ledgers.list_ledgers(world.topic.topic_id)) == 1


def test_roll_puts_the_statement_before_the_ledger_takes_segments(world: World) -> None:
    """OPEN means that storage can tell whose it is; until then the row is in no list."""
    states = []
    world.objects.plan(
        Fault(
            operation=StoreOperation.PUT,
            kind=FaultKind.CALL,
            action=once(lambda: states.append(world.catalog.ledger_rows[LedgerId(0)].state)),
        )
    )
    world.process().roll(world.topic)
    assert states == [LedgerState.CREATING]
    assert world.objects.keys == [meta_key(LedgerId(0), OWNER)]


def test_roll_loser_uses_the_winners_ledger_and_its_newborn_is_filed(world: World) -> None:
    """Of two that roll at once one wins; the other's ledger is not left behind (apache/pulsar#350)."""
    one, two = world.process(), world.process()
    _fill(one, world, 1)
    world.objects.plan(
        Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=once(lambda: two.roll(world.topic)))
    )
    assert one.roll(world.topic) == RollResult(closed=None, opened=LedgerId(2))
    assert world.catalog.pending_deletion == [1]
    assert _fill(one, world, 1) == [2]
    assert len(world.catalog.ledgers.list_ledgers(world.topic.topic_id)) == 2


def test_roll_loser_of_the_first_ledger_appends_to_the_winners(world: World) -> None:
    """Two processes that open a topic's first ledger at once agree on one."""
    one, two = world.process(), world.process()
    world.objects.plan(
        Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=once(lambda: _fill(two, world, 1)))
    )
    assert _fill(one, world, 1) == [1]
    assert world.catalog.pending_deletion == [0]
    assert len(world.payloads()) == 2


def test_roll_newborn_that_a_trim_took_is_not_used(world: World) -> None:
    """A roll that slept longer than a trim's patience begins anew."""
    process = world.process()

    def trim() -> None:
        world.catalog.replace_ledger_by_intents(LedgerId(0), "")

    trimmed = Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=trim)
    world.objects.plan(trimmed)
    assert _fill(process, world, 1) == [1]
    assert world.catalog.pending_deletion == [0]


def test_roll_by_hand_whose_newborn_a_trim_took_tries_again(world: World) -> None:
    """The answer names a ledger that was opened, not the one that should have been closed."""
    process = world.process()
    _fill(process, world, 1)

    def trim() -> None:
        world.catalog.replace_ledger_by_intents(LedgerId(1), "")

    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=trim))
    assert process.roll(world.topic) == RollResult(closed=LedgerId(0), opened=LedgerId(2))


def test_roll_whose_newborns_are_always_taken_gives_up(world: World) -> None:
    """Bounded: something is wrong with the patience of trims."""
    process = world.process()

    def trim() -> None:
        world.catalog.replace_ledger_by_intents(LedgerId(world.catalog.next_ledger - 1), "")

    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=trim, times=100))
    with pytest.raises(CatalogBusy, match="taken away"):
        process.roll(world.topic)
    with pytest.raises(CatalogBusy, match="found no ledger"):
        _fill(process, world, 1)


def test_roll_id_that_storage_knows_already_is_never_attached(world: World) -> None:
    """A ledger under another's statement would be deleted as the other's: the next id is taken."""
    key = meta_key(LedgerId(0), OWNER)
    world.objects.put_if_absent(key, b"another incarnation", metadata={})
    assert world.process().roll(world.topic) == RollResult(closed=None, opened=LedgerId(1))
    assert [ledger.ledger_id for ledger in world.catalog.ledgers.list_ledgers(world.topic.topic_id)] == [1]
    found = world.objects.get(key)
    assert found is not None
    assert found.body == b"another incarnation"


@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.AFTER])
def test_roll_rides_out_a_short_outage_of_the_store(world: World, kind: FaultKind) -> None:
    """A statement that was stored but reported as failed is recognised as our own."""
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=kind, times=3))
    assert world.process().roll(world.topic) == RollResult(closed=None, opened=LedgerId(0))
    assert len(world.slept) == 3


def test_roll_of_a_topic_that_is_being_deleted_is_refused(world: World) -> None:
    """Nothing new is created in a topic on its way out."""
    world.catalog.set_state(world.topic.topic_id, TopicState.DELETING)
    with pytest.raises(PreconditionFailed, match="DELETING"):
        world.process().roll(world.topic)


def test_roll_if_due_closes_an_idle_ledger_past_its_age(world: World) -> None:
    """A consumed ledger of an idle topic becomes deletable in bounded time (apache/pulsar#9136)."""
    process = world.process(RollPolicy(max_age_s=60))
    _fill(process, world, 1)
    assert not process.roll_if_due(world.topic)
    world.catalog.advance(seconds=60)
    assert process.roll_if_due(world.topic)
    listed = world.catalog.ledgers.list_ledgers(world.topic.topic_id)
    assert [row.state for row in listed] == [LedgerState.CLOSED, LedgerState.OPEN]
    world.catalog.advance(seconds=600)
    assert not process.roll_if_due(world.topic)


def test_roll_if_due_of_a_topic_without_ledgers_does_nothing(world: World) -> None:
    """An unused topic stays without ledgers."""
    assert not world.process().roll_if_due(world.topic)
    assert world.catalog.ledger_rows == {}


def test_roll_if_due_loser_says_that_it_did_not_roll(world: World) -> None:
    """Two trims at once count one roll."""
    policy = RollPolicy(max_age_s=60)
    one, two = world.process(policy), world.process(policy)
    _fill(one, world, 1)
    world.catalog.advance(seconds=60)
    answers: list[bool] = []
    world.objects.plan(
        Fault(
            operation=StoreOperation.PUT,
            kind=FaultKind.CALL,
            action=once(lambda: answers.append(two.roll_if_due(world.topic))),
        )
    )
    answers.append(one.roll_if_due(world.topic))
    assert answers == [True, False]


def test_roll_keeps_positions_ascending_across_ledgers(world: World) -> None:
    """Order of positions is order of entries."""
    process = world.process(RollPolicy(max_entries=1))
    _fill(process, world, 4)
    positions = [entry.position for entry in world.entries()]
    assert positions == [Position(LedgerId(ledger), 0) for ledger in range(4)]
