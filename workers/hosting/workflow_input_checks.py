"""Checks of the input of workflows before workflow code reads it.

Any SDK and any user of `temporal workflow start` can send any input. If workflow code cannot read the input, the
workflow task fails and is retried without end. The workflow id is then blocked. These rules prevent that:

1. If the input is not one JSON object of the expected type and within its limits, the run fails as `InvalidInput`. An
   invalid signal is ignored with a log line. An invalid update is refused.
2. If this worker cannot decrypt a workflow payload, the workflow task fails, and Temporal gives the task to another
   worker. The worker's client must defer decryption errors (see `make_data_converter`).
3. Temporal gives a scheduled run the result and the failure of the previous run. The worker drops both, because no
   workflow reads them, and the worker may lack the key. A worker that encrypts stores no result of a scheduled run.
4. An earlier build may have started a run with input that this build refuses. Such a run continues. A refusal of
   readable input is recorded with `workflow.patched`, so that a replay of the run refuses the input, too.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import (
    DoUpdate,
    InitializeWorkflow,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.common import VersioningBehavior
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import StorageDriverStoreContext
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from logstore.errors import InvalidInput
from logstore.field_bounds import OutsideInput
from workers.client.data_converter import require_decrypted
from workers.client.temporal_connection import FIELD
from workers.validation_refusals import get_type_adapter, refusal_from_validation_error
from workflows.jobs import JOB_BY_NAME

_JSON: Final = "json/plain"
_REFUSED: Final = "input-refused"
_IGNORED: Final = "signal-ignored"
_ERROR_TYPE: Final = InvalidInput.__name__
_CHECKED_JOBS: Final = {"initialize_workflow", "signal_workflow", "do_update"}
_SCHEDULED_BY: Final = "TemporalScheduledById"
"""Search attribute that each run of a schedule has."""

_PARENT_ID_PREFIXES: Final = tuple(job.name for job in JOB_BY_NAME.values() if job.starts_jobs)
"""Prefixes of workflow ids of jobs that start child workflows. A child knows its parent only by id."""

COMMAND_BY_WORKFLOW: Final[Mapping[str, str]] = {job.name: job.command for job in JOB_BY_NAME.values() if job.command}
"""Commands that serve a workflow type themselves. No other worker has the activities of these workflows."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRefusal:
    field: str
    message: str
    is_recorded: bool  # whether an earlier build would have accepted the input


@workflow.defn(name=_REFUSED, sandboxed=False)
class RefusedInputRun:
    """Workflow that runs instead of a workflow whose input is refused, and fails with the refusal."""

    @workflow.run
    async def run(self, refusal: InputRefusal) -> None:
        if refusal.is_recorded:
            workflow.patched(_REFUSED)
        workflow.set_current_details(f"**Refused** — {refusal.message}")
        raise ApplicationError(refusal.message, {FIELD: refusal.field}, type=_ERROR_TYPE, non_retryable=True)


@dataclass(frozen=True)
class InputCheckingRunner(SandboxedWorkflowRunner):
    """Sandboxed runner that checks the input before the workflow runs.

    With Worker Versioning, a worker reports that runs are pinned. Temporal refuses this report from other workers.
    """

    versioned: bool = False  # whether the worker uses Worker Versioning
    encrypts: bool = False  # whether the worker encrypts workflow payloads
    command_by_workflow: Mapping[str, str] = field(default_factory=dict)
    """Commands that serve a workflow type themselves. This runner refuses runs of these types."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        command = self.command_by_workflow.get(det.info.workflow_type, "")
        return _InputCheckingInstance(
            super().create_instance(det), det, versioned=self.versioned, encrypts=self.encrypts, hosted_by=command
        )


class InputCheckingDebugRunner(UnsandboxedWorkflowRunner):
    """Runner for a debugger: it has no sandbox, and checks the input before the workflow runs."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        command = COMMAND_BY_WORKFLOW.get(det.info.workflow_type, "")
        return _InputCheckingInstance(super().create_instance(det), det, hosted_by=command)


