"""Input of workflows is read and checked before their own code sees it.

Any SDK, and any hand at `temporal workflow start`, may tell a workflow anything. Where that meets code that cannot read
it, the workflow's task fails and is tried again for ever, and the workflow's id is lost to all others. So a run whose
input is not one JSON object of its type, within its limits, fails at once as `InvalidInput`; a signal like that is
ignored with a log line, and an update is refused.

What Temporal adds to a run of a schedule, the result and the failure of the run before it, is dropped: no workflow of
ours reads them, and a worker without the key of their payloads could not. The worker's client must defer payloads that
it cannot read (`data_converter`): all others are refused here, which fails the step, and Temporal gives it to another
worker. A worker that encrypts gives a run of a schedule no result, for workers of earlier builds.

A run that an earlier build began with input that is refused now goes on with it when it is replayed. A refusal of input
that could be read is recorded, as `workflow.patched` records, so that its replay refuses too.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
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
from workers.client.payload_codec import require_read
from workers.hosting.facts import FIELD
from workflows import limits
from workflows.records.values import FOLLOW_RECORDS, REBUILD_CATALOG

_JSON: Final = "json/plain"
_REFUSED: Final = "input-refused"
_IGNORED: Final = "signal-ignored"
_KIND: Final = InvalidInput.__name__
_TELLING: Final = {"initialize_workflow", "signal_workflow", "do_update"}
_SCHEDULED_BY: Final = "TemporalScheduledById"
"""Search attribute that Temporal gives to each run of a schedule."""

_PARENTS: Final = (
    "trim-topic",
    "delete-topic",
    "delete-ledgers",
    "sweep-deletions",
    "offload-topic",
    "apply-orphans",
    "transaction-coordinator",
    "sweep-transactions",
    "seal-buckets",
    "sweep-records",
    "flush-records",
    "defragment-records",
    "raid-tombstones",
    "replicate-records",
    "end-records",
)
"""How ids of our jobs begin that start others: an id is all that a child knows of its parent."""

COMMAND_BY_WORKFLOW: Final[Mapping[str, str]] = {
    REBUILD_CATALOG.name: "sexton records rebuild",
    FOLLOW_RECORDS.name: "sexton records follow",
}
"""Commands that host a workflow and its activities themselves, by its type: no worker has those activities."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a run ends before it begins."""

    field: str
    sentence: str
    recorded: bool  # whether an earlier build would have gone on with it


@workflow.defn(name=_REFUSED, sandboxed=False)
class Refused:
    """Stands for a workflow whose input is refused."""

    @workflow.run
    async def run(self, refusal: Refusal) -> None:
        """Fail with the sentence."""
        if refusal.recorded:
            workflow.patched(_REFUSED)
        workflow.set_current_details(f"**Refused** — {refusal.sentence}")
        raise ApplicationError(refusal.sentence, {FIELD: refusal.field}, type=_KIND, non_retryable=True)


@dataclass(frozen=True)
class CheckedRunner(SandboxedWorkflowRunner):
    """Runs workflows in the sandbox, once it has been seen that they can read what they are told.

    Each workflow declares whether its runs are pinned to a build. Temporal refuses every step of a worker that says so
    and takes no part in Worker Versioning, so it is said by those alone that do.
    """

    versioned: bool = False  # whether the worker takes part in Worker Versioning
    encrypts: bool = False  # whether the worker encrypts what it writes
    command_by_workflow: Mapping[str, str] = field(default_factory=dict)
    """Commands that host a workflow themselves, by its type. A start of it is refused: its activities are not here.

    A replay refuses where the worker has.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        command = self.command_by_workflow.get(det.info.workflow_type, "")
        return _Checked(
            super().create_instance(det), det, versioned=self.versioned, encrypts=self.encrypts, hosted_by=command
        )


class CheckedPlainRunner(UnsandboxedWorkflowRunner):
    """The same outside the sandbox, for a debugger."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        command = COMMAND_BY_WORKFLOW.get(det.info.workflow_type, "")
        return _Checked(super().create_instance(det), det, hosted_by=command)


