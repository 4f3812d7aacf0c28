"""`deletion.delete_one` and `deletion.dead_letter`: one intent alone, to an end that is never silence."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError, CancelledError

from activities.deletion.inputs_and_results import DeadLetterInput
from logstore import failpoints
from logstore.deletion.intents import DeleteIntentResult, IntentKey, Outcome
from logstore.errors import ClaimHeld, CorruptData, InvalidInput, NoProgress, StoreUnavailable, UnknownObject
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.positions import LedgerId
from logstore.validated_names import TopicName
from tests.activities.activity_world import (
    World,
    make_activity_environment,
    make_chunk_input,
    make_delete_intent_input,
    run_owner_routed_activity,
)
from tests.fakes.object_store import Fault, FaultKind, StoreOperation


def alone(world: World) -> tuple[LedgerId, IntentKey]:
    """One ledger, detached and handed over because a listing failed once."""
    (ledger,) = world.fill(1)
    world.detach()
    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, error=_corrupt))
    result = run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert result.outcomes == {"RETRYING": 1}
    return ledger, result.alone[0]


def _corrupt() -> Exception:
    """An error that is no sign of a store that is down."""
    return CorruptData("planned: not XML")


def delete(world: World, key: IntentKey, *, epoch: int = 1) -> DeleteIntentResult:
    """In the name of the workflow that the row was handed to."""
    return run_owner_routed_activity(
        world.deletion.claim_and_delete_copy, make_delete_intent_input(key, epoch=epoch), workflow_id=_name(key)
    )


def bury(world: World, key: IntentKey, *, epoch: int = 1) -> DeleteIntentResult:
    """Attempts are exhausted."""
    letter = DeadLetterInput(key=key, catalog_epoch=epoch, error="StoreUnavailable: 503")
    return run_owner_routed_activity(world.deletion.dead_letter_intent, letter, workflow_id=_name(key))


def _name(key: IntentKey) -> str:
    return f"delete-ledger/{key.ledger_id}/{key.copy}/{key.generation}"


def test_one_handed_over_is_deleted_by_its_own_workflow(world: World) -> None:
    """A delete that failed once has an owner that tries again until it is done (apache/pulsar#982)."""
    ledger, key = alone(world)
    assert delete(world, key) == DeleteIntentResult(outcome=Outcome.DELETED, objects=3, size_bytes=_size(world))
    assert not world.left_of(ledger)
    assert world.intents()[0].attempts == 2


def _size(world: World) -> int:
    return world.catalog.deletions.tally_batch("batch-1").size_bytes


def test_one_run_twice_answers_with_the_first_outcome(world: World) -> None:
    """A finished row answers with its outcome and storage is not asked again (PIP-186)."""
    _, key = alone(world)
    delete(world, key)
    world.objects.calls.clear()
    assert delete(world, key).outcome is Outcome.DELETED
    assert not world.objects.calls


def test_one_concurrent_attempts_agree(world: World) -> None:
    """Two attempts of one workflow may overlap: both say that nothing is left (temporalio/sdk-python#1048)."""
    ledger, key = alone(world)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: delete(world, key), range(4)))
    assert all(result.outcome.is_success for result in results)
    assert not world.left_of(ledger)


@pytest.mark.parametrize("effect", ["catalog.take", "catalog.finish"])
def test_one_without_catalog_waits_as_long_as_without_storage(world: World, effect: str) -> None:
    """An outage of the catalog does not use ten attempts up within a minute: each waits its interval (PIP-186)."""
    _, key = alone(world)
    failpoints.arm(f"{effect}.before", "fail")
    with pytest.raises(ApplicationError) as caught:
        delete(world, key)
    assert caught.value.next_retry_delay == timedelta(seconds=600)
    assert (caught.value.type, caught.value.non_retryable) == ("StoreUnavailable", False)


@pytest.mark.parametrize("operation", [StoreOperation.LIST, StoreOperation.DELETE])
def test_one_whose_storage_speaks_of_bad_input_becomes_a_dead_letter_in_the_end(
    world: World, operation: StoreOperation
) -> None:
    """`delete-ledger` leaves alone what its own request got wrong; a store's answer is no such thing."""
    _, key = alone(world)
    bad = InvalidInput("put b/k", expected="a key that the store takes", found="KeyTooLongError")
    world.objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE, error=lambda: bad))
    with pytest.raises(ApplicationError) as caught:
        delete(world, key)
    assert (caught.value.type, caught.value.non_retryable) == ("CorruptData", False)
    assert (world.intents()[0].last_error or "").startswith("InvalidInput: put b/k: expected a key")


