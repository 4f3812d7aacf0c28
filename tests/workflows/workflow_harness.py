"""Workers over a world in memory, and the verbs that tests of workflows are told in."""

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import pytest
from temporalio import activity, workflow
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkerDeploymentVersion, WorkflowIDConflictPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
    WorkerDeploymentConfig,
)

from activities.deletion.phase_two_steps import delete_ledger_workflow_id
from activities.deletion.topic_deletion import TopicDeletionActivities
from activities.deletion.trim_by_retention import RetentionPreparation, TrimAllTopicsActivities
from logstore.deletion.intents import BatchCertificate, DeleteIntentResult, IntentKey
from logstore.errors import SextonError, StoreUnavailable
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, TopicId
from tests.activities.activity_world import World
from tests.driver.concurrent_server import ConcurrentServer, ServedWorker
from tests.driver.simulated_client import SimulatedClient
from tests.driver.workflow_run import TASK_QUEUE
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from workers.hosting.error_and_subject_interceptors import (
    ActivityErrorAndSubjectInterceptor,
    WorkflowErrorAndSubjectInterceptor,
)
from workers.hosting.temporal_workers import UNREADABLE_INPUT_ERRORS, WORKFLOWS, make_workflow_runner
from workers.hosting.workflow_input_checks import COMMAND_BY_WORKFLOW, InputCheckingRunner
from workers.reference.workflow_contracts import list_workflow_contracts
from workflows.deletion.delete_ledger import DeleteLedger
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.delete_topic import DeleteTopic
from workflows.deletion.job_definitions import (
    DELETE_LEDGERS,
    DELETE_TOPIC,
    SWEEP_DELETIONS,
    TRIM_TOPIC,
    TRIM_TOPICS,
    DeleteLedgerInput,
    DeleteLedgersInput,
    DeleteTopicInput,
    DeleteTopicResult,
    DeletionPolicy,
    ExplicitDetach,
    SweepDeletionsInput,
    SweepDeletionsResult,
    TrimTopicInput,
    TrimTopicResult,
    TrimTopicsInput,
    TrimTopicsResult,
)
from workflows.deletion.sweep_deletions import SweepDeletions
from workflows.deletion.trim_topic import TrimTopic
from workflows.deletion.trim_topics import TrimTopics

Activity = Callable[..., Any]
H = TypeVar("H", bound=WorkflowHandle[Any, Any])


class Gate:
    """Holds an activity at an exact place until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        """Let everyone pass, now and later."""
        self._open.set()

    def wait(self) -> None:
        """Be held until the gate opens, or the activity is cancelled: then what comes next has to notice it."""
        self.reached.set()
        while not self._open.wait(0.01) and not (activity.in_activity() and activity.is_cancelled()):
            pass


class FakeRoller:
    """Rolls and settles nothing, fails as often as told, and can be held."""

    def __init__(self) -> None:
        self.failures = 0
        self.calls = 0
        self.action: Callable[[], None] = lambda: None

    def select_topics_to_roll(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        return frozenset(topic_ids)

    def select_topics_to_advance(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        return frozenset()

    def roll_if_due(self, topic: Topic) -> bool:
        self.calls += 1
        self.action()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("planned: cannot roll")
        return False

    def advance_and_fold_cursors_with_snapshots(self, topic_id: TopicId) -> list[SextonError]:
        return []


@dataclass(frozen=True)
class RecordedAttempt:
    """One attempt of an activity, by the workflow's own clock."""

    type: str
    workflow_id: str
    number: int
    scheduled: datetime
    queue: str


class AttemptRecorder(Interceptor):
    """Writes every attempt down."""

    def __init__(self) -> None:
        self.attempts: list[RecordedAttempt] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _AttemptRecordingInbound(next, self.attempts)


class _AttemptRecordingInbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, attempts: list[RecordedAttempt]) -> None:  # noqa: A002
        super().__init__(next)
        self._attempts = attempts

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        info = activity.info()
        self._attempts.append(
            RecordedAttempt(
                info.activity_type,
                info.workflow_id or "",
                info.attempt,
                info.current_attempt_scheduled_time,
                info.task_queue,
            )
        )
        return await self.next.execute_activity(input)