class _Checked(WorkflowInstance):
    """A run in the sandbox, or `Refused` in its place."""

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
        self._behaviour = (declared or VersioningBehavior.UNSPECIFIED).value
        self._det = det
        self._queue = det.info.task_queue
        # As far as an id tells. A stranger's job of such an id gains nothing by it: all that our code cannot read is
        # refused to children too, of its limits it escapes those alone that an earlier build did not know, and
        # activities check names and ids themselves.
        child = det.info.parent is not None and det.info.parent.workflow_id.startswith(_PARENTS)
        self._ours = bool(det.info.continued_run_id) or child

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """See `WorkflowInstance`.

        Raises:
            InvalidInput: A payload of the run cannot be read.
        """
        for job in act.jobs:
            if job.HasField("initialize_workflow"):
                job.initialize_workflow.ClearField("last_completion_result")
                job.initialize_workflow.ClearField("continued_failure")
        require_read(act)
        told, answers = act, list[WorkflowCommand]()
        if any(job.WhichOneof("variant") in _TELLING for job in act.jobs):
            told = WorkflowActivation()
            told.CopyFrom(act)
            del told.jobs[:]
            told.jobs.extend(job for job in act.jobs if self._takes(job, act, answers))
        completion = self._inner.activate(told)
        if completion.HasField("successful"):
            completion.successful.versioning_behavior = self._behaviour
            if self._drops_result:  # replay compares kinds of commands, and not results
                for command in completion.successful.commands:
                    if command.HasField("complete_workflow_execution"):
                        command.complete_workflow_execution.ClearField("result")
            if answers:
                answers += completion.successful.commands
                del completion.successful.commands[:]
                completion.successful.commands.extend(answers)
        return completion

    def _takes(self, job: WorkflowActivationJob, act: WorkflowActivation, answers: list[WorkflowCommand]) -> bool:
        """Whether the run is to see the job; answers of our own are added to `answers`."""
        if job.HasField("initialize_workflow"):
            self._begin(job.initialize_workflow, act)
        elif job.HasField("signal_workflow"):
            return self._takes_signal(job.signal_workflow, act, answers)
        elif job.HasField("do_update") and job.do_update.run_validator:  # otherwise it was accepted long ago
            return self._takes_update(job.do_update, answers)
        return True

    def _begin(self, start: InitializeWorkflow, act: WorkflowActivation) -> None:
        found = self._misplaced() or _refusal(
            "input", start.arguments, self._det.defn.arg_types, queue=self._queue, outside=not self._ours
        )
        if found is None or (found.recorded and act.is_replaying and _REFUSED not in _recorded(act)):
            return
        self._inner = asyncio.run(_refused(self._det))
        del start.arguments[:]
        start.arguments.extend(pydantic_data_converter.payload_converter.to_payloads([found]))

    def _misplaced(self) -> Refusal | None:
        if not self._hosted_by:
            return None
        expected = f"the queue of `{self._hosted_by}`, whose own worker alone does {self._det.info.workflow_type}"
        error = InvalidInput("task_queue", expected=expected, found=self._queue)
        return Refusal(field=error.field, sentence=str(error), recorded=True)

    def _takes_signal(self, signal: SignalWorkflow, act: WorkflowActivation, answers: list[WorkflowCommand]) -> bool:
        known = self._det.defn.signals.get(signal.signal_name)
        found = known and _refusal(
            f"signal {signal.signal_name}", signal.input, known.arg_types, queue=self._queue, outside=True
        )
        mark = f"{_IGNORED}-{signal.originating_event_id}"
        if not found or (found.recorded and act.is_replaying and mark not in _recorded(act)):
            return True
        if found.recorded:
            command = WorkflowCommand()
            command.set_patch_marker.patch_id = mark
            answers.append(command)
        if not act.is_replaying:
            _log.warning("%s: ignored: %s", self._det.info.workflow_id, found.sentence)
        return False

    def _takes_update(self, update: DoUpdate, answers: list[WorkflowCommand]) -> bool:
        known = self._det.defn.updates.get(update.name)
        found = known and _refusal(
            f"update {update.name}", update.input, known.arg_types, queue=self._queue, outside=True
        )
        if not found:
            return True
        command = WorkflowCommand()
        command.update_response.protocol_instance_id = update.protocol_instance_id
        refused = ApplicationError(found.sentence, type=_KIND, non_retryable=True)
        self._det.failure_converter_class().to_failure(
            refused, pydantic_data_converter.payload_converter, command.update_response.rejected
        )
        answers.append(command)
        return False

    def get_serialization_context(self, command_info: Any) -> None:  # noqa: ANN401 - the SDK's own type
        """None: our values travel alike whatever they belong to. The sandbox is not asked for each payload."""

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:  # noqa: ANN401 - as above
        """Of no run: no payload of ours is stored elsewhere."""
        del command_info
        return StorageDriverStoreContext(target=None)

    def get_info(self) -> workflow.Info:
        """See `WorkflowInstance`."""
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        """See `WorkflowInstance`."""
        return self._inner.get_thread_id()


