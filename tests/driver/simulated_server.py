"""What a Temporal server keeps and decides: runs by id, attempts of activities, timers, children, and time.

Nothing happens by itself here. Who drives it says which attempt is made next and how it ends; what a workflow then
wants is done at once. Where nothing can be done before some moment, `skip` goes there. It knows of Temporal what the
project's workflows use, and refuses the rest.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution, Success
from temporalio.bridge.proto.activity_result import Failure as Failed
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.workflow import _Definition

from tests.driver import temporal_failures
from tests.driver.workflow_commands import CommandExecutor
from tests.driver.workflow_executions import ActivityAttempt, ActivityTask, Ancestry, Execution, SimulatedRunStatus

_CONVERTER: Final = pydantic_data_converter.payload_converter


class SimulatedServer(CommandExecutor):
    """See the module's text."""

    # -- what programs and operators ask

    def start(
        self,
        workflow: type,
        request: object,
        *,
        id: str,  # noqa: A002 - its name
        signal: str = "",
        signal_args: Sequence[object] = (),
    ) -> Execution:
        """Start a workflow, or use the one of that id that runs; send it a signal, if given, that tells it this."""
        existing = self.executions.get(id)
        jobs = [self._signal_job(signal, *signal_args)] if signal else []
        if existing and existing.is_open:
            self._tell(existing, *jobs)
            return existing
        name = _Definition.must_from_class(workflow).name
        assert name
        execution = self._begin(name, id, _CONVERTER.to_payloads([request]), Ancestry(root=id))
        self._tell(execution, execution.run.start.job(), *jobs)
        return self.executions[id]

    def update(self, workflow_id: str, update_name: str, *args: object, update_id: str) -> Payload | Failure | None:
        """Ask a running workflow for an update, once for each id; its answer, None while there is none."""
        execution = self.executions[workflow_id]
        if update_id not in execution.updates:
            execution.updates[update_id] = None
            job = WorkflowActivationJob()
            job.do_update.id = job.do_update.protocol_instance_id = update_id
            job.do_update.name, job.do_update.run_validator = update_name, True
            job.do_update.input.extend(_CONVERTER.to_payloads(args))
            self._tell(execution, job)
        return execution.updates[update_id]

    def signal(self, workflow_id: str, signal_name: str, *args: object) -> None:
        """Send a running workflow a signal."""
        self._tell(self.executions[workflow_id], self._signal_job(signal_name, *args))

    def _signal_job(self, name: str, *args: object) -> WorkflowActivationJob:
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
        self._close_execution(
            self.executions[workflow_id], SimulatedRunStatus.TERMINATED, failure=temporal_failures.terminated_failure()
        )
        self._settle()

    # -- what happens next

    @property
    def running(self) -> list[Execution]:
        """What has not ended, in the order in which it began."""
        return [execution for execution in self.executions.values() if execution.is_open]

    def ready(self, root: str | None = None) -> list[ActivityTask]:
        """Of which an attempt may be made now, in the order in which they became due; of one root, or of all."""
        now_ns = self.time.now_ns()
        due = [task for task in self._waiting(root) if task.due_ns <= now_ns]
        return sorted(due, key=lambda task: (task.due_ns, task.number))

    def skip(self, root: str | None = None) -> bool:
        """Go to the next moment at which an attempt may be made, or a timer fires; False: there is none."""
        moments = [moment for execution in self._running_under_root(root) for moment in execution.timers.values()]
        moments += [task.due_ns for task in self._waiting(root)]
        if not moments:
            return False
        self.time.skip_to(min(moments))
        self.fire()
        return True

    def _running_under_root(self, root: str | None) -> list[Execution]:
        return [execution for execution in self.running if root in {None, execution.descent.root}]

    def _waiting(self, root: str | None) -> list[ActivityTask]:
        return [
            task
            for execution in self._running_under_root(root)
            for task in execution.tasks.values()
            if not task.in_hand
        ]

    def fire(self) -> None:
        """Let timers fire whose time has come."""
        now_ns = self.time.now_ns()
        timers = (
            (moment, number, execution) for execution, number, moment in self._pending_timers() if moment <= now_ns
        )
        due = sorted(timers, key=lambda timer: timer[:2])
        for _, number, execution in due:
            if execution.timers.pop(number, None) is not None:
                job = WorkflowActivationJob()
                job.fire_timer.seq = number
                self._tell(execution, job)

    def _pending_timers(self) -> Iterator[tuple[Execution, int, int]]:
        yield from (
            (execution, number, moment) for execution in self.running for number, moment in execution.timers.items()
        )

    def begin(self, task: ActivityTask) -> ActivityAttempt:
        """Give an attempt to a worker."""
        assert not task.in_hand
        task.in_hand = True
        return ActivityAttempt(task=task, number=task.attempt)

    def end(self, attempt: ActivityAttempt, outcome: Payload | Failure) -> bool:
        """Hear how it ended; whether that counts: of one that was given up, nothing is heard any more."""
        task = attempt.task
        if not self._is_current_attempt(attempt):
            return False
        if isinstance(outcome, Payload):
            self._resolve_task(task, ActivityResolution(completed=Success(result=outcome)))
            self._settle()
        else:
            self._retry_or_fail(task, outcome)
        return True

    def give_up(self, attempt: ActivityAttempt) -> None:
        """Its worker is silent for too long."""
        if self._is_current_attempt(attempt):
            silence_ns = attempt.task.command.heartbeat_timeout.ToNanoseconds()
            self._retry_or_fail(attempt.task, temporal_failures.heartbeat_timeout_failure(), extra_delay_ns=silence_ns)

    def forget(self) -> None:
        """No run is in memory any more; those that go on are replayed."""
        for execution in self.executions.values():
            execution.run.forget()

    def _is_current_attempt(self, attempt: ActivityAttempt) -> bool:
        task = attempt.task
        current = task.execution.is_open and task.execution.tasks.get(task.command.seq) is task
        return current and task.in_hand and task.attempt == attempt.number

    def _retry_or_fail(self, task: ActivityTask, failure: Failure, *, extra_delay_ns: int = 0) -> None:
        state, wait_ns = temporal_failures.decide_retry(task.command.retry_policy, failure, task.attempt)
        if state is None:
            task.attempt += 1
            task.in_hand = False
            task.due_ns = self.time.now_ns() + extra_delay_ns + wait_ns
        else:
            failed = temporal_failures.activity_failure(task.command, failure, state)
            self._resolve_task(task, ActivityResolution(failed=Failed(failure=failed)))
            self._settle()
