"""Ledgers that were chosen one by one: each that may go goes, and the others stay, each with its reason."""

import pytest

from logstore.errors import ClaimHeld, PreconditionFailed, UnknownObject
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledgers import CopyState
from logstore.ports.catalog.deletion import DetachChosenResult
from logstore.ports.catalog.log import Ledger, Topic
from logstore.positions import LedgerId
from tests.contracts.catalog.steps import acknowledge, append, filled, listed, new_topic
from tests.contracts.catalog.transactions.steps import begin, produce
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, World, claim

pytestmark = pytest.mark.postgres

BATCH = "end-1"


def read(world: World, topic: Topic, *ledger_ids: LedgerId) -> list[Ledger]:
    """The ledgers as they are now."""
    return [one for one in world.catalog.ledgers.list_ledgers(topic.topic_id) if one.ledger_id in ledger_ids]


def detach(
    world: World, topic: Topic, chosen: list[Ledger], *, by: str = "w", durable: bool | None = None
) -> DetachChosenResult:
    """Into one batch."""
    return world.catalog.phase_one.detach_chosen_ledgers(
        topic.topic_id, chosen, batch_id=BATCH, claim=claim(by), cause=CAUSE, durable=durable
    )


def test_each_that_may_go_goes_and_the_others_are_named(world: World) -> None:
    """Promise 1: what a subscription has not acknowledged, what is written to, and what is being copied, stays."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 5)
    world.catalog.cursors.create_subscription(topic.topic_id, "billing", latest=False)
    acknowledge(world, topic.topic_id, "billing", up_to=(ledgers[2], 9))
    world.add_copy(ledgers[1], CopyState.WRITING, uuid="u")
    chosen = read(world, topic, *ledgers)
    told = world.catalog.phase_one.find_reasons_to_keep(topic.topic_id, chosen)
    done = detach(world, topic, chosen)
    assert (done.detached.ledgers, done.detached.intents) == (2, 2)
    assert listed(world, topic.topic_id) == [ledgers[1], *ledgers[3:]]
    assert (
        done.reason_by_kept_ledger
        == told
        == {
            ledgers[1]: "a copy of it is being written",
            ledgers[3]: "not all of it is acknowledged by billing",
            ledgers[4]: "it is OPEN",
        }
    )


def test_ledger_with_messages_of_an_open_transaction_stays(sql_world: SqlWorld) -> None:
    """However little else needs it."""
    topic = new_topic(sql_world)
    txn = begin(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    produce(sql_world, topic, (txn, 3))
    filled(sql_world, topic.topic_id, 1)
    done = detach(sql_world, topic, read(sql_world, topic, ledger))
    assert done.reason_by_kept_ledger == {ledger: "it has messages of a transaction that is not over"}


def test_ledger_that_has_changed_since_it_was_read_stays(world: World) -> None:
    """What was decided of it was decided of another record: it was closed, appended to, or has another copy."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    chosen = read(world, topic, *ledgers)
    world.add_copy(ledgers[0], CopyState.LIVE, uuid="u")
    append(world, topic.topic_id, ledgers[2])
    filled(world, topic.topic_id, 1)
    done = detach(world, topic, chosen)
    assert sorted(done.reason_by_kept_ledger) == [ledgers[0], ledgers[2]]
    assert all(reason.startswith("it has changed") for reason in done.reason_by_kept_ledger.values())
    assert listed(world, topic.topic_id)[:2] == [ledgers[0], ledgers[2]]


