"""`delete-ledgers`: a batch whose every row ends, or has a workflow of its own."""

import asyncio

import pytest
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ActivityError, CancelledError

from activities.deletion.inputs_and_results import (
    ChunkInput,
    ChunkResult,
    DeleteIntentInput,
    DetachInput,
    DetachResult,
    RowRangesInput,
    RowRangesPage,
)
from activities.owner_routing import OwnerRoutedAnswer
from logstore.deletion.intents import BatchCertificate, DeleteIntentResult, DeletionState
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workers.cli.command_errors import ExitCode, classify_error
from workers.client.wait_for_job import wait_for_result
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import DeleteLedgersProgress, DeletionPolicy


def at(ledger_id: LedgerId, operation: StoreOperation, kind: FaultKind, **more: object) -> Fault:
    """A fault of one ledger's objects."""
    prefix = ledger_prefix(ledger_id)
    return Fault(operation=operation, kind=kind, matches=lambda key: key.startswith(prefix), **more)  # type: ignore[arg-type]


async def test_delete_ledgers_of_given_ledgers_certifies_them(house: WorkflowHarness) -> None:
    """Detached, deleted, confirmed by storage and counted from rows; what stays listed is untouched (promises 1, 2)."""
    ledgers = house.world.fill(5)
    certificate = await house.done(house.delete(ledgers[:4]))
    assert (certificate.outcomes, certificate.objects, certificate.deleted) == ({"DELETED": 4}, 12, 4)
    assert [len(house.world.left_of(one)) for one in ledgers] == [0, 0, 0, 0, 3]


async def test_delete_ledgers_refused_completes_with_the_reason_and_changes_nothing(house: WorkflowHarness) -> None:
    """A guard that refuses is no failure: the result and Current Details say why, and all stay listed."""
    ledgers = house.world.fill(2, acknowledged=False)
    house.world.acknowledge(ledgers[0])
    before = house.world.objects.keys
    async with house.worker():
        handle = await house.delete(ledgers)
        certificate = await handle.result()
        details = await query_current_details(handle)
        with pytest.raises(WorkflowFailureError) as caught:
            await wait_for_result(house.client, handle, lambda _: None)
    refusal = certificate.refused
    assert refusal is not None
    assert (refusal.type, certificate.outcomes) == ("LedgerStillNeeded", {})
    assert f"ledger {ledgers[1]}: not all of it is acknowledged" in refusal.message
    assert details.startswith(f"**Refused**, nothing changed: {refusal.message}")
    told = classify_error(caught.value)
    assert (told.code, told.type, told.message) == (ExitCode.REFUSED, "LedgerStillNeeded", refusal.message)
    assert house.world.objects.keys == before
    assert len(house.world.catalog.ledgers.list_ledgers(house.world.topic.topic_id)) == 3
    assert not house.world.catalog.deletions.list_intents(None, limit=9)


@pytest.mark.external_service
async def test_delete_ledgers_of_an_unknown_id_completes_refused(house: WorkflowHarness) -> None:
    """As bad input to who asked, with its field."""
    (ledger,) = house.world.fill(1)
    async with house.worker():
        handle = await house.delete([ledger, LedgerId(9_999_999)])
        with pytest.raises(WorkflowFailureError) as caught:
            await wait_for_result(house.client, handle, lambda _: None)
    description = await handle.describe()
    assert description.status is WorkflowExecutionStatus.COMPLETED
    assert description.search_attributes["SextonOutcome"] == ["REFUSED"]
    told = classify_error(caught.value)
    assert (told.code, told.type, told.field) == (ExitCode.USAGE, "UnknownObject", "ledger")
    assert len(house.world.left_of(ledger)) == 3


