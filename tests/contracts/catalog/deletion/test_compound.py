"""Compound operations: several changes of one ledger in one transaction, which may end it; its policy applied once."""

import pytest

from logstore.errors import LedgerStillNeeded, PreconditionFailed, SextonError, UnknownObject
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import DetachedBatch
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from logstore.records.tombstone_rules import CompoundOperation
from tests.contracts.catalog.offload.test_offloads import offloaded
from tests.contracts.catalog.steps import filled, listed, new_topic
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, World, claim

pytestmark = pytest.mark.postgres

_PRIMARY, _TIERED = CopyKind.LEDGER, CopyKind.OFFLOADED_LEDGER


def operate(
    world: World,
    topic: Topic,
    ledger_id: int,
    *remove: CopyKind,
    over: tuple[str, ...] = (),
    generation: int | None = None,
    durable: bool | None = None,
    batch_id: str = "compound",
) -> DetachedBatch:
    """One operation."""
    operation = CompoundOperation(
        ledger_id=LedgerId(ledger_id),
        remove=frozenset(remove),
        pass_over=frozenset(over),
        generation=generation,
    )
    return world.catalog.phase_one.apply_compound_operation(
        topic.topic_id, operation, batch_id=batch_id, claim=claim(), cause=CAUSE, durable=durable
    )


def copies_of(world: World, topic: Topic) -> dict[int, tuple[CopyKind, ...]]:
    """Of each listed ledger."""
    return {one.ledger_id: one.copies for one in world.catalog.ledgers.list_ledgers(topic.topic_id)}


def test_both_copies_and_the_record_go_in_one_transaction(world: World) -> None:
    """An intent for each copy, and the ledger is listed no more."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    offloaded(world, ledgers[0])
    done = operate(world, topic, ledgers[0], _PRIMARY, _TIERED)
    assert (done.ledgers, done.intents) == (1, 2)
    assert listed(world, topic.topic_id) == ledgers[1:]
    assert operate(world, topic, ledgers[0], _PRIMARY, _TIERED) == done, "a repeated call does nothing"
    assert len(world.audited("detach")) == 1


def test_tiered_copy_alone_goes_and_the_ledger_stays(world: World) -> None:
    """It is read from its primary copy; its generation tells a later operation that it has changed."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    offloaded(world, ledgers[0])
    done = operate(world, topic, ledgers[0], _TIERED, generation=0)
    assert (done.ledgers, done.intents) == (1, 1)
    assert copies_of(world, topic)[ledgers[0]] == (_PRIMARY,)
    assert [one.detail["sample"] for one in world.audited("remove-tiered")] == [[ledgers[0]]]
    with pytest.raises(PreconditionFailed, match="expected generation 0, found 1"):
        operate(world, topic, ledgers[0], _PRIMARY, generation=0, batch_id="later")
    operate(world, topic, ledgers[0], _PRIMARY, generation=1, batch_id="later")
    assert listed(world, topic.topic_id) == ledgers[1:]


def test_subscription_that_is_passed_over_keeps_nothing_and_others_do(world: World) -> None:
    """A forced delete passes all of them over; this one those that it names."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    for name in ("slow", "slower"):
        world.catalog.cursors.create_subscription(topic.topic_id, name, latest=False)
    with pytest.raises(LedgerStillNeeded, match="not all of it is acknowledged by slower"):
        operate(world, topic, ledgers[0], _PRIMARY, over=("slow",))
    assert operate(world, topic, ledgers[0], _PRIMARY, over=("slow", "slower")).ledgers == 1
    marks = {
        name: world.catalog.cursors.get_cursor(topic.topic_id, name).state.mark_delete for name in ("slow", "slower")
    }
    assert all(mark.ledger_id >= ledgers[0] for mark in marks.values()), "they moved over the hole"


@pytest.mark.parametrize(
    ("remove", "more", "error", "told"),
    [
        ((_PRIMARY, _TIERED), {}, PreconditionFailed, "expected a LIVE copy OFFLOADED_LEDGER"),
        ((_PRIMARY,), {"generation": 4}, PreconditionFailed, "expected generation 4, found 0"),
        ((_PRIMARY,), {"over": ("nobody",)}, UnknownObject, "nobody"),
    ],
)
def test_refused_operation_changes_nothing(
    world: World, remove: tuple[CopyKind, ...], more: dict[str, object], error: type[SextonError], told: str
) -> None:
    """None of its parts."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    before = world.everything()
    with pytest.raises(error, match=told):
        operate(world, topic, ledgers[0], *remove, **more)  # type: ignore[arg-type]
    assert world.everything() == before


