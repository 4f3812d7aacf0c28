"""What workflows want of a server, and what becomes of it: activities, timers, children, ends. The rest is refused."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from temporalio.api.common.v1 import Payload, SearchAttributes
from temporalio.api.enums.v1 import RetryState, WorkflowIdReusePolicy
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution, Cancellation
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
from temporalio.workflow import ParentInfo

from tests.driver import temporal_failures
from tests.driver.workflow_executions import (
    ActivityTask,
    Ancestry,
    Execution,
    ServerClock,
    SimulatedRunStatus,
    VirtualClock,
)
from tests.driver.workflow_run import NAMESPACE, RunStart, WorkflowRun
from workflows.jobs import JOB_BY_NAME

_IGNORED_COMMANDS: Final = {"set_patch_marker", "upsert_workflow_search_attributes", "modify_workflow_properties"}


class CommandExecutor:
    """Every execution, and what it is told and wants."""

    def __init__(self, time: ServerClock | None = None, *, long_history_after: int = 1_000_000) -> None:
        """Begin with nothing.

        Args:
            time: The clock.
            long_history_after: Activations of a run after which its history is found to be long.
        """
        self.time = time or VirtualClock()
        self.executions: dict[str, Execution] = {}  # the newest of each id
        self.types: set[str] = set()  # of workflows that ran
        self._long_after = long_history_after
        self._numbers = count(1)
        self._inbox: deque[tuple[Execution, list[WorkflowActivationJob]]] = deque()

    def _begin(
        self,
        type_: str,
        workflow_id: str,
        arguments: Sequence[Payload],
        descent: Ancestry,
        *,
        attributes: SearchAttributes | None = None,
        continued: str = "",
    ) -> Execution:
        number, parent_info = next(self._numbers), None
        if descent.parent:
            parent = descent.parent[0]
            parent_info = ParentInfo(
                namespace=NAMESPACE, run_id=parent.run.start.run_id, workflow_id=parent.workflow_id
            )
        start = RunStart(
            type=type_,
            workflow_id=workflow_id,
            run_id=f"run-{number}",
            seed=number,
            arguments=arguments,
            attributes=attributes or SearchAttributes(),
            parent=parent_info,
            continued=continued,
        )
        self.types.add(type_)
        self.executions.pop(workflow_id, None)  # the newest is the last one
        self.executions[workflow_id] = Execution(run=WorkflowRun(start), descent=descent)
        return self.executions[workflow_id]

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
            is_history_long = execution.run.told >= self._long_after
            commands = execution.run.tell(jobs, now_ns=self.time.now_ns(), suggests_continue_as_new=is_history_long)
            for command in commands:
                self._carry_out_command(execution, command)

    def _carry_out_command(self, execution: Execution, command: WorkflowCommand) -> None:
        kind = command.WhichOneof("variant")
        assert kind
        if kind not in _IGNORED_COMMANDS:
            handle: Callable[[Execution, Any], None] | None = getattr(self, f"_do_{kind}", None)
            assert handle, f"{execution.workflow_id} wants {kind}, of which this driver knows nothing"
            handle(execution, getattr(command, kind))

    def _do_schedule_activity(self, execution: Execution, command: ScheduleActivity) -> None:
        declared = JOB_BY_NAME[execution.run.start.type].activities
        assert command.activity_type in declared, f"{execution.workflow_id} does not declare {command.activity_type}"
        number, now_ns = next(self._numbers), self.time.now_ns()
        execution.tasks[command.seq] = ActivityTask(execution=execution, command=command, number=number, due_ns=now_ns)

    def _do_request_cancel_activity(self, execution: Execution, command: Any) -> None:
        task = execution.tasks.get(command.seq)
        if task:
            failed = temporal_failures.activity_failure(
                task.command, temporal_failures.canceled_failure(), RetryState.RETRY_STATE_CANCEL_REQUESTED
            )
            self._resolve_task(task, ActivityResolution(cancelled=Cancellation(failure=failed)))

    def _resolve_task(self, task: ActivityTask, result: ActivityResolution) -> None:
        task.execution.tasks.pop(task.command.seq)
        self._enqueue_job(
            task.execution,
            WorkflowActivationJob(resolve_activity=ResolveActivity(seq=task.command.seq, result=result)),
        )

    def _enqueue_job(self, execution: Execution, job: WorkflowActivationJob) -> None:
        self._inbox.append((execution, [job]))

    def _do_start_timer(self, execution: Execution, command: Any) -> None:
        execution.timers[command.seq] = self.time.now_ns() + command.start_to_fire_timeout.ToNanoseconds()

    def _do_cancel_timer(self, execution: Execution, command: Any) -> None:
        execution.timers.pop(command.seq, None)

    def _do_start_child_workflow_execution(self, execution: Execution, command: StartChildWorkflowExecution) -> None:
        assert JOB_BY_NAME[execution.run.start.type].starts_jobs, f"{execution.workflow_id} does not declare children"
        allowed = WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
        assert command.workflow_id_reuse_policy == allowed, "another policy of ids than this driver knows"
        job = WorkflowActivationJob()
        answer = job.resolve_child_workflow_execution_start
        answer.seq = command.seq
        existing = self.executions.get(command.workflow_id)
        if existing and existing.is_open:
            answer.failed.workflow_id, answer.failed.workflow_type = command.workflow_id, command.workflow_type
            exists = "START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS"
            answer.failed.cause = StartChildWorkflowExecutionFailedCause.Value(exists)
            self._enqueue_job(execution, job)
            return
        child = self._begin(
            command.workflow_type,
            command.workflow_id,
            list(command.input),
            Ancestry(
                root=execution.descent.root,
                parent=(execution, command.seq),
                close_policy=command.parent_close_policy,
                cancellation=command.cancellation_type,
            ),
            attributes=command.search_attributes,
        )
        execution.children[command.seq] = child
        answer.succeeded.run_id = child.run.start.run_id
        self._enqueue_job(execution, job)
        self._enqueue_job(child, child.run.start.job())

    def _do_cancel_child_workflow_execution(self, execution: Execution, command: Any) -> None:
        child = execution.children.get(command.child_workflow_seq)
        if child is None or not child.is_open:
            return
        if child.descent.cancellation == ChildWorkflowCancellationType.ABANDON:
            self._enqueue_parent_answer(child, SimulatedRunStatus.CANCELED)
        else:
            assert child.descent.cancellation == ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED
            self._enqueue_cancellation(child)

    def _do_signal_external_workflow_execution(self, execution: Execution, command: Any) -> None:
        signal_job, answer_job = WorkflowActivationJob(), WorkflowActivationJob()
        answer_job.resolve_signal_external_workflow.seq = command.seq
        target = self.executions.get(command.workflow_execution.workflow_id)
        if target and target.is_open:
            signal_job.signal_workflow.signal_name = command.signal_name
            signal_job.signal_workflow.originating_event_id = next(self._numbers)
            signal_job.signal_workflow.input.extend(command.args)
            self._enqueue_job(target, signal_job)
        else:
            answer_job.resolve_signal_external_workflow.failure.CopyFrom(temporal_failures.workflow_not_found_failure())
        self._enqueue_job(execution, answer_job)

    def _enqueue_cancellation(self, execution: Execution) -> None:
        job = WorkflowActivationJob()
        job.cancel_workflow.reason = "its parent"
        self._enqueue_job(execution, job)

    def _do_update_response(self, execution: Execution, command: Any) -> None:
        if command.HasField("completed"):
            execution.updates[command.protocol_instance_id] = command.completed
        elif command.HasField("rejected"):
            execution.updates[command.protocol_instance_id] = command.rejected

    def _do_complete_workflow_execution(self, execution: Execution, command: Any) -> None:
        self._close_execution(execution, SimulatedRunStatus.COMPLETED, result=command.result)

    def _do_fail_workflow_execution(self, execution: Execution, command: Any) -> None:
        self._close_execution(execution, SimulatedRunStatus.FAILED, failure=command.failure)

    def _do_cancel_workflow_execution(self, execution: Execution, command: Any) -> None:
        del command
        self._close_execution(execution, SimulatedRunStatus.CANCELED, failure=temporal_failures.canceled_failure())

    def _do_continue_as_new_workflow_execution(
        self, execution: Execution, command: ContinueAsNewWorkflowExecution
    ) -> None:
        self._close_execution(execution, SimulatedRunStatus.CONTINUED)
        start = execution.run.start
        continued = self._begin(
            command.workflow_type or start.type,
            start.workflow_id,
            list(command.arguments),
            execution.descent,
            attributes=start.attributes,
            continued=start.run_id,
        )
        if execution.descent.parent:
            parent, number = execution.descent.parent
            parent.children[number] = continued
        self._enqueue_job(continued, continued.run.start.job())

    def _close_execution(
        self,
        execution: Execution,
        status: SimulatedRunStatus,
        *,
        result: Payload | None = None,
        failure: Failure | None = None,
    ) -> None:
        execution.status, execution.result, execution.failure = status, result, failure
        execution.tasks.clear()
        execution.timers.clear()
        execution.run.forget()
        for child in execution.children.values():
            if child.is_open and child.descent.close_policy == ParentClosePolicy.PARENT_CLOSE_POLICY_TERMINATE:
                self._close_execution(
                    child, SimulatedRunStatus.TERMINATED, failure=temporal_failures.terminated_failure()
                )
            if child.is_open and child.descent.close_policy == ParentClosePolicy.PARENT_CLOSE_POLICY_REQUEST_CANCEL:
                self._enqueue_cancellation(child)
        if status is not SimulatedRunStatus.CONTINUED:
            self._enqueue_parent_answer(execution, status)

    def _enqueue_parent_answer(self, child: Execution, status: SimulatedRunStatus) -> None:
        if child.descent.parent is None:
            return
        parent, number = child.descent.parent
        parent.children.pop(number, None)
        job = WorkflowActivationJob()
        answer = job.resolve_child_workflow_execution
        answer.seq = number
        if status is SimulatedRunStatus.COMPLETED:
            answer.result.completed.SetInParent()
            if child.result is not None:
                answer.result.completed.result.CopyFrom(child.result)
        elif status is SimulatedRunStatus.CANCELED:
            answer.result.cancelled.failure.CopyFrom(
                temporal_failures.child_workflow_failure(child.run.start, temporal_failures.canceled_failure())
            )
        else:
            assert child.failure
            answer.result.failed.failure.CopyFrom(
                temporal_failures.child_workflow_failure(child.run.start, child.failure)
            )
        self._enqueue_job(parent, job)