@pytest.mark.external_service
async def test_delete_ledgers_refused_while_it_is_being_paused_ends(house: WorkflowHarness) -> None:
    """Nothing waits for a batch that the catalog will never know: the operator is told that there is none."""
    ledgers = house.world.fill(1, acknowledged=False)
    house.world.catalog.cursors.create_subscription(house.world.topic.topic_id, "slow", latest=False)
    gate, real = Gate(), house.world.deletion.detach

    @activity.defn(name="deletion.detach")
    def detach(request: DetachInput) -> OwnerRoutedAnswer[DetachResult]:
        gate.wait()
        return real(request)

    async with house.worker(replacements=[detach]):
        handle = await house.delete(ledgers)
        await assert_eventually(gate.reached.is_set)
        pausing = await handle.start_update(DeleteLedgers.pause, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        gate.open()
        certificate = await handle.result()
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await pausing.result()
    assert certificate.refused is not None
    assert classify_error(caught.value).type == "UnknownObject"


def test_certificate_of_an_older_build_is_of_no_refusal() -> None:
    """Histories have results without the field."""
    older = b'{"batch_id": "b", "outcomes": {"DELETED": 1}, "objects": 3, "size_bytes": 9}'
    (found,) = pydantic_data_converter.payload_converter.from_payloads(
        [Payload(metadata={"encoding": b"json/plain"}, data=older)], [BatchCertificate]
    )
    assert found == BatchCertificate(batch_id="b", outcomes={"DELETED": 1}, objects=3, size_bytes=9)


async def test_delete_ledgers_whose_catalog_was_rebuilt_says_how_much_is_left(house: WorkflowHarness) -> None:
    """STALE_CATALOG: what is left is counted as such, and no row is changed."""
    house.world.fill(3)
    house.world.detach(batch_id=house.queue)
    house.world.sql("UPDATE catalog SET epoch=2")
    carried = DeleteLedgersProgress(intents=3)
    certificate = await house.done(house.delete(batch_id=house.queue, carried=carried))
    assert certificate.outcomes == {"STALE_CATALOG": 3}
    assert all(one.state is DeletionState.PENDING for one in house.world.intents(house.queue))


@pytest.mark.external_service
async def test_delete_ledgers_hands_a_failing_row_to_a_workflow_that_outlives_it(house: WorkflowHarness) -> None:
    """RETRYING is counted, and the abandoned child ends the row ten minutes after its parent (apache/pulsar#982)."""
    ledgers = house.world.fill(3)
    bad = ledgers[1]
    prefix, down = ledger_prefix(bad), ["yes"]
    house.world.objects.plan(
        Fault(
            operation=StoreOperation.LIST,
            kind=FaultKind.BEFORE,
            times=1000,
            matches=lambda key: key == prefix and bool(down),
        )
    )
    async with house.worker():
        handle = await house.delete(ledgers)
        certificate = await handle.result()
        assert certificate.outcomes == {"DELETED": 2, "RETRYING": 1}
        child = house.alone(house.world.key(bad))
        assert (await child.describe()).status is WorkflowExecutionStatus.RUNNING
        down.clear()
        await child.result()
        description = await child.describe()
    assert not house.world.left_of(bad)
    assert await description.static_summary() == f"ledger {bad} of {house.world.topic.name}"
    assert f"`sexton ledger explain {bad}`" in (await description.static_details() or "")
    shown = description.search_attributes
    assert shown["SextonLedgerId"] == [bad]
    assert shown["SextonTopic"] == [house.world.topic.name]
    assert shown["SextonRunId"] == [handle.id.removeprefix("delete-ledgers/")]


async def test_delete_ledgers_refusals_are_counted_listed_and_fail_alone(house: WorkflowHarness) -> None:
    """A refusal is a dead letter, a count of the batch, and a failed workflow of its own (PIP-186; promise 3)."""
    good, bad = house.world.fill(2)
    house.world.objects.put_if_absent(f"{ledger_prefix(bad)}notes.txt", b"mine", metadata={})
    async with house.worker():
        certificate = await (await house.delete([good, bad])).result()
        with pytest.raises(WorkflowFailureError) as caught:
            await house.alone(house.world.key(bad)).result()
    assert certificate.outcomes == {"DELETED": 1, "METADATA_MISMATCH": 1}
    assert failure_type_and_message(caught.value)[0] == "METADATA_MISMATCH"
    assert [
        one.ledger_id for one in house.world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
    ] == [bad]


async def test_delete_ledgers_with_the_store_down_hands_every_row_over(house: WorkflowHarness) -> None:
    """Ten attempts of a chunk, and then each row waits alone: none is forgotten (PIP-186, back-off)."""
    ledgers = house.world.fill(2)
    down = ["yes"]
    house.world.objects.plan(
        Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=1000, matches=lambda _: bool(down))
    )
    async with house.worker():
        certificate = await (await house.delete(ledgers)).result()
        assert certificate.outcomes == {"RETRYING": 2}
        down.clear()
        for ledger in ledgers:
            await house.alone(house.world.key(ledger)).result()
    assert len(house.attempts("deletion.delete_chunk")) == 10
    assert not any(house.world.left_of(one) for one in ledgers)


