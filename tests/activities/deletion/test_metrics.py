"""What deletion counts: what the catalog says it changed, once, whatever is repeated or dies."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from activities.deletion.inputs_and_results import DeadLetterInput, TakeOverStalledInput
from activities.owner_routing import CompletedWork
from logstore import failpoints
from logstore.deletion.intents import IntentKey
from logstore.errors import CorruptData
from logstore.log.ledger_object_keys import ledger_prefix
from tests.activities.activity_world import (
    BATCH_WORKFLOW_ID,
    World,
    make_activity_environment,
    make_certify_input,
    make_chunk_input,
    make_delete_intent_input,
)
from tests.fakes.meter import FakeMeter, metric_series
from tests.fakes.object_store import Fault, FaultKind, StoreOperation

T = TypeVar("T")

_LEDGER = {"component": "MANAGED_LEDGER", "copy": "LEDGER"}


@pytest.fixture
def meter() -> FakeMeter:
    """What was counted."""
    return FakeMeter()


def _measured(
    meter: FakeMeter, activity: Callable[..., T], request: object, *, workflow_id: str = BATCH_WORKFLOW_ID
) -> T:
    env = make_activity_environment(workflow_id)
    env.metric_meter = meter
    return env.run(activity, request)


def _counts(meter: FakeMeter) -> dict[str, int]:
    """Metrics without their prefix, summed over labels."""
    names = {name for name, _ in meter.values}
    return {name.removeprefix("sexton_deletion_").removesuffix("_total"): meter.total(name) for name in sorted(names)}


def _alone(world: World, meter: FakeMeter) -> IntentKey:
    """One ledger, handed over because a listing failed once."""
    world.fill(1)
    _measured(meter, world.deletion.detach, world.make_detach_input())
    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, error=lambda: CorruptData("no XML")))
    answer = _measured(meter, world.deletion.delete_chunk, make_chunk_input())
    assert isinstance(answer, CompletedWork)
    return answer.result.alone[0]


def _name(key: IntentKey) -> str:
    return f"delete-ledger/{key.ledger_id}/{key.copy}/{key.generation}"


def test_batch_counts_every_row_once_and_repeating_it_counts_nothing(world: World, meter: FakeMeter) -> None:
    """PIP-186's list over a whole batch; each activity run three times adds what the first one did."""
    a, b, *_ = world.fill(3)
    for _ in range(3):
        _measured(meter, world.deletion.detach, world.make_detach_input())
    gone = [key for key in world.objects.keys if key.startswith(ledger_prefix(a))]
    world.objects.delete(gone)
    world.objects.put_if_absent(f"{ledger_prefix(b)}not-ours", b"x", metadata={})
    for _ in range(3):
        _measured(meter, world.deletion.delete_chunk, make_chunk_input())
    for _ in range(3):
        _measured(meter, world.deletion.close_and_certify_batch, make_certify_input())
    size_bytes = world.catalog.deletions.tally_batch("batch-1").size_bytes
    assert _counts(meter) == {
        "ledgers_sent": 3,
        "received": 3,
        "acknowledged": 3,
        "ledgers_deleted": 2,
        "deleted_objects": 3,
        "deleted_bytes": size_bytes,
        "batches": 1,
    }
    assert size_bytes > 0
    by_outcome = {
        outcome: meter.values[metric_series("sexton_deletion_acknowledged_total", **_LEDGER, outcome=outcome)]
        for outcome in ("DELETED", "ALREADY_GONE", "METADATA_MISMATCH")
    }
    assert by_outcome == {"DELETED": 1, "ALREADY_GONE": 1, "METADATA_MISMATCH": 1}
    assert meter.values[metric_series("sexton_deletion_ledgers_sent_total", **_LEDGER)] == 3
    assert meter.values[metric_series("sexton_deletion_batches_total", outcome="PARTIAL")] == 1
    assert meter.labels == {"namespace", "task_queue", "activity_type"}, "a label more multiplies every series"


def test_row_alone_counts_each_attempt_and_one_end(world: World, meter: FakeMeter) -> None:
    """A failure in the batch, a failure alone, then success: three times received, two failures, one end."""
    key = _alone(world, meter)
    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, error=lambda: CorruptData("no XML")))
    with pytest.raises(Exception, match="no XML"):
        _measured(meter, world.deletion.claim_and_delete_copy, make_delete_intent_input(key), workflow_id=_name(key))
    for _ in range(3):
        _measured(meter, world.deletion.claim_and_delete_copy, make_delete_intent_input(key), workflow_id=_name(key))
    counts = _counts(meter)
    assert (counts["received"], counts["ledger_delete_failures"]) == (3, 2)
    assert (counts["acknowledged"], counts["ledgers_deleted"], counts["deleted_objects"]) == (1, 1, 3)
    assert "reached_max_retries" not in counts
    assert world.intents()[0].attempts == counts["received"], "what is counted stands in the row"


