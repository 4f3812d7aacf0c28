"""What a Temporal server keeps and decides: runs by id, attempts of activities, timers, children, and time.

Nothing happens by itself here. Who drives it says which attempt is made next and how it ends; what a workflow then
wants is done at once. Where nothing can be done before some moment, `skip` goes there. It knows of Temporal what the
project's workflows use, and refuses the rest.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any, Final, Protocol

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import RetryState, WorkflowIdReusePolicy
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution, Cancellation, Success
from temporalio.bridge.proto.activity_result import Failure as Failed
from temporalio.bridge.proto.child_workflow import (
    ChildWorkflowCancellationType,
    ParentClosePolicy,
    StartChildWorkflowExecutionFailedCause,
)
from temporalio.bridge.proto.workflow_activation import ResolveActivity, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import (
    ContinueAsNewWorkflowExecution,
    ScheduleActivity,
    StartChildWorkflowExecution,
    WorkflowCommand,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.workflow import ParentInfo, _Definition

from tests.driver import failures
from tests.driver.run import NAMESPACE, Run, Start

_CONVERTER: Final = pydantic_data_converter.payload_converter
_SECOND: Final = 1_000_000_000
_IGNORED: Final = {"set_patch_marker", "upsert_workflow_search_attributes", "modify_workflow_properties"}


class Time(Protocol):
    """The server's clock; where work has a clock as well, it is best the same."""

    def now_ns(self) -> int:
        """Nanoseconds since any moment."""

    def skip_to(self, moment_ns: int) -> None:
        """Let it be that late."""


class VirtualTime:
    """A clock that only goes where it is told to."""

    def __init__(self) -> None:
        """Begin at 1 s."""
        self._now_ns = _SECOND

    def now_ns(self) -> int:
        """See `Time`."""
        return self._now_ns

    def skip_to(self, moment_ns: int) -> None:
        """See `Time`."""
        self._now_ns = max(self._now_ns, moment_ns)


class Status(Enum):
    """Of an execution."""

    RUNNING = 0
    COMPLETED = 1
    FAILED = 2
    CANCELED = 3
    TERMINATED = 4
    CONTINUED = 5


