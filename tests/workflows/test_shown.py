"""What people see of jobs in the Web UI: summaries of steps, *Current Details*, and why a job failed."""

import uuid
from contextlib import suppress
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.delayed.seal_and_merge_buckets import (
    ChoosePairInput,
    MergePairInput,
    ReleaseListInput,
    SealTopicInput,
    SealTopicsInput,
)
from activities.deletion.inputs_and_results import (
    CertifyInput,
    ChunkInput,
    ClaimPausedBatchInput,
    DeadLetterInput,
    DeleteIntentInput,
    DetachInput,
    PauseOrResumeBatchInput,
    RemoveOldIntentsInput,
    RowRangesInput,
    RowRangesPage,
    TakeOverStalledInput,
)
from activities.deletion.topic_deletion import DetachAllLedgersInput, RemoveTopicInput, TopicDeletionOrder
from activities.deletion.trim_by_retention import (
    CountBatchInput,
    NextTopicPagesInput,
    RollIdleLedgerInput,
    TopicIdRange,
    TrimPageInput,
)
from activities.offload import DetachPrimariesInput, LedgersToOffloadInput, PublishCopyInput, UploadCopyInput
from activities.pulsar.inputs_and_results import (
    AbortTransactionInput,
    ApplyClusterPageInput,
    BeginAbortInput,
    BeginClusterApplyInput,
    BeginClusterPlanInput,
    BeginUndoInput,
    CheckAbortsInput,
    ConcludeClusterApplyInput,
    UndoPageInput,
)
from activities.reconciliation.inputs_and_results import (
    ApplyPageInput,
    BeginApplyInput,
    BeginPlanInput,
    BeginScrubInput,
    BulkJobInput,
    CutScrubInput,
    PlanStepInput,
    ScrubPageInput,
    ScrubRunId,
)
from activities.records.end_records import CheckEndRecordsInput, EndRecordsPageInput
from activities.records.record_upkeep import FlushInput, RaidInput, RecordPassInput
from activities.topic_build_steps import BeginBuildInput, ConcludeBuildInput, RunBuildJobInput, SwitchTopicsPageInput
from activities.transactions.coordinate_transactions import BroadcastInput, BusyCoordinatorsInput, DrainInput
from activities.transactions.coordinate_transactions import RemoveOldTransactionsInput as TransactionsToForget
from logstore.deletion.intents import IntentKey
from logstore.errors import StoreUnavailable
from logstore.ports.catalog.deletion import IntentRowRange
from logstore.records.job_results import SelectionPageStart
from tests.workflows.offload.offloading import offload
from tests.workflows.test_malformed import GOOD, OF_RECORDS
from tests.workflows.workflow_harness import WorkflowHarness, _activity_name, assert_eventually, query_current_details
from workers.client.temporal_connection import TRACE_ID
from workers.hosting.error_and_subject_interceptors import (
    MAX_SUMMARY_BYTES,
    WorkflowErrorAndSubjectInterceptor,
    shorten_summary,
    summarize_request,
)
from workers.hosting.temporal_workers import WORKFLOWS
from workers.hosting.workflow_input_checks import InputCheckingRunner
from workflows.deletion.job_definitions import TrimTopicInput

pytestmark = pytest.mark.external_service

