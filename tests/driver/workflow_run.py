"""One run of a workflow: the SDK's own instance, what it was told so far, and its replay once its worker is lost."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.common.v1 import Payload, Payloads, SearchAttributes
from temporalio.bridge.proto.workflow_activation import InitializeWorkflow, WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.common import Priority
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import decode_search_attributes, decode_typed_search_attributes
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowInterceptorClassInput,
)
from temporalio.workflow import Info, ParentInfo, _Definition

from workers.hosting.error_and_subject_interceptors import WorkflowErrorAndSubjectInterceptor
from workers.hosting.temporal_workers import UNREADABLE_INPUT_ERRORS, WORKFLOWS

NAMESPACE: Final = "default"
TASK_QUEUE: Final = "shared"
_TASK_TIMEOUT: Final = timedelta(days=1)
_CONVERTER: Final = pydantic_data_converter.payload_converter  # one for all: it remembers how it reads each type
_RUNNER: Final = UnsandboxedWorkflowRunner()
_WORKFLOW_INTERCEPTOR: Final = WorkflowErrorAndSubjectInterceptor().workflow_interceptor_class(
    WorkflowInterceptorClassInput(unsafe_extern_functions={})
)
DEFINITION_BY_WORKFLOW: Final = {found.name: found for found in map(_Definition.must_from_class, WORKFLOWS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What begins a run."""

    type: str
    workflow_id: str
    run_id: str
    seed: int
    arguments: Sequence[Payload]
    attributes: SearchAttributes = field(default_factory=SearchAttributes)
    parent: ParentInfo | None = None
    continued: str = ""  # the run that it goes on from

    def job(self) -> WorkflowActivationJob:
        """The first thing that the run is told."""
        initialization = InitializeWorkflow(
            workflow_type=self.type,
            workflow_id=self.workflow_id,
            arguments=self.arguments,
            randomness_seed=self.seed,
            continued_from_execution_run_id=self.continued,
            attempt=1,
            search_attributes=self.attributes,
        )
        return WorkflowActivationJob(initialize_workflow=initialization)


@dataclass(frozen=True, slots=True)
class _ActivationRecord:
    """One activation, and what the workflow wanted then."""

    activation: WorkflowActivation
    completion: WorkflowActivationCompletion

    @property
    def wanted(self) -> list[bytes]:
        return [command.SerializeToString(deterministic=True) for command in self.completion.successful.commands]

    def again(self, flags: Sequence[int]) -> WorkflowActivation:
        """The activation as a worker gets it that replays: with the patches that were recorded then."""
        activation = WorkflowActivation()
        activation.CopyFrom(self.activation)
        activation.is_replaying = True
        activation.available_internal_flags[:] = flags
        for command in self.completion.successful.commands:
            if command.HasField("set_patch_marker"):
                activation.jobs.add().notify_has_patch.patch_id = command.set_patch_marker.patch_id
        return activation