@dataclass(eq=False, slots=True, kw_only=True)
class Task:
    """An activity that a run waits for."""

    execution: "Execution"
    command: ScheduleActivity
    number: int  # of all, in the order in which they were scheduled
    due_ns: int  # of the next attempt
    attempt: int = 1  # the next one, or the one in hand
    in_hand: bool = False

    @property
    def type(self) -> str:
        """Of the activity."""
        return self.command.activity_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt, as a worker gets it."""

    task: Task
    number: int  # from 1

    @property
    def type(self) -> str:
        """Of the activity."""
        return self.task.type

    @property
    def workflow_id(self) -> str:
        """Which it is made for."""
        return self.task.execution.workflow_id

    def __str__(self) -> str:
        return f"{self.workflow_id}: {self.type}, attempt {self.number}"


@dataclass(eq=False, slots=True, kw_only=True)
class Execution:
    """One run of a workflow, and what it waits for."""

    run: Run
    root: str  # the workflow that nobody's child is, and that this one descends from
    parent: "tuple[Execution, int] | None" = None  # and the number under which it waits for this one
    close_policy: int = ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON
    cancellation: int = ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED
    status: Status = Status.RUNNING
    result: Payload | None = None
    failure: Failure | None = None
    tasks: dict[int, Task] = field(default_factory=dict)
    timers: dict[int, int] = field(default_factory=dict)  # when they fire
    children: "dict[int, Execution]" = field(default_factory=dict)
    updates: dict[str, Payload | Failure | None] = field(default_factory=dict)  # None: not answered yet

    @property
    def workflow_id(self) -> str:
        """What names it, and whoever it goes on as."""
        return self.run.start.workflow_id

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status is Status.RUNNING


class Server:
    """See the module's text."""

    def __init__(self, time: Time | None = None, *, long_after: int = 1_000_000) -> None:
        """Begin with nothing.

        Args:
            time: The clock.
            long_after: Activations of a run after which its history is found to be long.
        """
        self.time = time or VirtualTime()
        self.executions: dict[str, Execution] = {}  # the newest of each id
        self.types: set[str] = set()  # of workflows that ran
        self._long_after = long_after
        self._numbers = count(1)
        self._inbox: deque[tuple[Execution, list[WorkflowActivationJob]]] = deque()

    # -- what programs and operators ask

    def start(self, workflow: type, request: object, *, id: str, signal: str = "") -> Execution:  # noqa: A002 - its name
        """Start a workflow, or use the one of that id that runs; send it a signal, if given."""
        found = self.executions.get(id)
        jobs = [self._signal(signal)] if signal else []
        if found and found.is_open:
            self._tell(found, *jobs)
            return found
        name = _Definition.must_from_class(workflow).name
        assert name
        begun = self._begin(name, id, _CONVERTER.to_payloads([request]))
        self._tell(begun, begun.run.start.job(), *jobs)
        return self.executions[id]

    def update(self, workflow_id: str, name: str, *args: object, update_id: str) -> Payload | Failure | None:
        """Ask a running workflow for an update, once for each id; its answer, None while there is none."""
        execution = self.executions[workflow_id]
        if update_id not in execution.updates:
            execution.updates[update_id] = None
            job = WorkflowActivationJob()
            job.do_update.id = job.do_update.protocol_instance_id = update_id
            job.do_update.name, job.do_update.run_validator = name, True
            job.do_update.input.extend(_CONVERTER.to_payloads(args))
            self._tell(execution, job)
        return execution.updates[update_id]

    def signal(self, workflow_id: str, name: str, *args: object) -> None:
        """Send a running workflow a signal."""
        self._tell(self.executions[workflow_id], self._signal(name, *args))

    def _signal(self, name: str, *args: object) -> WorkflowActivationJob:
        job = WorkflowActivationJob()
        job.signal_workflow.signal_name = name
        job.signal_workflow.originating_event_id = next(self._numbers)
        job.signal_workflow.input.extend(_CONVERTER.to_payloads(args))
        return job

    def cancel(self, workflow_id: str) -> None:
        """Ask a running workflow to end."""
        job = WorkflowActivationJob()
        job.cancel_workflow.reason = "a test"
        self._tell(self.executions[workflow_id], job)

    def terminate(self, workflow_id: str) -> None:
        """End a running workflow, wherever it is."""
        self._close(self.executions[workflow_id], Status.TERMINATED, failure=failures.terminated())
        self._settle()

    # -- what happens next

    @property
    def running(self) -> list[Execution]:
        """What has not ended, in the order in which it began."""
        return [one for one in self.executions.values() if one.is_open]

    def ready(self, root: str | None = None) -> list[Task]:
        """Of which an attempt may be made now, in the order in which they became due; of one root, or of all."""
        now_ns = self.time.now_ns()
        due = [task for task in self._waiting(root) if task.due_ns <= now_ns]
        return sorted(due, key=lambda task: (task.due_ns, task.number))

    def skip(self, root: str | None = None) -> bool:
        """Go to the next moment at which an attempt may be made, or a timer fires; False: there is none."""
        moments = [moment for one in self._descending_from(root) for moment in one.timers.values()]
        moments += [task.due_ns for task in self._waiting(root)]
        if not moments:
            return False
        self.time.skip_to(min(moments))
        self.fire()
        return True

    def _descending_from(self, root: str | None) -> list[Execution]:
        return [one for one in self.running if root in {None, one.root}]

    def _waiting(self, root: str | None) -> list[Task]:
        return [task for one in self._descending_from(root) for task in one.tasks.values() if not task.in_hand]

    def fire(self) -> None:
        """Let timers fire whose time has come."""
        now_ns = self.time.now_ns()
        due = sorted((moment, number, one) for one, number, moment in self._timers() if moment <= now_ns)
        for _, number, one in due:
            if one.timers.pop(number, None) is not None:
                job = WorkflowActivationJob()
                job.fire_timer.seq = number
                self._tell(one, job)

    def _timers(self) -> Iterator[tuple[Execution, int, int]]:
        yield from ((one, number, moment) for one in self.running for number, moment in one.timers.items())

    def begin(self, task: Task) -> Attempt:
        """Give an attempt to a worker."""
        assert not task.in_hand
        task.in_hand = True
        return Attempt(task=task, number=task.attempt)

    def end(self, attempt: Attempt, outcome: Payload | Failure) -> bool:
        """Hear how it ended; whether that counts: of one that was given up, nothing is heard any more."""
        task = attempt.task
        if not self._waits_for(attempt):
            return False
        if isinstance(outcome, Payload):
            self._resolve(task, ActivityResolution(completed=Success(result=outcome)))
            self._settle()
        else:
            self._retry(task, outcome)
        return True

    def give_up(self, attempt: Attempt) -> None:
        """Its worker is silent for too long."""
        if self._waits_for(attempt):
            silence_ns = attempt.task.command.heartbeat_timeout.ToNanoseconds()
            self._retry(attempt.task, failures.silent(), later_ns=silence_ns)

    def forget(self) -> None:
        """No run is in memory any more; those that go on are replayed."""
        for one in self.executions.values():
            one.run.forget()

    def _waits_for(self, attempt: Attempt) -> bool:
        task = attempt.task
        current = task.execution.is_open and task.execution.tasks.get(task.command.seq) is task
        return current and task.in_hand and task.attempt == attempt.number

    def _retry(self, task: Task, failure: Failure, *, later_ns: int = 0) -> None:
        state, wait_ns = failures.retry_of(task.command.retry_policy, failure, task.attempt)
        if state is None:
            task.attempt += 1
            task.in_hand = False
            task.due_ns = self.time.now_ns() + later_ns + wait_ns
        else:
            failed = failures.of_activity(task.command, failure, state)
            self._resolve(task, ActivityResolution(failed=Failed(failure=failed)))
            self._settle()

    def _resolve(self, task: Task, result: ActivityResolution) -> None:
        task.execution.tasks.pop(task.command.seq)
        self._later(
            task.execution,
            WorkflowActivationJob(resolve_activity=ResolveActivity(seq=task.command.seq, result=result)),
        )

    # -- what workflows want

    def _begin(
        self,
        type_: str,
        workflow_id: str,
        arguments: Sequence[Payload],
        **more: Any,
    ) -> Execution:
        number = next(self._numbers)
        known = {name: more.pop(name) for name in ("attributes", "continued") if name in more}
        parent = more.get("parent")
        told = parent and ParentInfo(
            namespace=NAMESPACE, run_id=parent[0].run.start.run_id, workflow_id=parent[0].workflow_id
        )
        start = Start(
            type=type_,
            workflow_id=workflow_id,
            run_id=f"run-{number}",
            seed=number,
            arguments=arguments,
            parent=told,
            **known,
        )
        self.types.add(type_)
        self.executions.pop(workflow_id, None)  # the newest is the last one
        execution = Execution(run=Run(start), **{"root": workflow_id, **more})
        self.executions[workflow_id] = execution
        return execution

    def _tell(self, execution: Execution, *jobs: WorkflowActivationJob) -> None:
        if jobs:
            self._inbox.append((execution, [*jobs]))
        self._settle()

    def _settle(self) -> None:
        """Give runs what they were told, and do what they want, until nobody is told anything."""
        while self._inbox:
            execution, jobs = self._inbox.popleft()
            if not execution.is_open:
                continue
            long = execution.run.told >= self._long_after
            wanted = execution.run.tell(jobs, now_ns=self.time.now_ns(), suggests_new=long)
            for command in wanted:
                self._do(execution, command)

    def _do(self, execution: Execution, command: WorkflowCommand) -> None:
        kind = command.WhichOneof("variant")
        assert kind
        if kind not in _IGNORED:
            handle: Callable[[Execution, Any], None] | None = getattr(self, f"_do_{kind}", None)
            assert handle, f"{execution.workflow_id} wants {kind}, of which this driver knows nothing"
            handle(execution, getattr(command, kind))

    def _do_schedule_activity(self, execution: Execution, command: ScheduleActivity) -> None:
        number, now_ns = next(self._numbers), self.time.now_ns()
        execution.tasks[command.seq] = Task(execution=execution, command=command, number=number, due_ns=now_ns)

    def _do_request_cancel_activity(self, execution: Execution, command: Any) -> None:
        task = execution.tasks.get(command.seq)
        if task:
            failed = failures.of_activity(task.command, failures.canceled(), RetryState.RETRY_STATE_CANCEL_REQUESTED)
            self._resolve(task, ActivityResolution(cancelled=Cancellation(failure=failed)))

    def _later(self, execution: Execution, job: WorkflowActivationJob) -> None:
        self._inbox.append((execution, [job]))

    def _do_start_timer(self, execution: Execution, command: Any) -> None:
        execution.timers[command.seq] = self.time.now_ns() + command.start_to_fire_timeout.ToNanoseconds()

    def _do_cancel_timer(self, execution: Execution, command: Any) -> None:
        execution.timers.pop(command.seq, None)

    def _do_start_child_workflow_execution(self, execution: Execution, command: StartChildWorkflowExecution) -> None:
        allowed = WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
        assert command.workflow_id_reuse_policy == allowed, "another policy of ids than this driver knows"
        job = WorkflowActivationJob()
        answer = job.resolve_child_workflow_execution_start
        answer.seq = command.seq
        same = self.executions.get(command.workflow_id)
        if same and same.is_open:
            answer.failed.workflow_id, answer.failed.workflow_type = command.workflow_id, command.workflow_type
            exists = "START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS"
            answer.failed.cause = StartChildWorkflowExecutionFailedCause.Value(exists)
            self._later(execution, job)
            return
        child = self._begin(
            command.workflow_type,
            command.workflow_id,
            list(command.input),
            attributes=command.search_attributes,
            parent=(execution, command.seq),
            root=execution.root,
            close_policy=command.parent_close_policy,
            cancellation=command.cancellation_type,
        )
        execution.children[command.seq] = child
        answer.succeeded.run_id = child.run.start.run_id
        self._later(execution, job)
        self._later(child, child.run.start.job())

    def _do_cancel_child_workflow_execution(self, execution: Execution, command: Any) -> None:
        child = execution.children.get(command.child_workflow_seq)
        if child is None or not child.is_open:
            return
        if child.cancellation == ChildWorkflowCancellationType.ABANDON:
            self._answer_parent(child, Status.CANCELED)
        else:
            assert child.cancellation == ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED
            self._ask_to_cancel(child)

    def _ask_to_cancel(self, execution: Execution) -> None:
        job = WorkflowActivationJob()
        job.cancel_workflow.reason = "its parent"
        self._later(execution, job)

    def _do_update_response(self, execution: Execution, command: Any) -> None:
        if command.HasField("completed"):
            execution.updates[command.protocol_instance_id] = command.completed
        elif command.HasField("rejected"):
            execution.updates[command.protocol_instance_id] = command.rejected

    def _do_complete_workflow_execution(self, execution: Execution, command: Any) -> None:
        self._close(execution, Status.COMPLETED, result=command.result)

    def _do_fail_workflow_execution(self, execution: Execution, command: Any) -> None:
        self._close(execution, Status.FAILED, failure=command.failure)

    def _do_cancel_workflow_execution(self, execution: Execution, command: Any) -> None:
        del command
        self._close(execution, Status.CANCELED, failure=failures.canceled())

    def _do_continue_as_new_workflow_execution(
        self, execution: Execution, command: ContinueAsNewWorkflowExecution
    ) -> None:
        self._close(execution, Status.CONTINUED)
        start = execution.run.start
        anew = self._begin(
            command.workflow_type or start.type,
            start.workflow_id,
            list(command.arguments),
            attributes=start.attributes,
            continued=start.run_id,
            parent=execution.parent,
            root=execution.root,
            close_policy=execution.close_policy,
            cancellation=execution.cancellation,
        )
        if execution.parent:
            execution.parent[0].children[execution.parent[1]] = anew
        self._later(anew, anew.run.start.job())

    def _close(
        self, execution: Execution, status: Status, *, result: Payload | None = None, failure: Failure | None = None
    ) -> None:
        execution.status, execution.result, execution.failure = status, result, failure
        execution.tasks.clear()
        execution.timers.clear()
        execution.run.forget()
        for child in execution.children.values():
            if child.is_open and child.close_policy == ParentClosePolicy.PARENT_CLOSE_POLICY_TERMINATE:
                self._close(child, Status.TERMINATED, failure=failures.terminated())
            if child.is_open and child.close_policy == ParentClosePolicy.PARENT_CLOSE_POLICY_REQUEST_CANCEL:
                self._ask_to_cancel(child)
        if status is not Status.CONTINUED:
            self._answer_parent(execution, status)

    def _answer_parent(self, child: Execution, status: Status) -> None:
        if child.parent is None:
            return
        parent, number = child.parent
        parent.children.pop(number, None)
        job = WorkflowActivationJob()
        answer = job.resolve_child_workflow_execution
        answer.seq = number
        if status is Status.COMPLETED:
            answer.result.completed.SetInParent()
            if child.result is not None:
                answer.result.completed.result.CopyFrom(child.result)
        elif status is Status.CANCELED:
            answer.result.cancelled.failure.CopyFrom(failures.of_child(child.run.start, failures.canceled()))
        else:
            assert child.failure
            answer.result.failed.failure.CopyFrom(failures.of_child(child.run.start, child.failure))
        self._later(parent, job)