_TOPIC = "persistent://tenant/namespace/orders"
_WHY: dict[str, Any] = {"actor": "me", "reason": "a test"}
_BATCH: dict[str, Any] = {"batch_id": "b", "batch_workflow_id": "delete-ledgers/b"}
_KEY = IntentKey(ledger_id=12, copy="LEDGER", generation=1)
_ORDER = TopicDeletionOrder(topic_id=1, topic=_TOPIC, **_WHY)
_PAGE = ApplyPageInput(run_id="p", page=3, before_us=1, epoch=1, **_BATCH, **_WHY)
SUMMARIES: dict[str, tuple[Any, str]] = {
    "deletion.detach": (
        DetachInput(topic=_TOPIC, topic_id=1, ledger_ids=[7, 8], **_BATCH, **_WHY),
        f"2 ledgers: 7, 8, batch b, {_TOPIC}",
    ),
    "deletion.next_ranges": (
        RowRangesInput(batch_id="b", catalog_epoch=1, after=100, rows=10, limit=50),
        "rows after 100, batch b",
    ),
    "deletion.delete_chunk": (
        ChunkInput(topic=_TOPIC, batch_id="b", catalog_epoch=1, chunk=IntentRowRange(first=1, last=100, rows=90)),
        f"rows 1 to 100, batch b, {_TOPIC}",
    ),
    "deletion.hand_over_chunk": (
        ChunkInput(batch_id="b", catalog_epoch=1, chunk=IntentRowRange(first=1, last=100, rows=90)),
        "rows 1 to 100, batch b",
    ),
    "deletion.delete_one": (
        DeleteIntentInput(topic=_TOPIC, key=_KEY, catalog_epoch=1, retry_interval_s=1),
        f"ledger 12, copy LEDGER, {_TOPIC}",
    ),
    "deletion.dead_letter": (
        DeadLetterInput(topic=_TOPIC, key=_KEY, catalog_epoch=1, error=""),
        f"ledger 12, copy LEDGER, {_TOPIC}",
    ),
    "deletion.certify": (CertifyInput(batch_id="b", **_WHY), "batch b"),
    "deletion.adopt": (TakeOverStalledInput(limit=10_000, **_BATCH), "at most 10,000 rows, batch b"),
    "deletion.forget": (RemoveOldIntentsInput(limit=5_000, **_WHY), "at most 5,000 rows"),
    "deletion.hold_batch": (ClaimPausedBatchInput(batch_id="b"), "batch b"),
    "deletion.pause_batch": (PauseOrResumeBatchInput(batch_id="b", paused=True), "batch b"),
    "retention.roll_idle": (RollIdleLedgerInput(topic_id=1, topic=_TOPIC), _TOPIC),
    "topic.set_deleting": (_ORDER, _TOPIC),
    "topic.detach_all": (DetachAllLedgersInput(order=_ORDER, **_BATCH), f"batch b, {_TOPIC}"),
    "topic.remove": (RemoveTopicInput(order=_ORDER, since_us=1), _TOPIC),
    "offload.upload": (UploadCopyInput(ledger_id=12, timeout_s=1), "ledger 12"),
    "offload.publish": (PublishCopyInput(ledger_id=12, uuid="u"), "ledger 12"),
    "offload.candidates": (
        LedgersToOffloadInput(topic_id=1, after=11, limit=50, topic=_TOPIC),
        f"ledgers after 11, {_TOPIC}",
    ),
    "offload.remove_primaries": (
        DetachPrimariesInput(topic_id=1, ledger_ids=[7], **_BATCH, **_WHY),
        "ledger 7, batch b",
    ),
    "trimming.next_pages": (NextTopicPagesInput(after=0, topics=50, limit=40), "topics after 0"),
    "trimming.trim_page": (
        TrimPageInput(page=TopicIdRange(first=1, last=50, topics=50), **_BATCH, **_WHY),
        "topics 1 to 50, batch b",
    ),
    "trimming.count_batch": (CountBatchInput(batch_id="b"), "batch b"),
    "reconciliation.begin_plan": (BeginPlanInput(run_id="p", **_WHY), "run p"),
    "reconciliation.run_bulk": (BulkJobInput(run_id="p", job="list-storage"), "list-storage, run p"),
    "reconciliation.check_sides": (PlanStepInput(run_id="p"), "run p"),
    "reconciliation.conclude_plan": (PlanStepInput(run_id="p"), "run p"),
    "pulsar.begin_plan": (BeginClusterPlanInput(run_id="p", **_WHY), "run p"),
    "pulsar.run_bulk": (BulkJobInput(run_id="p", job="scan-cluster-1"), "scan-cluster-1, run p"),
    "pulsar.conclude_plan": (PlanStepInput(run_id="p"), "run p"),
    "reconciliation.begin_apply": (BeginApplyInput(run_id="p", **_WHY), "run p"),
    "reconciliation.file_page": (_PAGE, "page 3, run p, batch b"),
    "reconciliation.delete_objects": (_PAGE, "page 3, run p, batch b"),
    "reconciliation.record_page": (_PAGE, "page 3, run p, batch b"),
    "reconciliation.conclude_apply": (PlanStepInput(run_id="p"), "run p"),
    "reconciliation.begin_scrub": (BeginScrubInput(run_id="s", topic_ids=[1, 2], **_WHY), "2 topics: 1, 2, run s"),
    "reconciliation.cut_scrub": (CutScrubInput(run_id="s"), "run s"),
    "reconciliation.scrub_page": (ScrubPageInput(run_id="s", page=3, bytes_per_s=1), "page 3, run s"),
    "reconciliation.conclude_scrub": (ScrubRunId(run_id="s"), "run s"),
    "pulsar.begin_apply": (BeginClusterApplyInput(run_id="p", actor="me", limit=5), "at most 5 rows, run p"),
    "pulsar.apply_page": (ApplyClusterPageInput(run_id="p", page=3), "page 3, run p"),
    "pulsar.conclude_apply": (ConcludeClusterApplyInput(run_id="p", actor="me"), "run p"),
    "pulsar.begin_undo": (BeginUndoInput(run_id="p", actor="ann", ledger_ids=[1, 2]), "2 ledgers: 1, 2, run p"),
    "pulsar.undo_page": (UndoPageInput(run_id="p", actor="ann", after=7, ledger_ids=[1, 2]), "2 ledgers: 1, 2, run p"),
    "pulsar.begin_abort": (
        BeginAbortInput(run_id="a", transactions=["3:17"], actor="me"),
        "1 transactions: 3:17, run a",
    ),
    "pulsar.abort_transaction": (AbortTransactionInput(run_id="a", txn="3:17"), "transaction 3:17, run a"),
    "pulsar.check_aborts": (CheckAbortsInput(run_id="a", attempts={}), "run a"),
    "pulsar.conclude_abort": (CheckAbortsInput(run_id="a", attempts={}), "run a"),
    "transactions.drain": (DrainInput(tc_id=3), "coordinator 3"),
    "transactions.tell": (BroadcastInput(txn="3:17"), "transaction 3:17"),
    "transactions.busy_coordinators": (BusyCoordinatorsInput(limit=4_096), "at most 4,096 rows"),
    "transactions.begin_build": (BeginBuildInput(run_id="s", actor="me"), "run s"),
    "transactions.build_buffers": (RunBuildJobInput(run_id="s"), "run s"),
    "transactions.switch_snapshots": (SwitchTopicsPageInput(run_id="s", page=3), "page 3, run s"),
    "transactions.conclude_build": (ConcludeBuildInput(run_id="s", counts={}), "run s"),
    "delayed.due_topics": (NextTopicPagesInput(after=7, topics=20, limit=4), "topics after 7"),
    "delayed.seal_topics": (SealTopicsInput(topic_ids=[1, 2]), "2 topics: 1, 2"),
    "delayed.seal_topic": (SealTopicInput(topic_id=1, topic=_TOPIC), _TOPIC),
    "delayed.choose_pair": (ChoosePairInput(topic_id=1, topic=_TOPIC), _TOPIC),
    "delayed.merge_pair": (
        MergePairInput(topic_id=1, bucket_ids=[7, 9], topic=_TOPIC),
        f"2 buckets: 7, 9, {_TOPIC}",
    ),
    "delayed.let_go": (ReleaseListInput(topic_id=1, topic=_TOPIC), _TOPIC),
    "delayed.begin_build": (BeginBuildInput(run_id="i", actor="me"), "run i"),
    "delayed.build_indexes": (RunBuildJobInput(run_id="i"), "run i"),
    "delayed.switch_indexes": (SwitchTopicsPageInput(run_id="i", page=3), "page 3, run i"),
    "delayed.conclude_build": (ConcludeBuildInput(run_id="i", counts={}), "run i"),
    "records.flush": (FlushInput(watch_s=60), "changes, looked for during 60 s"),
    "records.defragment": (RecordPassInput(reason="a test"), ""),
    "records.raid": (RaidInput(run_id="raid-1", eligible_age_s=60), "older than 60 s, run raid-1"),
    "records.begin_ending": (
        CheckEndRecordsInput(function="expired", topic_id=1, topic=_TOPIC),
        f"function expired, {_TOPIC}",
    ),
    "records.end_page": (
        EndRecordsPageInput(
            function="expired",
            topic_id=0,
            after=SelectionPageStart(),
            page=500,
            now_us=1,
            catalog_epoch=1,
            **_BATCH,
            **_WHY,
        ),
        "function expired, batch b",
    ),
    "records.ship": (RecordPassInput(reason="a test"), ""),
    "transactions.forget": (TransactionsToForget(limit=1_000), "at most 1,000 rows"),
}