class _InputCheckingInstance(WorkflowInstance):
    def __init__(
        self,
        inner: WorkflowInstance,
        det: WorkflowInstanceDetails,
        *,
        versioned: bool = False,
        encrypts: bool = False,
        hosted_by: str = "",
    ) -> None:
        self._inner = inner
        self._hosted_by = hosted_by
        self._drops_result = encrypts and _SCHEDULED_BY in det.info.search_attributes
        declared = det.defn.versioning_behavior if versioned else None
        self._versioning_behavior = (declared or VersioningBehavior.UNSPECIFIED).value
        self._det = det
        self._queue = det.info.task_queue
        # A foreign job could use such an id. It would only evade limits that earlier builds did not know: unreadable
        # input is refused in any case, and activities check names and ids.
        is_child = det.info.parent is not None and det.info.parent.workflow_id.startswith(_PARENT_ID_PREFIXES)
        self._is_from_workflow = bool(det.info.continued_run_id) or is_child

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        for job in act.jobs:
            if job.HasField("initialize_workflow"):
                job.initialize_workflow.ClearField("last_completion_result")
                job.initialize_workflow.ClearField("continued_failure")
        require_decrypted(act)
        accepted, commands = act, list[WorkflowCommand]()
        if any(job.WhichOneof("variant") in _CHECKED_JOBS for job in act.jobs):
            accepted = WorkflowActivation()
            accepted.CopyFrom(act)
            del accepted.jobs[:]
            accepted.jobs.extend(job for job in act.jobs if self._accept_or_refuse_job(job, act, commands))
        completion = self._inner.activate(accepted)
        if completion.HasField("successful"):
            completion.successful.versioning_behavior = self._versioning_behavior
            if self._drops_result:  # safe, because a replay compares the types of commands, not results
                for command in completion.successful.commands:
                    if command.HasField("complete_workflow_execution"):
                        command.complete_workflow_execution.ClearField("result")
            if commands:
                commands += completion.successful.commands
                del completion.successful.commands[:]
                completion.successful.commands.extend(commands)
        return completion

    def _accept_or_refuse_job(
        self, job: WorkflowActivationJob, act: WorkflowActivation, commands: list[WorkflowCommand]
    ) -> bool:
        if job.HasField("initialize_workflow"):
            self._refuse_invalid_start(job.initialize_workflow, act)
        elif job.HasField("signal_workflow"):
            return self._accept_or_ignore_signal(job.signal_workflow, act, commands)
        elif job.HasField("do_update") and job.do_update.run_validator:  # False: the update was accepted earlier
            return self._accept_or_reject_update(job.do_update, commands)
        return True

    def _refuse_invalid_start(self, start: InitializeWorkflow, act: WorkflowActivation) -> None:
        refusal = _find_refusal(
            "input", start.arguments, self._det.defn.arg_types, queue=self._queue, outside=not self._is_from_workflow
        )
        if self._hosted_by:
            expected = f"the queue of `{self._hosted_by}`, whose own worker alone does {self._det.info.workflow_type}"
            error = InvalidInput("task_queue", expected=expected, found=self._queue)
            refusal = InputRefusal(field=error.field, message=str(error), is_recorded=True)
        if refusal is None or (refusal.is_recorded and act.is_replaying and _REFUSED not in _recorded_patches(act)):
            return
        self._inner = asyncio.run(_create_refused_run(self._det))
        del start.arguments[:]
        start.arguments.extend(pydantic_data_converter.payload_converter.to_payloads([refusal]))

    def _accept_or_ignore_signal(
        self, signal: SignalWorkflow, act: WorkflowActivation, commands: list[WorkflowCommand]
    ) -> bool:
        definition = self._det.defn.signals.get(signal.signal_name)
        refusal = definition and _find_refusal(
            f"signal {signal.signal_name}", signal.input, definition.arg_types, queue=self._queue, outside=True
        )
        patch_id = f"{_IGNORED}-{signal.originating_event_id}"
        if not refusal or (refusal.is_recorded and act.is_replaying and patch_id not in _recorded_patches(act)):
            return True
        if refusal.is_recorded:
            command = WorkflowCommand()
            command.set_patch_marker.patch_id = patch_id
            commands.append(command)
        if not act.is_replaying:
            _log.warning("%s: ignored: %s", self._det.info.workflow_id, refusal.message)
        return False

    def _accept_or_reject_update(self, update: DoUpdate, commands: list[WorkflowCommand]) -> bool:
        definition = self._det.defn.updates.get(update.name)
        refusal = definition and _find_refusal(
            f"update {update.name}", update.input, definition.arg_types, queue=self._queue, outside=True
        )
        if not refusal:
            return True
        command = WorkflowCommand()
        command.update_response.protocol_instance_id = update.protocol_instance_id
        error = ApplicationError(refusal.message, type=_ERROR_TYPE, non_retryable=True)
        self._det.failure_converter_class().to_failure(
            error, pydantic_data_converter.payload_converter, command.update_response.rejected
        )
        commands.append(command)
        return False

    def get_serialization_context(self, command_info: Any) -> None:  # noqa: ANN401 - the SDK's own type
        """Return `None` without a call into the sandbox, because no converter here depends on the context."""

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:  # noqa: ANN401 - as above
        """Return an empty context, because Temporal stores all workflow payloads itself."""
        del command_info
        return StorageDriverStoreContext(target=None)

    def get_info(self) -> workflow.Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