class WorkflowHarness:
    """One world on one task queue."""

    def __init__(self, client: Client, world: World, *, queue: str, first_ledger: int = 0) -> None:
        """Use a server and a world; where worlds share a server, their ledgers begin with different ids."""
        world.sql("UPDATE catalog SET next_ledger_id=:first", first=first_ledger)
        self.client = client
        self.first_ledger = first_ledger
        self.world = world
        self.queue = queue
        self.roller = FakeRoller()
        self.topics = TopicDeletionActivities(catalog=world.catalog)
        self.trimming = TrimAllTopicsActivities(
            catalog=world.catalog,
            retention=RetentionPreparation(topics=world.catalog.topics, roller=self.roller, settler=self.roller),
        )
        self.notebook = AttemptRecorder()
        self.policy = DeletionPolicy(chunk=2, parallelism=2)
        self._threads = ThreadPoolExecutor(8)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def worker(
        self, *, max_cached_workflows: int = 100, replacements: Sequence[Activity] = ()
    ) -> AbstractAsyncContextManager[Any]:
        """Every workflow and activity of this build; `replacements` stands for activities of the same names."""
        return self.serve(
            self.queue, self.activities(replacements), workflows=WORKFLOWS, max_cached_workflows=max_cached_workflows
        )

    def build(self, build_id: str, *, replacements: Sequence[Activity] = ()) -> Worker:
        """The same as one build of a deployment that is named as the queue; on a real server alone."""
        version = WorkerDeploymentVersion(self.queue, build_id)
        return Worker(
            self.client,
            task_queue=self.queue,
            workflows=WORKFLOWS,
            activities=self.activities(replacements),
            activity_executor=self._threads,
            workflow_runner=make_workflow_runner(self.client, versioned=True),
            graceful_shutdown_timeout=timedelta(0),
            interceptors=[WorkflowErrorAndSubjectInterceptor(), ActivityErrorAndSubjectInterceptor()],
            deployment_config=WorkerDeploymentConfig(version, use_worker_versioning=True),
        )

    def serve(
        self,
        queue: str,
        activities: Sequence[Activity],
        *,
        workflows: Sequence[type] = (),
        max_cached_workflows: int = 100,
    ) -> AbstractAsyncContextManager[Any]:
        """Make a worker of one queue; with workflows of commands alone one as the command hosts it."""
        workflow_names = {workflow._Definition.must_from_class(workflow_class).name for workflow_class in workflows}
        is_hosted_by_command = bool(workflow_names) and workflow_names <= COMMAND_BY_WORKFLOW.keys()
        return Worker(
            self.client,
            task_queue=queue,
            workflows=workflows,
            activities=activities,
            activity_executor=self._threads,
            workflow_runner=InputCheckingRunner() if is_hosted_by_command else make_workflow_runner(self.client),
            workflow_failure_exception_types=UNREADABLE_INPUT_ERRORS,
            max_cached_workflows=max_cached_workflows,
            max_heartbeat_throttle_interval=timedelta(milliseconds=50),
            graceful_shutdown_timeout=timedelta(0),
            interceptors=[self.notebook, WorkflowErrorAndSubjectInterceptor(), ActivityErrorAndSubjectInterceptor()],
        )

    def activities(self, replacements: Sequence[Activity] = ()) -> list[Activity]:
        """The activities of a worker over this world; `replacements` stands for those of the same names."""
        deletion = self.world.deletion
        retention = RetentionPreparation(topics=self.world.catalog.topics, roller=self.roller, settler=self.roller)
        topics, trimming = self.topics, self.trimming
        real_activities: list[Activity] = [
            deletion.detach,
            deletion.list_ranges_and_renew_claim,
            deletion.delete_chunk,
            deletion.hand_over_chunk,
            deletion.claim_and_delete_copy,
            deletion.dead_letter_intent,
            deletion.close_and_certify_batch,
            self.world.upkeep.take_over_stalled,
            self.world.upkeep.remove_old_intents,
            self.world.upkeep.claim_paused_batch,
            self.world.upkeep.pause_or_resume_batch,
            retention.roll_idle_ledger,
            topics.set_topic_deleting,
            topics.detach_all_ledgers,
            topics.remove_topic_and_tally,
            self.world.offload.upload_and_prove_copy,
            self.world.offload.publish_copy,
            self.world.offload.list_ledgers_to_offload,
            self.world.offload.prove_and_detach_primaries,
            trimming.list_next_topic_pages,
            trimming.trim_page,
            trimming.count_batch,
            *self._reconciliation_activities(),
            *self._cluster_activities(),
            *self._coordination_activities(),
            *self._snapshot_build_activities(),
            *self._delayed_index_activities(),
            self.world.activities.ending.check_ending_request,
            self.world.activities.ending.end_page,
            *self.world.activities.list_record_log_activities(),
        ]
        replaced = {_activity_name(activity_method) for activity_method in replacements}
        return [
            activity_method for activity_method in real_activities if _activity_name(activity_method) not in replaced
        ] + list(replacements)

    def attempts(self, type_: str = "") -> list[RecordedAttempt]:
        """Attempts of one activity type, or of all."""
        return [attempt for attempt in self.notebook.attempts if type_ in {"", attempt.type}]

    def gate(self, operation: StoreOperation) -> Gate:
        """Holds the next such request to storage."""
        gate = Gate()
        self.world.objects.plan(Fault(operation=operation, kind=FaultKind.CALL, action=gate.wait))
        return gate

    def _snapshot_build_activities(self) -> list[Activity]:
        building = self.world.activities.building
        return [
            building.begin_build,
            building.build_buffers,
            building.write_and_switch_snapshots,
            building.conclude_build,
        ]

    def _delayed_index_activities(self) -> list[Activity]:
        delayed = self.world.activities.delayed
        indexes = self.world.activities.indexes
        building: list[Activity] = [
            indexes.begin_build,
            indexes.build_indexes,
            indexes.store_and_switch_indexes,
            indexes.conclude_build,
        ]
        return [
            delayed.list_topics_with_index_work,
            delayed.drop_and_seal_topics,
            delayed.seal_whole_topic,
            delayed.claim_list_and_choose_pair,
            delayed.merge_pair,
            delayed.release_bucket_list,
            *building,
        ]

    def _scrub_activities(self) -> list[Activity]:
        scrubbing = self.world.activities.scrubbing
        return [
            scrubbing.begin_or_continue_scrub,
            scrubbing.cut_scrub_into_pages,
            scrubbing.scrub_page,
            scrubbing.conclude_scrub,
        ]

    def _reconciliation_activities(self) -> list[Activity]:
        planning, applying = self.world.activities.planning, self.world.activities.applying
        return [
            *self._scrub_activities(),
            planning.begin_plan_and_remove_old_runs,
            planning.run_plan_bulk_job,
            planning.require_plausible_comparison,
            planning.conclude_plan,
            applying.begin_apply,
            applying.recheck_and_file_page,
            applying.recheck_and_delete_objects,
            applying.record_page_fates,
            applying.conclude_apply,
        ]

    def _cluster_activities(self) -> list[Activity]:
        activities = self.world.activities
        planning, applying = activities.cluster_planning, activities.cluster_applying
        aborting = activities.transaction_aborting
        return [
            planning.check_cluster_and_begin_plan,
            planning.run_cluster_plan_bulk_job,
            planning.conclude_cluster_plan,
            applying.begin_cluster_apply,
            applying.apply_cluster_page,
            applying.conclude_cluster_apply,
            activities.cluster_undoing.begin_undo,
            activities.cluster_undoing.undo_page,
            aborting.begin_abort,
            aborting.abort_transaction,
            aborting.check_aborts,
            aborting.conclude_abort,
        ]

    def _coordination_activities(self) -> list[Activity]:
        coordination = self.world.activities.coordination
        return [
            coordination.abort_expired_and_broadcast_decided,
            coordination.tell_owed_participants,
            coordination.list_coordinators_with_work,
            coordination.remove_old_transactions,
        ]

    async def trim(self) -> WorkflowHandle[TrimTopic, TrimTopicResult]:
        """Start or join the topic's trim."""
        topic = self.world.topic
        return await self.client.start_workflow(
            TrimTopic.run,
            TrimTopicInput(
                topic_id=topic.topic_id, topic=topic.name, actor="tests", reason="a test", policy=self.policy
            ),
            id=self.trim_workflow_id,
            task_queue=self.queue,
            start_signal="again",
            static_summary=f"trim {topic.name}",
        )

    async def trim_all(self, **overrides: Any) -> WorkflowHandle[TrimTopics, TrimTopicsResult]:
        """Start or join the trim of all topics."""
        return await self.client.start_workflow(
            TrimTopics.run,
            TrimTopicsInput(actor="tests", reason="a test", policy=self.policy, **overrides),
            id=f"{TRIM_TOPICS.id()}/{self.queue}",
            task_queue=self.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )

    async def delete_topic(self, **overrides: Any) -> WorkflowHandle[DeleteTopic, DeleteTopicResult]:
        """Start or join the topic's deletion."""
        topic = self.world.topic
        defaults: dict[str, Any] = {"topic": topic.name, "policy": self.policy}
        return await self.client.start_workflow(
            DeleteTopic.run,
            DeleteTopicInput(topic_id=topic.topic_id, actor="tests", reason="a test", **(defaults | overrides)),
            id=f"{DELETE_TOPIC.id(topic.topic_id)}/{self.queue}",
            task_queue=self.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )

    async def sweep(self, **overrides: Any) -> WorkflowHandle[SweepDeletions, SweepDeletionsResult]:
        """Start a sweep, under an id of its own on the shared server, as a schedule would."""
        return await self.client.start_workflow(
            SweepDeletions.run,
            SweepDeletionsInput(policy=self.policy, **overrides),
            id=f"{SWEEP_DELETIONS.id()}/{self.queue}",
            task_queue=self.queue,
        )

    async def done(self, starting: Awaitable[WorkflowHandle[Any, Any]]) -> Any:
        """The result of what is started, with a worker for as long as it takes."""
        async with self.worker():
            handle = await starting
            try:
                return await handle.result()
            except WorkflowFailureError as error:
                require_documented_error(handle.id, error)
                raise

    @asynccontextmanager
    async def run_until_gate(self, gate: Gate, starting: Awaitable[H], **worker: Any) -> AsyncIterator[H]:
        """A worker, and what is started once it is at the gate; the block opens that."""
        async with self.worker(**worker):
            handle = await starting
            await assert_eventually(gate.reached.is_set)
            yield handle

    async def stop_worker_at_gate(self, gate: Gate, starting: Awaitable[H], **worker: Any) -> H:
        """At the gate, where its worker ended: it goes on with none. Then the gate opens."""
        async with self.run_until_gate(gate, starting, **worker) as handle:
            pass
        gate.open()
        return handle

    async def failed(self, starting: Awaitable[WorkflowHandle[Any, Any]]) -> tuple[str, str]:
        """Type and message of what it fails with, with a worker for as long as it takes."""
        with pytest.raises(WorkflowFailureError) as caught:
            await self.done(starting)
        return failure_type_and_message(caught.value)

    @property
    def trim_workflow_id(self) -> str:
        """Worlds number their topics alike; ids on the shared server tell them apart."""
        return f"{TRIM_TOPIC.id(self.world.topic.topic_id)}/{self.queue}"

    def make_delete_ledgers_input(self, batch_id: str, **overrides: Any) -> DeleteLedgersInput:
        """A batch of this topic."""
        defaults: dict[str, Any] = {"topic": self.world.topic.name, "catalog_epoch": 1, "policy": self.policy}
        return DeleteLedgersInput(
            batch_id=batch_id,
            topic_id=self.world.topic.topic_id,
            actor="tests",
            reason="a test",
            **(defaults | overrides),
        )

    async def delete(
        self, ledger_ids: Sequence[LedgerId] | None = None, *, batch_id: str | None = None, **overrides: Any
    ) -> WorkflowHandle[DeleteLedgers, BatchCertificate]:
        """Start a batch; given ledgers are detached by it."""
        batch = batch_id or f"b-{uuid.uuid4().hex[:8]}"
        if ledger_ids is not None:
            overrides["detach"] = ExplicitDetach(ledger_ids=[int(ledger_id) for ledger_id in ledger_ids])
        return await self.client.start_workflow(
            DeleteLedgers.run,
            self.make_delete_ledgers_input(batch, **overrides),
            id=DELETE_LEDGERS.id(batch),
            task_queue=self.queue,
        )

    async def claim_and_delete_copy(
        self, key: IntentKey, **overrides: Any
    ) -> WorkflowHandle[DeleteLedger, DeleteIntentResult]:
        """Start the workflow of one row."""
        defaults: dict[str, Any] = {"topic": self.world.topic.name, "catalog_epoch": 1}
        return await self.client.start_workflow(
            DeleteLedger.run,
            DeleteLedgerInput(key=key, **(defaults | overrides)),
            id=delete_ledger_workflow_id(key),
            task_queue=self.queue,
        )

    def alone(self, key: IntentKey) -> WorkflowHandle[Any, Any]:
        """The workflow that a row was handed to."""
        return self.client.get_workflow_handle(delete_ledger_workflow_id(key))