def test_repeated_call_finds_them_gone_and_adds_nothing(world: World) -> None:
    """Its batch is counted from rows, which are those of the first call."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    chosen = read(world, topic, *ledgers[:2])
    first = detach(world, topic, chosen)
    again = detach(world, topic, chosen)
    assert (first.detached.ledgers, again.detached.ledgers) == (2, 0)
    assert again.reason_by_kept_ledger == dict.fromkeys(ledgers[:2], "it is in its list no more")
    whole = world.catalog.phase_one.count_detached_batch(BATCH)
    assert (whole.ledgers, whole.intents) == (2, 2)


def test_call_that_takes_nothing_leaves_no_trace(world: World) -> None:
    """No run, no audit row, no version of the list."""
    topic = new_topic(world)
    chosen = read(world, topic, *filled(world, topic.topic_id, 1))
    before = world.everything()
    done = detach(world, topic, chosen)
    assert done.detached.ledgers == 0
    assert list(done.reason_by_kept_ledger.values()) == ["it is OPEN"]
    assert world.everything() == before
    world.catalog.phase_one.find_reasons_to_keep(topic.topic_id, chosen)
    assert world.everything() == before


def test_pages_of_many_topics_share_a_batch(sql_world: SqlWorld) -> None:
    """And several pages of one topic do; each leaves a row in the audit log."""
    topics = [new_topic(sql_world, f"persistent://a/b/{name}") for name in "ab"]
    for topic in topics:
        for ledger in filled(sql_world, topic.topic_id, 3)[:2]:
            assert detach(sql_world, topic, read(sql_world, topic, ledger)).detached.ledgers == 1
    whole = sql_world.catalog.phase_one.count_detached_batch(BATCH)
    assert (whole.ledgers, whole.intents) == (4, 4)
    assert sql_world.sql("SELECT run_id, topic_id FROM run") == [(BATCH, 0)]
    assert [one.detail["ledgers"] for one in sql_world.audited("detach")] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("of_topic", "asked", "tombstones"),
    [(None, None, 1), (None, False, 0), (False, None, 0), (False, True, 1), (True, False, 0)],
)
def test_function_ends_durably_unless_topic_or_command_say_otherwise(
    sql_world: SqlWorld, of_topic: bool | None, asked: bool | None, tombstones: int
) -> None:
    """And the intents say so, so that their deletion waits for the tombstone to be in a block."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 2)
    said = "NULL" if of_topic is None else int(of_topic)
    sql_world.sql(f"UPDATE topic SET durable_delete = {said}")
    detach(sql_world, topic, read(sql_world, topic, ledgers[0]), durable=asked)
    assert len(sql_world.sql("SELECT id FROM tombstone")) == tombstones
    assert sql_world.sql("SELECT durable FROM pending_deletion") == [(tombstones,)]


def test_batch_of_another_workflow_is_refused_and_nothing_changes(world: World) -> None:
    """What was filed for it now would be nobody's."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    detach(world, topic, read(world, topic, ledgers[0]))
    chosen, before = read(world, topic, ledgers[1]), world.everything()
    with pytest.raises(ClaimHeld, match=f"batch {BATCH}"):
        detach(world, topic, chosen, by="another")
    assert world.everything() == before


def test_unknown_topic_is_refused(world: World) -> None:
    """By name."""
    nowhere = new_topic(world)
    world.remove_topic(nowhere.topic_id)
    for ask in (
        lambda: detach(world, nowhere, []),
        lambda: world.catalog.phase_one.find_reasons_to_keep(nowhere.topic_id, []),
    ):
        with pytest.raises(UnknownObject, match="topic"):
            ask()


@pytest.mark.parametrize("side", ["before", "after"])
def test_crash_leaves_all_or_nothing(world: World, side: str) -> None:
    """And the same call again has the same end."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    chosen = read(world, topic, ledgers[0])
    arm(f"catalog.detach_chosen.{side}", "crash")
    with pytest.raises(SimulatedCrash):
        detach(world, topic, chosen)
    disarm_all_and_take_hits()
    assert (ledgers[0] in listed(world, topic.topic_id)) is (side == "before")
    detach(world, topic, chosen)
    assert world.catalog.phase_one.count_detached_batch(BATCH).ledgers == 1


def test_chosen_are_of_the_topic_alone(world: World) -> None:
    """A ledger of another topic is in no list of this one."""
    topic, other = (new_topic(world, f"persistent://a/b/{name}") for name in "ab")
    ledgers = filled(world, other.topic_id, 2)
    done = detach(world, topic, read(world, other, ledgers[0]))
    assert done.reason_by_kept_ledger == {ledgers[0]: "it is in its list no more"}
    assert ledgers[0] in listed(world, other.topic_id)


def test_precondition_of_the_batch_is_kept_by_a_finished_one(world: World) -> None:
    """A batch that is closed takes nothing more."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    detach(world, topic, read(world, topic, ledgers[0]))
    world.catalog.deletions.close_batch(BATCH, CAUSE)
    with pytest.raises(PreconditionFailed, match=f"batch {BATCH}"):
        detach(world, topic, read(world, topic, ledgers[1]))