async def test_delete_ledgers_continued_as_new_carries_totals(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages, objects and outcomes of earlier runs, ledgers that ended before among them, are in the certificate."""
    old, *ledgers = house.world.fill(5)
    async with house.worker():
        await (await house.delete([old])).result()
    _page_of(monkeypatch, ranges=1)
    monkeypatch.setattr("temporalio.workflow.Info.is_continue_as_new_suggested", lambda _info: True)
    house.policy = DeletionPolicy(chunk=2, parallelism=1)
    async with house.worker():
        handle = await house.delete([old, *ledgers])
        certificate = await handle.result()
        progress = await handle.query("progress", result_type=DeleteLedgersProgress)
    assert certificate == BatchCertificate(
        batch_id=certificate.batch_id, outcomes={"DELETED": 5}, objects=12, size_bytes=certificate.size_bytes
    )
    assert (progress.intents, progress.detached, progress.objects, progress.finished) == (4, 4, 12, {"DELETED": 1})
    assert len([one for one in house.attempts("deletion.detach") if one.workflow_id == handle.id]) == 1, "detached once"
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


def _page_of(monkeypatch: pytest.MonkeyPatch, *, ranges: int) -> None:
    """Pages so small that a few ledgers fill many; the sandbox passes our modules through."""
    monkeypatch.setattr("workflows.deletion.delete_ledgers._RANGES_PER_PAGE", ranges)


async def test_delete_ledgers_cancelled_midway_leaves_rows_to_be_taken_up(house: WorkflowHarness) -> None:
    """Cancelled between its chunks, it ends as cancelled and every row is deleted or still listed (promise 2)."""
    ledgers = house.world.fill(4)
    gate = Gate()
    house.world.objects.plan(at(ledgers[2], StoreOperation.LIST, FaultKind.CALL, action=gate.wait))
    async with house.worker():
        handle = await house.delete(ledgers, batch_id=house.queue)
        await assert_eventually(gate.reached.is_set)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    gate.open()
    assert isinstance(caught.value.cause, (CancelledError, ActivityError))
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    rows = house.world.intents(house.queue)
    assert [one.ledger_id for one in rows] == ledgers
    assert all(one.state is DeletionState.PENDING or not house.world.left_of(one.ledger_id) for one in rows)
    assert not house.attempts("deletion.hand_over_chunk")
    assert not house.attempts("deletion.certify")


async def test_delete_ledgers_started_twice_with_one_batch_id_ends_the_same(house: WorkflowHarness) -> None:
    """Driven once more after its end, it detaches nothing, deletes nothing and certifies the same (PIP-186)."""
    ledgers = house.world.fill(3)
    async with house.worker():
        first = await (await house.delete(ledgers, batch_id=house.queue)).result()
        again = await (await house.delete(ledgers, batch_id=house.queue)).result()
    assert again == first
    assert len(house.world.sql("SELECT 1 FROM audit WHERE act='delete-ledgers'")) == 1


@pytest.mark.external_service
async def test_delete_ledgers_started_before_any_worker_runs_when_one_comes(house: WorkflowHarness) -> None:
    """A start, and a query asked before the first task, wait for a worker and are answered."""
    ledgers = house.world.fill(1)
    handle = await house.delete(ledgers)
    asked = asyncio.ensure_future(handle.query("progress", result_type=DeleteLedgersProgress))
    async with house.worker():
        assert (await handle.result()).outcomes == {"DELETED": 1}
        assert (await asked).intents in {0, 1}


@pytest.mark.external_service
async def test_delete_ledgers_shows_progress_while_it_works(house: WorkflowHarness) -> None:
    """The query, the current details and the search attributes tell an operator how far it is."""
    ledgers = house.world.fill(4)
    gate = Gate()
    house.policy = DeletionPolicy(chunk=2, parallelism=1)
    house.world.objects.plan(at(ledgers[3], StoreOperation.LIST, FaultKind.CALL, action=gate.wait))
    async with house.worker():
        handle = await house.delete(ledgers)
        await assert_eventually(gate.reached.is_set)
        progress = await handle.query("progress", result_type=DeleteLedgersProgress)
        assert (progress.intents, progress.detached, progress.outcomes, progress.objects) == (4, 4, {"DELETED": 2}, 6)
        gate.open()
        await handle.result()
        assert "- **DELETED** — 4 copies" in await query_current_details(handle)
    assert (await handle.describe()).search_attributes["SextonOutcome"] == ["DELETED"]


async def test_delete_ledgers_never_runs_more_chunks_at_once_than_told(house: WorkflowHarness) -> None:
    """The window is `parallelism`, however many ranges a page has."""
    ledgers = house.world.fill(6)
    house.policy = DeletionPolicy(chunk=1, parallelism=2)
    now, most = [0], [0]
    real = house.world.deletion.delete_chunk

    @activity.defn(name="deletion.delete_chunk")
    def chunk(request: ChunkInput) -> OwnerRoutedAnswer[ChunkResult]:
        now[0] += 1
        most[0] = max(most[0], now[0])
        try:
            return real(request)
        finally:
            now[0] -= 1

    async with house.worker(replacements=[chunk]):
        assert (await (await house.delete(ledgers)).result()).deleted == 6
    assert 1 <= most[0] <= 2


async def test_delete_ledgers_asks_for_no_chunk_whose_answer_would_not_fit(house: WorkflowHarness) -> None:
    """Chunks stay within a thousand rows together: their answers fit a payload (temporalio/sdk-python#1285)."""
    ledgers = house.world.fill(1)
    asked: list[int] = []
    real = house.world.deletion.list_ranges_and_renew_claim

    @activity.defn(name="deletion.next_ranges")
    def list_ranges_and_renew_claim(request: RowRangesInput) -> RowRangesPage:
        asked.append(request.rows)
        return real(request)

    house.policy = DeletionPolicy(chunk=10_000)
    async with house.worker(replacements=[list_ranges_and_renew_claim]):
        await (await house.delete(ledgers)).result()
    assert max(asked) == 1000 // house.policy.parallelism


@pytest.mark.parametrize(("ledgers", "most", "chunks"), [(5, 100, 1), (24, 100, 2), (24, 11, 4)])
async def test_delete_ledgers_shares_a_batch_out_among_all_chunks(
    house: WorkflowHarness, ledgers: int, most: int, chunks: int
) -> None:
    """All that may run at once are at work until the end, unless it is too little to be worth an activity."""
    house.policy = DeletionPolicy(chunk=most, parallelism=2)
    async with house.worker():
        assert (await (await house.delete(house.world.fill(ledgers))).result()).deleted == ledgers
    assert len(house.attempts("deletion.delete_chunk")) == chunks


async def test_delete_ledgers_with_many_rows_alone_goes_on_in_new_runs(house: WorkflowHarness) -> None:
    """The server refuses a run 2,000 pending children: the batch starts anew before that, and misses no row."""
    ledgers = house.world.fill(5)
    for ledger in ledgers[:4]:
        house.world.objects.put_if_absent(f"{ledger_prefix(ledger)}theirs.txt", b"theirs", metadata={})
    house.policy = DeletionPolicy(chunk=1, parallelism=1, alone=2)
    async with house.worker():
        handle = await house.delete(ledgers)
        certificate = await handle.result()
    assert certificate.outcomes == {"DELETED": 1, "METADATA_MISMATCH": 4}
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


async def test_chunk_that_meets_a_fault_nobody_expects_ends_as_dead_letters(house: WorkflowHarness) -> None:
    """A bug is no outage: after ten attempts each row is handed over, and says in the end what it died of."""
    ledgers = house.world.fill(2)

    @activity.defn(name="deletion.delete_chunk")
    def chunk(request: ChunkInput) -> ChunkResult:
        raise TypeError(f"planned, at row {request.chunk.first}")

    @activity.defn(name="deletion.delete_one")
    def one(request: DeleteIntentInput) -> DeleteIntentResult:
        raise TypeError(f"planned, at ledger {request.key.ledger_id}")

    async with house.worker(replacements=[chunk, one]):
        certificate = await (await house.delete(ledgers)).result()
        for ledger in ledgers:
            with pytest.raises(WorkflowFailureError):
                await house.alone(house.world.key(ledger)).result()
    assert sum(certificate.outcomes.values()) == 2
    assert len(house.attempts("deletion.delete_chunk")) == 10
    letters = house.world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
    assert {one.ledger_id: one.last_error for one in letters} == {
        ledger: f"UnknownFault: TypeError: planned, at ledger {ledger}" for ledger in ledgers
    }


async def test_phase_one_that_meets_a_fault_nobody_expects_fails_after_ten_attempts(house: WorkflowHarness) -> None:
    """What waits without end for the catalog does not repeat a bug without end."""
    ledgers = house.world.fill(1)

    @activity.defn(name="deletion.detach")
    def detach(request: DetachInput) -> DetachResult:
        raise TypeError(f"planned, in {request.batch_id}")

    async with house.worker(replacements=[detach]):
        with pytest.raises(WorkflowFailureError) as caught:
            await (await house.delete(ledgers, batch_id=house.queue)).result()
    assert failure_type_and_message(caught.value) == ("UnknownFault", f"TypeError: planned, in {house.queue}")
    assert len(house.attempts("deletion.detach")) == 10
