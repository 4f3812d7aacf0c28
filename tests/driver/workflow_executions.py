"""Runs and what they wait for, as a server keeps them; and its clock."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.child_workflow import ChildWorkflowCancellationType, ParentClosePolicy
from temporalio.bridge.proto.workflow_commands import ScheduleActivity

from tests.driver.workflow_run import WorkflowRun

_SECOND_NS: Final = 1_000_000_000


class ServerClock(Protocol):
    """The server's clock; where work has a clock as well, it is best the same."""

    def now_ns(self) -> int:
        """Nanoseconds since any moment."""

    def skip_to(self, moment_ns: int) -> None:
        """Let it be that late."""


class VirtualClock:
    """A clock that only goes where it is told to."""

    def __init__(self) -> None:
        """Begin at 1 s."""
        self._now_ns = _SECOND_NS

    def now_ns(self) -> int:
        return self._now_ns

    def skip_to(self, moment_ns: int) -> None:
        self._now_ns = max(self._now_ns, moment_ns)


class SimulatedRunStatus(Enum):
    """Of an execution."""

    RUNNING = 0
    COMPLETED = 1
    FAILED = 2
    CANCELED = 3
    TERMINATED = 4
    CONTINUED = 5


@dataclass(eq=False, slots=True, kw_only=True)
class ActivityTask:
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
class ActivityAttempt:
    """One attempt, as a worker gets it."""

    task: ActivityTask
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestry:
    """Who started a workflow; whoever it goes on as has the same."""

    root: str  # the workflow that nobody's child is, and that this one descends from
    parent: "tuple[Execution, int] | None" = None  # and the number under which it waits for this one
    close_policy: int = ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON
    cancellation: int = ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED


@dataclass(eq=False, slots=True, kw_only=True)
class Execution:
    """One run of a workflow, and what it waits for."""

    run: WorkflowRun
    descent: Ancestry
    status: SimulatedRunStatus = SimulatedRunStatus.RUNNING
    result: Payload | None = None
    failure: Failure | None = None
    tasks: dict[int, ActivityTask] = field(default_factory=dict)
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
        return self.status is SimulatedRunStatus.RUNNING
