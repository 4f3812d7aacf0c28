"""Choice of the worker for the work of one topic: its owner, if it is known and takes the work, otherwise any worker.

1. If an owner is known, send the work to its queue. If it does not start the work in time, falls silent, or answers
   `NotOwner`, go to 2.
2. Send the work to the shared queue, whose worker looks the owner up. If it is the owner, if there is none, or if
   ZooKeeper does not answer, it does the work. Otherwise it redirects to the owner, and 1 follows.
3. The shared queue does the work without a lease after two lookups in vain, after a redirect to an owner that did not
   take work before, and after minutes of failures of work with unlimited retries. The catalog may be out of reach for
   that owner only.

No decision about data depends on this. Claims keep two workers off the same rows, and leases refuse writes of a worker
that lost the topic. Attempts are counted anew wherever the work is sent, five times at most.

Source: Pulsar's topic lookup, by which any broker redirects a client to the owner.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.types import MethodSyncSingleParam

with workflow.unsafe.imports_passed_through():
    from activities.dispatch import Answer, Redirect, Route, TopicWork, WorkDone, owner_queue

_MAX_TURNS: Final = 4  # two owners, looked up twice; any worker serves a topic that moves more often
_MAX_ATTEMPTS_AT_OWNER: Final = 8  # of work with unlimited retries; 90 s or more, longer than a failover of a catalog
_UNKNOWN_ACTIVITY: Final = "NotFoundError"  # of the SDK, from an owner of an older build
_SILENT_WORKER: Final = "TemporalTimeout:Heartbeat"  # of the server; a stopped process takes task after task
_OWNER_TIMEOUTS: Final = {TimeoutType.SCHEDULE_TO_START, TimeoutType.HEARTBEAT}

OWNERSHIP_FAILURES: Final = frozenset({"NotOwner", "LookupRefused"})
"""Types of failures without a statement about the work: it did not begin, or belongs to another worker now."""

W = TypeVar("W", bound=TopicWork)
R = TypeVar("R")


class Dispatch:
    """Dispatch of one topic's activities in one workflow run.

    Args:
        topic: Encoded name. Empty: no topic or several, without an owner.
        patience_s: Longest wait for an owner to start work.
        owner: Worker that is believed to own the topic. Empty: unknown.
    """

    def __init__(self, topic: str, *, patience_s: int, owner: str = "") -> None:
        self.owner = owner if topic else ""
        self._topic = topic
        self._patience_s = patience_s
        self._silent_owners: set[str] = set()  # did not take work

    async def execute(
        self, work: MethodSyncSingleParam[Any, W, Answer[R]], request: W, options: workflow.ActivityConfig
    ) -> R:
        """Run the activity at the owner, or else at any worker, and return its result."""
        routed = replace(request, topic=self._topic, owner_patience_s=self._patience_s)
        for _ in range(_MAX_TURNS if self._topic else 0):
            owner = self.owner
            routed = replace(routed, place=Route.OWNER if owner else Route.LOOKUP)
            config = self._owner_options(options) if owner else options
            try:
                answer = await workflow.execute_activity_method(work, routed, **config)
            except ActivityError as error:
                self._forget_owner(owner, error, options)
                continue
            if isinstance(answer, WorkDone):
                self.owner = answer.owner
                return answer.result
            self.owner = "" if answer.owner in self._silent_owners else answer.owner
            if not self.owner:
                break
        answer = await workflow.execute_activity_method(work, replace(routed, place=Route.ANYWHERE), **options)
        if isinstance(answer, Redirect):
            raise ApplicationError(f"work for any worker was redirected to {answer.owner}", type="Unsupported")
        return answer.result

    def _owner_options(self, options: workflow.ActivityConfig) -> workflow.ActivityConfig:
        policy = options["retry_policy"] or RetryPolicy()
        return {
            **options,
            "task_queue": owner_queue(self.owner),
            "schedule_to_start_timeout": timedelta(seconds=self._patience_s),
            "retry_policy": replace(
                policy,
                maximum_attempts=policy.maximum_attempts or _MAX_ATTEMPTS_AT_OWNER,
                non_retryable_error_types=[_UNKNOWN_ACTIVITY, _SILENT_WORKER],
            ),
        }

    def _forget_owner(self, owner: str, error: ActivityError, options: workflow.ActivityConfig) -> None:
        """Forget an owner that lost the topic, did not finish work, or failed too often. Raise any other failure."""
        cause = error.cause
        has_timed_out = owner and isinstance(cause, TimedOut) and cause.type in _OWNER_TIMEOUTS
        failure_type = cause.type if isinstance(cause, ApplicationError) else None
        is_unlimited = owner and not (options["retry_policy"] or RetryPolicy()).maximum_attempts
        has_failed_too_often = is_unlimited and error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED
        if has_timed_out or has_failed_too_often or failure_type == _UNKNOWN_ACTIVITY:
            self._silent_owners.add(owner)
        elif failure_type != "NotOwner":
            raise error
        if self.owner == owner:  # concurrent work may have found another owner
            self.owner = ""