def test_one_named_with_another_topic_is_refused_and_keeps_everything(world: World) -> None:
    """By field, expected and found: the id and the name beside it mean two ledgers."""
    ledger, key = alone(world)
    before = world.intents()
    other = TopicName.parse("persistent://public/default/other").encoded
    letter = DeadLetterInput(key=key, catalog_epoch=1, error="StoreUnavailable: 503", topic=other)
    for work, request in (
        (world.deletion.claim_and_delete_copy, replace(make_delete_intent_input(key), topic=other)),
        (world.deletion.dead_letter_intent, letter),
    ):
        with pytest.raises(InvalidInput, match=f"topic: expected the topic of ledger {ledger}, .*found '{other}'"):
            run_owner_routed_activity(work, request, workflow_id=_name(key))
    assert world.intents() == before
    assert len(world.left_of(ledger)) == 3


@pytest.mark.parametrize("operation", [StoreOperation.LIST, StoreOperation.DELETE])
def test_one_without_storage_keeps_the_error_and_the_claim_until_the_next_attempt(
    world: World, operation: StoreOperation
) -> None:
    """Retried after its interval; the row says why, and is not stalled meanwhile (PIP-186, apache/pulsar#982)."""
    ledger, key = alone(world)
    world.objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE))
    with pytest.raises(ApplicationError) as caught:
        delete(world, key)
    assert caught.value.next_retry_delay == timedelta(seconds=600)
    assert caught.value.message == "planned fault: 503 SlowDown"
    assert world.intents()[0].last_error == "StoreUnavailable: planned fault: 503 SlowDown"
    seconds = "claim_until_us / 1000000 - CAST(strftime('%s', 'now') AS INT)"
    assert 650 <= world.sql(f"SELECT {seconds} FROM pending_deletion")[0][0] <= 661
    assert len(world.left_of(ledger)) == 3


def test_one_error_for_a_key_is_retried_and_keeps_the_meta(world: World) -> None:
    """An error for one key inside a 200 answer leaves the row unfinished (apache/pulsar#14693)."""
    ledger, key = alone(world)
    world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED))
    with pytest.raises(ApplicationError) as caught:
        delete(world, key)
    assert (caught.value.type, caught.value.non_retryable) == ("DeletionIncomplete", False)
    assert [name for name in world.left_of(ledger) if name.endswith(".meta.json")]
    assert delete(world, key).outcome is Outcome.DELETED


def _refuse(world: World, ledger: LedgerId, *, times: int = 1_000) -> None:
    """Let storage keep one segment of the ledger."""
    last = f"{ledger:016x}/00000001.parquet"
    refused = Fault(
        operation=StoreOperation.DELETE,
        kind=FaultKind.REPORT_KEY_FAILED,
        times=times,
        matches=lambda key: key.endswith(last),
    )
    world.objects.plan(refused)


def test_one_that_storage_keeps_as_it_is_ends_after_five_attempts(world: World) -> None:
    """NoProgress: the same keys after each of five answers, so that a person looks before all attempts are spent."""
    ledger, key = alone(world)
    _refuse(world, ledger)
    for _ in range(4):
        with pytest.raises(ApplicationError) as caught:
            delete(world, key)
        assert (caught.value.type, caught.value.non_retryable) == ("DeletionIncomplete", False)
    with pytest.raises(NoProgress, match=rf"ledger {ledger}: 2 keys left after each of 5 attempts; 1 keys kept"):
        delete(world, key)
    assert len(world.left_of(ledger)) == 2


def test_one_whose_keys_grow_fewer_goes_on(world: World) -> None:
    """Progress, however slow, is no reason to give up."""
    (ledger,) = world.fill(1, segments=8, acknowledged=False)
    world.detach()
    (intent,) = world.intents()
    key, stubborn = world.key(ledger), [8]

    def still_kept(name: str) -> bool:
        return name.endswith(".parquet") and int(name[-12:-8]) < stubborn[0]

    world.catalog.deletions.move_to_own_workflows(
        {intent.row_id: _name(key)}, batch_id=intent.batch_id, error_by_row={}, ttl_s=60
    )
    world.objects.plan(
        Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, times=1_000, matches=still_kept)
    )
    for _ in range(8):
        with pytest.raises(ApplicationError):
            delete(world, key)
        stubborn[0] -= 1
    assert delete(world, key).outcome is Outcome.DELETED


@pytest.mark.parametrize("operation", [StoreOperation.LIST, StoreOperation.DELETE])
def test_one_without_storage_counts_for_nothing_towards_no_progress(world: World, operation: StoreOperation) -> None:
    """A store that is down is no answer: neither all by itself nor between two that were."""
    ledger, key = alone(world)
    _refuse(world, ledger, times=3)
    down = Fault(operation=operation, kind=FaultKind.BEFORE, times=8)
    for _ in range(3):
        with pytest.raises(ApplicationError):
            delete(world, key)
    world.objects.plan(down)
    while down.times:
        with pytest.raises(ApplicationError):
            delete(world, key)
    assert world.sql("SELECT keys_left, keys_left_attempts FROM pending_deletion") == [(2, 3)]
    assert delete(world, key).outcome is Outcome.DELETED