async def _create_refused_run(det: WorkflowInstanceDetails) -> WorkflowInstance:
    """Create a `RefusedInputRun`. The SDK creates instances only on a running event loop."""
    definition = workflow._Definition.must_from_class(RefusedInputRun)  # noqa: SLF001 - the SDK has no public way
    return UnsandboxedWorkflowRunner().create_instance(replace(det, defn=definition))


def _recorded_patches(act: WorkflowActivation) -> set[str]:
    return {job.notify_has_patch.patch_id for job in act.jobs if job.HasField("notify_has_patch")}


def _find_refusal(
    field: str, payloads: Sequence[Payload], types: Sequence[type] | None, *, queue: str, outside: bool
) -> InputRefusal | None:
    try:
        _check_payloads(field, payloads, types or (), queue=queue, outside=False)
    except InvalidInput as error:
        return InputRefusal(field=error.field, message=str(error), is_recorded=False)
    try:
        _check_payloads(field, payloads, types or (), queue=queue, outside=outside)
    except InvalidInput as error:
        return InputRefusal(field=error.field, message=str(error), is_recorded=True)
    return None


def _check_payloads(
    field: str, payloads: Sequence[Payload], types: Sequence[type], *, queue: str, outside: bool
) -> None:
    """Refuse workflow payloads that are too few, too many, unreadable, or out of bounds.

    With `outside`, which means input from outside Sexton, refuse unknown fields and values of another JSON type, too.
    """
    if len(payloads) != len(types):
        count = f"{len(payloads)} values" if payloads else "nothing"
        raise InvalidInput(field, expected="one JSON object" if types else "nothing", found=count)
    for payload, value_type in zip(payloads, types, strict=True):
        encoding = payload.metadata.get("encoding", b"").decode(errors="replace")
        if encoding != _JSON:
            raise InvalidInput(field, expected=f"one JSON object, in the encoding {_JSON}", found=encoding)
        try:
            get_type_adapter(value_type).validate_json(
                payload.data,
                extra="forbid" if outside else None,
                strict=outside,
                context=OutsideInput(queue) if outside else None,
            )
        except ValidationError as error:
            raise refusal_from_validation_error(error, field) from error