class InProcessWorkflowHarness(WorkflowHarness):
    """One world on the driver's server, in this process: no sleep or retry takes time, and nothing is sent anywhere."""

    def __init__(self, world: World) -> None:
        """Use a server of its own."""
        self.server = ConcurrentServer()
        super().__init__(cast("Client", SimulatedClient(self.server)), world, queue=TASK_QUEUE, first_ledger=1000)

    def serve(
        self,
        queue: str,
        activities: Sequence[Activity],
        *,
        workflows: Sequence[type] = (),
        max_cached_workflows: int = 100,
    ) -> AbstractAsyncContextManager[Any]:
        """Every worker serves all workflows."""
        del workflows, max_cached_workflows
        return ServedWorker(self.server, queue, activities, self._threads)

    def attempts(self, type_: str = "") -> list[RecordedAttempt]:
        begun_attempts = [
            (attempt, attempt.task.command, due) for attempt, due in self.server.made if type_ in {"", attempt.type}
        ]
        return [
            RecordedAttempt(
                attempt.type,
                attempt.workflow_id,
                attempt.number,
                datetime.fromtimestamp(due_ns / 1e9, UTC),
                command.task_queue,
            )
            for attempt, command, due_ns in begun_attempts
        ]


def _activity_name(activity_method: Activity) -> str:
    definition = activity._Definition.from_callable(activity_method)
    assert definition
    assert definition.name
    return definition.name