def test_one_whose_storage_goes_away_between_two_keys_counts_for_nothing(world: World) -> None:
    """What it left out of its answer, it may have let go: no number is known."""
    ledger, key = alone(world)
    second = f"{ledger:016x}/00000001.parquet"
    down = Fault(operation=StoreOperation.DELETE, kind=FaultKind.BEFORE, matches=lambda name: name.endswith(second))
    world.objects.plan(down)
    with pytest.raises(ApplicationError):
        delete(world, key)
    assert world.sql("SELECT keys_left, keys_left_attempts FROM pending_deletion") == [(None, 0)]


def test_one_answered_by_a_terminal_error_is_retried_all_the_same(world: World) -> None:
    """Any error but a refusal is retried and then dead-lettered: a storage quirk is no verdict."""
    _, key = alone(world)
    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, error=_corrupt))
    with pytest.raises(ApplicationError) as caught:
        delete(world, key)
    assert (caught.value.type, caught.value.non_retryable) == ("CorruptData", False)


def test_one_that_another_workflow_holds_is_left_to_it(world: World) -> None:
    """Work is taken by claiming: who comes second is told, and nothing is deleted."""
    ledger, key = alone(world)
    with pytest.raises(ClaimHeld):
        run_owner_routed_activity(
            world.deletion.claim_and_delete_copy, make_delete_intent_input(key), workflow_id="delete-ledger/impostor"
        )
    assert len(world.left_of(ledger)) == 3


def test_one_cancelled_passes_the_cancellation_on_and_keeps_the_row(world: World) -> None:
    """A cancellation is no error of storage: it ends the attempt and nothing records it as failed."""
    ledger, key = alone(world)
    env = make_activity_environment(_name(key))
    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.CALL, action=env.cancel))
    with pytest.raises(CancelledError):
        env.run(world.deletion.claim_and_delete_copy, make_delete_intent_input(key))
    assert len(world.left_of(ledger)) == 3
    assert "Cancel" not in (world.intents()[0].last_error or "")
    assert delete(world, key).outcome is Outcome.DELETED


def test_dead_letter_keeps_the_row_with_its_error(world: World) -> None:
    """DEAD_LETTERED: an exhausted intent stays listed with its reason (PIP-186, back-off; promise 2)."""
    ledger, key = alone(world)
    assert bury(world, key) == DeleteIntentResult(outcome=Outcome.DEAD_LETTERED, detail="StoreUnavailable: 503")
    assert world.intents()[0].last_error == "StoreUnavailable: 503"
    assert world.catalog.deletions.count_undeleted_copies().dead_lettered == 1
    assert len(world.left_of(ledger)) == 3


def test_dead_letter_run_twice_keeps_the_first_reason(world: World) -> None:
    """Repeating it changes nothing (PIP-186)."""
    _, key = alone(world)
    first = bury(world, key)
    assert bury(world, key) == first
    assert world.outcomes() == {"DEAD_LETTERED": 1}


def test_dead_letter_of_a_row_that_ended_meanwhile_keeps_its_outcome(world: World) -> None:
    """A late letter never turns a success into a failure."""
    _, key = alone(world)
    delete(world, key)
    assert bury(world, key).outcome is Outcome.DELETED
    assert world.outcomes() == {"DELETED": 1}


def test_dead_letter_of_another_epoch_changes_nothing(world: World) -> None:
    """The rebuilt catalog goes on with the row: a letter from before does not bury it."""
    _, key = alone(world)
    assert bury(world, key, epoch=9).outcome is Outcome.STALE_CATALOG
    assert world.outcomes() == {"RETRYING": 1}


def test_dead_letter_without_catalog_is_retried(world: World) -> None:
    """A letter that cannot be written is an error, never a silence."""
    _, key = alone(world)
    failpoints.arm("catalog.finish.before", "fail")
    with pytest.raises(StoreUnavailable):
        bury(world, key)


def test_dead_letter_of_an_unknown_row_is_refused(world: World) -> None:
    """Nothing is invented for a row that never was."""
    key = IntentKey(ledger_id=77, copy="LEDGER", generation=1)
    with pytest.raises(UnknownObject):
        bury(world, key)


def test_one_takes_up_a_half_deleted_ledger_whose_data_is_gone(world: World) -> None:
    """Only `meta.json` is left of a killed attempt: it says whose it was, and goes (apache/pulsar#13526)."""
    ledger, key = alone(world)
    world.objects.delete(
        [name for name in world.objects.keys if name.startswith(ledger_prefix(ledger)) and "parquet" in name]
    )
    assert delete(world, key) == DeleteIntentResult(outcome=Outcome.DELETED, objects=1, size_bytes=_size(world))
    assert not world.left_of(ledger)