def test_dead_letter_counts_as_one_that_reached_its_retries(world: World, meter: FakeMeter) -> None:
    """Once, however often the letter is sent; it is acknowledged, and not deleted."""
    key = _alone(world, meter)
    letter = DeadLetterInput(key=key, catalog_epoch=1, error="StoreUnavailable: 503")
    for _ in range(3):
        _measured(meter, world.deletion.dead_letter_intent, letter, workflow_id=_name(key))
    counts = _counts(meter)
    assert (counts["reached_max_retries"], counts["acknowledged"], counts.get("ledgers_deleted", 0)) == (1, 1, 0)
    assert counts["received"] == 1, "giving up is no attempt"


def test_refusal_is_an_end_but_no_exhausted_retry(world: World, meter: FakeMeter) -> None:
    """METADATA_MISMATCH is a dead letter too; it was never retried."""
    (ledger,) = world.fill(1)
    _measured(meter, world.deletion.detach, world.make_detach_input())
    world.objects.put_if_absent(f"{ledger_prefix(ledger)}not-ours", b"x", metadata={})
    _measured(meter, world.deletion.delete_chunk, make_chunk_input())
    counts = _counts(meter)
    assert (counts["acknowledged"], counts.get("reached_max_retries", 0), counts.get("ledgers_deleted", 0)) == (1, 0, 0)


def test_chunk_that_hands_all_over_counts_a_failure_for_each_row_once(world: World, meter: FakeMeter) -> None:
    """The chunk as a whole gave up: that was each row's first attempt."""
    world.fill(2)
    _measured(meter, world.deletion.detach, world.make_detach_input())
    for _ in range(2):
        _measured(meter, world.deletion.hand_over_chunk, make_chunk_input())
    assert (_counts(meter)["received"], _counts(meter)["ledger_delete_failures"]) == (2, 2)


@pytest.mark.parametrize(
    "effect", [("catalog.detach", "ledgers_sent"), ("catalog.finish", "acknowledged"), ("catalog.close", "batches")]
)
@pytest.mark.parametrize(("moment", "counted"), [("before", True), ("after", False), ("reported_failed", False)])
def test_counters_never_run_ahead_of_the_catalog(
    world: World, meter: FakeMeter, effect: tuple[str, str], moment: str, counted: bool
) -> None:
    """A death after the commit leaves a counter behind, for ever; no repetition makes up for it, none counts twice."""
    world.fill(2)
    steps: list[tuple[Callable[..., object], object]] = [
        (world.deletion.detach, world.make_detach_input()),
        (world.deletion.delete_chunk, make_chunk_input()),
        (world.deletion.close_and_certify_batch, make_certify_input()),
    ]
    failpoints.arm(f"{effect[0]}.{moment}", "crash")
    for activity, request in steps:
        try:
            _measured(meter, activity, request)
        except failpoints.SimulatedCrash:
            _measured(meter, activity, request)
    failpoints.disarm_all_and_take_hits()
    undisturbed = {"ledgers_sent": 2, "acknowledged": 2, "batches": 1}[effect[1]]
    assert _counts(meter).get(effect[1], 0) == (undisturbed if counted else 0)
    assert sum(world.outcomes().values()) == 2
    assert set(world.outcomes()) <= {"DELETED", "ALREADY_GONE"}


def test_sweep_counts_what_it_files_and_not_what_it_takes_up(world: World, meter: FakeMeter) -> None:
    """A newborn that nobody attached is filed by the sweep; a stalled row was filed before."""
    world.fill(1)
    world.detach()
    world.sql("UPDATE run SET claim_until_us = 1")
    world.catalog.ledgers.create_ledger(world.topic.topic_id, application="sexton")
    world.sql("UPDATE ledger SET created_us = 1 WHERE place IS NULL")
    order = TakeOverStalledInput(batch_id="sweep", batch_workflow_id="delete-ledgers/sweep", limit=10)
    for _ in range(2):
        assert _measured(meter, world.upkeep.take_over_stalled, order).intents == 2
    assert _counts(meter) == {"ledgers_sent": 1}


def test_component_that_nobody_knows_is_no_label_of_its_own(world: World, meter: FakeMeter) -> None:
    """A damaged row must not make a new time series of its text."""
    world.fill(1)
    world.detach()
    world.sql("UPDATE pending_deletion SET component = 'whatever-was-written'")
    _measured(meter, world.deletion.delete_chunk, make_chunk_input())
    labels = dict(next(iter(key for name, key in meter.values if name == "sexton_deletion_acknowledged_total")))
    assert (labels["component"], labels["outcome"]) == ("UNKNOWN", "INVALID")