async def assert_eventually(condition: Callable[[], bool | Awaitable[bool]], *, within_s: float = 60) -> None:
    """Look again until the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + within_s
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline, "the condition never held"
        await asyncio.sleep(0.01)


def failure_type_and_message(error: WorkflowFailureError) -> tuple[str, str]:
    """Type and message of what a workflow failed with, whether it or an activity of it raised."""
    cause = error.cause.cause if isinstance(error.cause, ActivityError) else error.cause
    assert isinstance(cause, ApplicationError), cause
    return cause.type or "", cause.message


_CONTRACT_BY_WORKFLOW: Final = {one.name: one for one in list_workflow_contracts()}
_ERRORS_OF_ANY_JOB: Final = {"UnknownFault"}  # a bug: any job may end with it


def require_documented_error(workflow_id: str, error: WorkflowFailureError) -> None:
    """A job ends with errors alone that `docs/reference/workflows.md` names for it."""
    cause: BaseException | None = error.cause
    while isinstance(cause, ActivityError | ChildWorkflowError):
        cause = cause.cause
    contract = _CONTRACT_BY_WORKFLOW.get(workflow_id.partition("/")[0])
    if contract and isinstance(cause, ApplicationError):
        assert cause.type in {*contract.fails, *contract.retried, *_ERRORS_OF_ANY_JOB}, (contract.name, cause.type)


async def query_current_details(handle: WorkflowHandle[Any, Any]) -> str:
    """The current details that the Web UI shows; needs a worker."""
    metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(metadata.current_details)
