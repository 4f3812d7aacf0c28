"""Choice of the worker for the work of one topic: its bundle owner if possible, otherwise any worker.

1. If a bundle owner is known, send the work to the bundle owner's queue. Go to step 2 if the bundle owner does not
   start the work in time, sends no heartbeats, or answers `NotOwner`. Work with unlimited retries also goes to step 2
   if it fails for minutes, because the catalog may be out of reach only for this bundle owner.
2. Send the work to the shared queue. A worker of that queue looks up the bundle owner. If another worker is the bundle
   owner, go to step 1. Otherwise, or if ZooKeeper does not answer, the worker of the shared queue does the work.
3. After four sends, or if a lookup names a bundle owner that has timed out or failed before, a worker of the shared
   queue does the work without a lease.

No decision about data depends on the route. Claims keep two workers off the same rows, and fences refuse writes of a
worker that lost the bundle. The work is sent at most five times. The attempts of each send are counted separately.

Source: Pulsar's topic lookup, in which any broker redirects a client to the broker that owns the topic.
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
    from activities.owner_routing import (
        CompletedWork,
        OwnerRedirect,
        OwnerRoutedAnswer,
        OwnerRoutedInput,
        Route,
        owner_task_queue,
    )

_MAX_TURNS: Final = 4  # two lookups and two owners; then any worker does the work
_MAX_ATTEMPTS_AT_OWNER: Final = 8  # of work with unlimited retries; 90 s or more, longer than a failover of a catalog
_UNKNOWN_ACTIVITY: Final = "NotFoundError"  # error type of the SDK, from an owner of an older build
_SILENT_WORKER: Final = "TemporalTimeout:Heartbeat"  # error type of the server; a paused process may take more tasks
_OWNER_TIMEOUTS: Final = {TimeoutType.SCHEDULE_TO_START, TimeoutType.HEARTBEAT}

OWNERSHIP_FAILURES: Final = frozenset({"NotOwner", "LookupRefused"})
"""Error types that do not come from the work itself: the bundle owner has changed, or ZooKeeper refuses a worker."""

W = TypeVar("W", bound=OwnerRoutedInput)
R = TypeVar("R")


class OwnerRouter:
    """Router of one topic's activities in one workflow run.

    Without a topic, any worker gets the work. `owner` is the presumed bundle owner, or empty. `patience_s` limits the
    wait until a bundle owner starts work.
    """

    def __init__(self, topic: str, *, patience_s: int, owner: str = "") -> None:
        self.owner = owner if topic else ""
        self._topic = topic
        self._patience_s = patience_s
        self._silent_owners: set[str] = set()  # owners that did not take work

    async def execute_at_owner(
        self, work: MethodSyncSingleParam[Any, W, OwnerRoutedAnswer[R]], request: W, options: workflow.ActivityConfig
    ) -> R:
        routed = replace(request, topic=self._topic, owner_patience_s=self._patience_s)
        for _ in range(_MAX_TURNS if self._topic else 0):
            owner = self.owner
            routed = replace(routed, place=Route.OWNER if owner else Route.LOOKUP)
            config = self._owner_options(options) if owner else options
            try:
                answer = await workflow.execute_activity_method(work, routed, **config)
            except ActivityError as error:
                self._forget_owner_or_raise(owner, error, options)
                continue
            if isinstance(answer, CompletedWork):
                self.owner = answer.owner
                return answer.result
            self.owner = "" if answer.owner in self._silent_owners else answer.owner
            if not self.owner:
                break
        answer = await workflow.execute_activity_method(work, replace(routed, place=Route.ANYWHERE), **options)
        if isinstance(answer, OwnerRedirect):
            raise ApplicationError(f"work for any worker was redirected to {answer.owner}", type="Unsupported")
        return answer.result

    def _owner_options(self, options: workflow.ActivityConfig) -> workflow.ActivityConfig:
        policy = options["retry_policy"] or RetryPolicy()
        return {
            **options,
            "task_queue": owner_task_queue(self.owner),
            "schedule_to_start_timeout": timedelta(seconds=self._patience_s),
            "retry_policy": replace(
                policy,
                maximum_attempts=policy.maximum_attempts or _MAX_ATTEMPTS_AT_OWNER,
                non_retryable_error_types=[_UNKNOWN_ACTIVITY, _SILENT_WORKER],
            ),
        }

    def _forget_owner_or_raise(self, owner: str, error: ActivityError, options: workflow.ActivityConfig) -> None:
        """Forget a bundle owner that lost the bundle, timed out, or failed too often. Raise any other failure."""
        cause = error.cause
        has_timed_out = owner and isinstance(cause, TimedOut) and cause.type in _OWNER_TIMEOUTS
        failure_type = cause.type if isinstance(cause, ApplicationError) else None
        is_unlimited = owner and not (options["retry_policy"] or RetryPolicy()).maximum_attempts
        has_failed_too_often = is_unlimited and error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED
        if has_timed_out or has_failed_too_often or failure_type == _UNKNOWN_ACTIVITY:
            self._silent_owners.add(owner)
        elif failure_type != "NotOwner":
            raise error
        if self.owner == owner:  # concurrent work may have found another bundle owner
            self.owner = ""