def test_call_that_is_repeated_by_another_process_does_nothing(world: World) -> None:
    """There its sets are in another order, as the hashes of texts are others; what was asked is the same."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    names = [f"s{number}" for number in range(30)]
    while repr(frozenset(names)) == repr(frozenset(reversed(names))):
        names.append(f"s{len(names)}")
    for name in names:
        world.catalog.cursors.create_subscription(topic.topic_id, name, latest=False)
    done = operate(world, topic, ledgers[0], _PRIMARY, over=tuple(names))
    assert done.ledgers == 1
    assert operate(world, topic, ledgers[0], _PRIMARY, over=tuple(reversed(names))) == done


def test_audit_log_says_which_subscriptions_were_passed_over(sql_world: SqlWorld) -> None:
    """As it says of a forced delete that it was forced."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 2)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "slow", latest=False)
    operate(sql_world, topic, ledgers[0], _PRIMARY, over=("slow",))
    assert [one.detail.get("passed_over") for one in sql_world.audited("detach")] == [["slow"]]


def test_preview_says_whether_the_ledger_would_end_and_changes_nothing(world: World) -> None:
    """It refuses what the operation would refuse."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    offloaded(world, ledgers[0])
    world.catalog.cursors.create_subscription(topic.topic_id, "slow", latest=False)
    before = world.everything()

    def would_end(*remove: CopyKind, over: frozenset[str] = frozenset()) -> bool:
        operation = CompoundOperation(ledger_id=ledgers[0], remove=frozenset(remove), pass_over=over)
        return world.catalog.phase_one.would_end_ledger(topic.topic_id, operation)

    assert not would_end(_TIERED)
    assert would_end(_PRIMARY, _TIERED, over=frozenset({"slow"}))
    with pytest.raises(LedgerStillNeeded, match="slow"):
        would_end(_PRIMARY, _TIERED)
    with pytest.raises(PreconditionFailed, match="the tiered one alone would stay"):
        would_end(_PRIMARY)
    assert world.everything() == before


def test_open_ledger_and_one_that_is_not_listed_are_refused(world: World) -> None:
    """As by a delete."""
    topic = new_topic(world)
    (last,) = filled(world, topic.topic_id, 1)
    with pytest.raises(LedgerStillNeeded, match="OPEN"):
        operate(world, topic, last, _PRIMARY)
    with pytest.raises(UnknownObject, match="ledger"):
        operate(world, topic, 999, _PRIMARY)


@pytest.mark.parametrize(("asked", "tombstones"), [(None, 1), (False, 0), (True, 1)])
def test_end_of_several_operations_is_durable_once(sql_world: SqlWorld, asked: bool | None, tombstones: int) -> None:
    """Whatever was taken away before the last copy."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 2)
    offloaded(sql_world, ledgers[0])
    operate(sql_world, topic, ledgers[0], _PRIMARY, _TIERED, durable=asked)
    assert sql_world.sql("SELECT generation FROM tombstone") == [(1,)] * tombstones
    assert sql_world.sql("SELECT durable FROM pending_deletion") == [(tombstones,)] * 2


def test_copy_of_a_ledger_that_stays_leaves_no_tombstone(sql_world: SqlWorld) -> None:
    """The record has not ended, whatever the command says."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 2)
    offloaded(sql_world, ledgers[0])
    operate(sql_world, topic, ledgers[0], _TIERED, durable=True)
    assert sql_world.sql("SELECT id FROM tombstone") == []


@pytest.mark.parametrize("side", ["before", "after"])
def test_crash_leaves_all_or_nothing(world: World, side: str) -> None:
    """And the same call again has the same end."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    offloaded(world, ledgers[0])
    arm(f"catalog.operate.{side}", "crash")
    with pytest.raises(SimulatedCrash):
        operate(world, topic, ledgers[0], _PRIMARY, _TIERED)
    disarm_all_and_take_hits()
    assert (ledgers[0] in listed(world, topic.topic_id)) is (side == "before")
    assert operate(world, topic, ledgers[0], _PRIMARY, _TIERED).intents == 2
    assert listed(world, topic.topic_id) == ledgers[1:]