def test_summaries_cover_every_activity_that_a_workflow_schedules(house: WorkflowHarness) -> None:
    """A new activity that nobody thought of fails here."""
    known = {_activity_name(one) for one in house.activities()}
    assert set(SUMMARIES) == known


@pytest.mark.parametrize("type_", sorted(SUMMARIES))
def test_summary_says_what_the_step_is_about(type_: str) -> None:
    """Rows, ledgers, copy, batch and topic, as far as the request has them."""
    request, expected = SUMMARIES[type_]
    assert summarize_request(request) == expected


def test_summary_is_short_enough_for_the_server() -> None:
    """In bytes, for a server refuses the whole workflow task over one that is too long."""
    assert len(shorten_summary("ü" * 1_000).encode()) <= MAX_SUMMARY_BYTES
    assert len(summarize_request(ClaimPausedBatchInput(batch_id="😀" * 500)).encode()) <= MAX_SUMMARY_BYTES
    many = DetachInput(topic_id=1, ledger_ids=list(range(1, 9)), **_BATCH, **_WHY)
    assert summarize_request(many) == "8 ledgers: 1, 2, 3, 4, 5, …, batch b"


async def summaries(handle: WorkflowHandle[Any, Any]) -> list[tuple[str, str]]:
    """Type and summary of each activity that the history has."""
    events = (await handle.fetch_history()).events
    scheduled = [one for one in events if one.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
    return [
        (one.activity_task_scheduled_event_attributes.activity_type.name, one.user_metadata.summary.data.decode())
        for one in scheduled
    ]


@pytest.mark.parametrize("cache", [0, 100])
async def test_activities_in_the_history_have_summaries(house: WorkflowHarness, cache: int) -> None:
    """As the Web UI reads them, of a run in the cache and of one that is replayed for each task."""
    house.world.fill(2)
    async with house.worker(max_cached_workflows=cache):
        handle = await house.trim()
        await handle.result()
        found = dict(await summaries(handle))
    topic = house.world.topic.name
    assert found["retention.roll_idle"] == f'"{topic}"'
    assert found["deletion.detach"].startswith('"batch ')
    assert found["deletion.detach"].endswith(f', {topic}"')


async def failed_with(handle: WorkflowHandle[Any, Any]) -> Failure:
    """What the Web UI leads with: the failure in the history's last event."""
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    last = (await handle.fetch_history()).events[-1]
    return last.workflow_execution_failed_event_attributes.failure


async def test_failed_trim_leads_with_the_sentence_of_its_activity(house: WorkflowHarness) -> None:
    """Type and sentence stand outermost, the activity's failure below them; the details begin with them too."""
    house.world.fill(2)
    wrong = TrimTopicInput(topic_id=house.world.topic.topic_id, topic=f"{_TOPIC}-2", **_WHY, policy=house.policy)
    async with house.worker():
        handle = await house.client.start_workflow(
            "trim-topic", wrong, id=f"{house.trim_workflow_id}/wrong", task_queue=house.queue
        )
        failure = await failed_with(handle)
        told = await query_current_details(handle)
    inner = failure.cause.cause
    assert failure.cause.HasField("activity_failure_info")
    assert failure.application_failure_info.type == inner.application_failure_info.type == "InvalidInput"
    assert failure.message == inner.message
    assert "topic" in failure.message
    assert told.startswith(f"**failed** — InvalidInput: {failure.message}")


async def test_failed_offload_leads_with_the_sentence_of_its_activity(house: WorkflowHarness) -> None:
    """An open ledger is refused by its activity."""
    house.world.create_readable_ledgers(1)
    last = house.world.catalog.ledgers.last_ledger(house.world.topic.topic_id)
    assert last
    async with house.worker():
        failure = await failed_with(await offload(house, last.ledger_id))
    assert failure.application_failure_info.type == "PreconditionFailed"
    assert str(last.ledger_id) in failure.message
    assert TRACE_ID not in failure.message


async def test_trim_whose_batch_was_terminated_leads_with_the_batch(house: WorkflowHarness) -> None:
    """Nobody raised an error of ours: the sentence names the workflow that is missing, the type what became of it."""

    @activity.defn(name="deletion.next_ranges")
    def list_ranges_and_renew_claim(request: RowRangesInput) -> RowRangesPage:
        raise StoreUnavailable("planned: the catalog is away")

    house.world.fill(1)
    async with house.worker(replacements=[list_ranges_and_renew_claim]):
        handle = await house.trim()
        await assert_eventually(lambda: bool(house.attempts("deletion.next_ranges")))
        (child,) = (await handle.describe()).raw_description.pending_children
        await house.client.get_workflow_handle(child.workflow_id).terminate()
        failure = await failed_with(handle)
    assert failure.application_failure_info.type == "TerminatedError"
    assert failure.message.startswith(f"{child.workflow_id}: ")
    assert failure.cause.HasField("child_workflow_execution_failure_info")


@pytest.mark.parametrize("type_", sorted(GOOD))
async def test_current_details_say_something_from_the_first_task_on(house: WorkflowHarness, type_: str) -> None:
    """Of every type, before its first activity has ended: no worker here does activities."""
    idle = Worker(
        house.client,
        task_queue=house.queue,
        workflows=WORKFLOWS,
        workflow_runner=InputCheckingRunner(),
        interceptors=[WorkflowErrorAndSubjectInterceptor()],
    )
    async with idle:
        handle: WorkflowHandle[Any, Any] = await house.client.start_workflow(
            type_, GOOD[type_], id=f"shown/{uuid.uuid4()}", task_queue=house.queue
        )
        told = await query_current_details(handle)
        with suppress(RPCError):  # a sweep whose steps nobody takes may have ended by itself
            await handle.terminate()
    about = {
        "trim-topics": type_,
        "sweep-deletions": type_,
        "offload-ledger": "**1**",
        "delete-ledger": "**1**",
        "reconcile-orphans": "plan-1",
        "apply-orphans": "plan-1",
        "scrub-ledgers": "beginning",
        **dict.fromkeys(("plan-pulsar", "apply-pulsar", "undo-pulsar"), "pulsar-1"),
        "abort-transactions": "abort-1",
        "transaction-coordinator": "coordinator 3",
        "broadcast-transaction": "transaction 3:17",
        "sweep-transactions": type_,
        "build-transaction-snapshots": "snapshots-1",
        "build-delayed-index": "indexes-1",
        "seal-buckets": type_,
        **dict.fromkeys(OF_RECORDS, type_),
        **dict.fromkeys(("flush-records", "sweep-records"), "during 60 s"),
        "raid-tombstones": "Raid **raid-",
        "end-records": "function expired",
        "rebuild-catalog": type_,
        "follow-records": "Replica **copy/0123abcd**",
    }
    assert about.get(type_, _TOPIC) in told


async def test_current_details_of_a_trim_that_found_nothing_say_that_it_ended(house: WorkflowHarness) -> None:
    """Nothing was counted, so that the workflow itself had nothing to say."""
    async with house.worker():
        handle = await house.trim()
        await handle.result()
        assert (await query_current_details(handle)).startswith(f"**ended** — {house.world.topic.name}")