class WorkflowRun:
    """A run; whoever drives it tells it what happened, and gets what it wants."""

    def __init__(self, start: RunStart) -> None:
        """Nothing is told yet, not even that it begins."""
        self.start = start
        self._activation_records: list[_ActivationRecord] = []
        self._instance: WorkflowInstance | None = None

    @property
    def told(self) -> int:
        """How many activations it had."""
        return len(self._activation_records)

    def tell(
        self, jobs: Sequence[WorkflowActivationJob], *, now_ns: int, suggests_continue_as_new: bool
    ) -> Sequence[WorkflowCommand]:
        """Give the run what happened.

        Args:
            jobs: What happened.
            now_ns: The time by the server's clock.
            suggests_continue_as_new: Whether the server finds the history long enough.

        Raises:
            AssertionError: The workflow's task failed: on a real server it would be tried again for ever.
        """
        activation = WorkflowActivation(
            run_id=self.start.run_id,
            jobs=jobs,
            history_length=3 * len(self._activation_records) + 3,
            continue_as_new_suggested=suggests_continue_as_new,
            available_internal_flags=self._used_flags(),
        )
        activation.timestamp.FromNanoseconds(now_ns)
        if self._instance is None:
            self._instance = self._replay_into_new_instance()
        completion = self._instance.activate(activation)
        assert not completion.HasField("failed"), f"{self.start.workflow_id}: {completion.failed.failure}"
        self._activation_records.append(_ActivationRecord(activation, completion))
        return completion.successful.commands

    def ask(self, query_name: str) -> Payload:
        """Its answer to a query."""
        activation = WorkflowActivation()
        activation.CopyFrom(self._activation_records[-1].activation)
        del activation.jobs[:]
        activation.jobs.add().query_workflow.query_type = query_name
        if self._instance is None:
            self._instance = self._replay_into_new_instance()
        (command,) = self._instance.activate(activation).successful.commands
        return command.respond_to_query.succeeded.response

    def forget(self) -> None:
        """The worker that had it in memory is gone."""
        instance, self._instance = self._instance, None
        if instance:
            eviction = WorkflowActivation(run_id=self.start.run_id)
            eviction.jobs.add().remove_from_cache.SetInParent()
            instance.activate(eviction)

    def _used_flags(self) -> list[int]:
        return sorted(
            {flag for record in self._activation_records for flag in record.completion.successful.used_internal_flags}
        )

    def _replay_into_new_instance(self) -> WorkflowInstance:
        """An instance that has come to where the lost one was.

        Raises:
            AssertionError: It took another way there.
        """
        instance, flags = _create_instance(self.start), self._used_flags()
        for record in self._activation_records:
            replayed_record = _ActivationRecord(record.activation, instance.activate(record.again(flags)))
            assert replayed_record.wanted == record.wanted, (
                f"{self.start.workflow_id} wants on replay {replayed_record.completion}, and wanted {record.completion}"
            )
        return instance


def _create_instance(start: RunStart) -> WorkflowInstance:
    """A new instance; it notes down whichever loop runs while it is made, and never uses it."""
    asyncio._set_running_loop(asyncio.AbstractEventLoop())  # type: ignore[abstract]
    try:
        return _RUNNER.create_instance(_instance_details(start))
    finally:
        asyncio._set_running_loop(None)


def _instance_details(start: RunStart) -> WorkflowInstanceDetails:
    return WorkflowInstanceDetails(
        payload_converter_factory=lambda: _CONVERTER,
        failure_converter_class=pydantic_data_converter.failure_converter_class,
        interceptor_classes=[_WORKFLOW_INTERCEPTOR],
        defn=DEFINITION_BY_WORKFLOW[start.type],
        info=_workflow_info(start),
        randomness_seed=start.seed,
        extern_functions={},
        disable_eager_activity_execution=True,
        worker_level_failure_exception_types=UNREADABLE_INPUT_ERRORS,
        patch_activation_callback=None,
        last_completion_result=Payloads(),
        last_failure=None,
    )


def _workflow_info(start: RunStart) -> Info:
    start_time = datetime.fromtimestamp(0, UTC)
    return Info(
        attempt=1,
        continued_run_id=start.continued or None,
        cron_schedule=None,
        execution_timeout=None,
        first_execution_run_id=start.run_id,
        headers={},
        namespace=NAMESPACE,
        original_execution_run_id=start.run_id,
        parent=start.parent,
        root=None,
        priority=Priority.default,
        raw_memo={},
        retry_policy=None,
        run_id=start.run_id,
        run_timeout=None,
        search_attributes=decode_search_attributes(start.attributes),
        start_time=start_time,
        task_queue=TASK_QUEUE,
        task_timeout=_TASK_TIMEOUT,
        typed_search_attributes=decode_typed_search_attributes(start.attributes),
        workflow_id=start.workflow_id,
        workflow_start_time=start_time,
        workflow_type=start.type,
    )