async def _refused(det: WorkflowInstanceDetails) -> WorkflowInstance:
    """`Refused` in the place of a run; a coroutine, because instances are made on a running loop."""
    definition = workflow._Definition.must_from_class(Refused)  # noqa: SLF001 - the SDK has no public way
    return UnsandboxedWorkflowRunner().create_instance(replace(det, defn=definition))


def _recorded(act: WorkflowActivation) -> set[str]:
    return {job.notify_has_patch.patch_id for job in act.jobs if job.HasField("notify_has_patch")}


def _refusal(
    what: str, payloads: Sequence[Payload], types: Sequence[type] | None, *, queue: str, outside: bool
) -> Refusal | None:
    """Why it is refused, or None; recorded where earlier builds would have taken it."""
    try:
        _check(what, payloads, types or (), queue=queue, outside=False)
    except InvalidInput as error:
        return Refusal(field=error.field, sentence=str(error), recorded=False)
    try:
        _check(what, payloads, types or (), queue=queue, outside=outside)
    except InvalidInput as error:
        return Refusal(field=error.field, sentence=str(error), recorded=True)
    return None


def _check(what: str, payloads: Sequence[Payload], types: Sequence[type], *, queue: str, outside: bool) -> None:
    """Read it all.

    Raises:
        InvalidInput: It is too little or too much, cannot be read, or is beyond its limits.
    """
    if len(payloads) != len(types):
        found = f"{len(payloads)} values" if payloads else "nothing"
        raise InvalidInput(what, expected="one JSON object" if types else "nothing", found=found)
    for payload, kind in zip(payloads, types, strict=True):
        value = _read(what, payload, kind, outside=outside)
        limits.check_request(value, queue=queue, outside=outside)


def _read(what: str, payload: Payload, kind: type, *, outside: bool) -> Any:  # noqa: ANN401
    """Return the value of a payload.

    From outside a field must have its own JSON type: `true` and `"7"` are not the numbers 1 and 7.

    Raises:
        InvalidInput: It is no JSON object of that kind.
    """
    encoding = payload.metadata.get("encoding", b"").decode(errors="replace")
    if encoding != _JSON:
        raise InvalidInput(what, expected=f"one JSON object, in the encoding {_JSON}", found=encoding)
    try:
        return _adapter(kind).validate_json(payload.data, extra="forbid" if outside else None, strict=outside)
    except ValidationError as error:
        raise _told(what, error) from error


_adapter = lru_cache(maxsize=64)(TypeAdapter)


def _told(what: str, error: ValidationError) -> InvalidInput:
    """The first of what is wrong."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or what
    match first["type"]:
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return InvalidInput(path, expected="a value", found=None)
        case "unexpected_keyword_argument" | "extra_forbidden":
            return InvalidInput(path, expected="no field of this name", found=first["input"])
        case "dataclass_type":
            return InvalidInput(path, expected="one JSON object", found=first["input"])
        case "json_invalid":
            return InvalidInput(path, expected="one JSON object", found=first["msg"])
    expected = first["msg"].removeprefix("Input should be ").partition(",")[0]
    return InvalidInput(path, expected=expected, found=first["input"])
