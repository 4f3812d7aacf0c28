"""Which worker does the work of one topic: its owner, if it is known and picks the work up, and otherwise any worker.

1. If an owner is believed to be known, the work is sent to that owner's queue. If it is not picked up in time, if the
   owner falls silent, or if the answer is `NotOwner`, 2 is next.
2. To look it up is to send the work to the shared queue. The worker that gets it looks the owner up. If that is
   itself, if there is none, or if ZooKeeper does not answer, it does the work, in this one activity. If it is another
   worker, it does nothing, and 1 is next.
3. After two lookups in vain, after a redirect to an owner that did not pick work up before, or after minutes of
   failures of work that is retried without end, the shared queue does it, under no lease: the catalog may be out of
   reach for that owner only.

Nothing that is decided about data rests on this: claims keep two workers off the same rows, and leases keep off a
worker that has lost the topic. Attempts are counted anew wherever the work is sent, which is five times at most.

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
    from activities.dispatch import Answer, Redirect, Route, TopicWork, WorkResult, owner_queue

_TURNS: Final = 4  # two owners, looked up twice; a topic that changes hands more often is served by any worker
_AT_OWNER: Final = 8  # attempts of what has no bound, over 90 s or more: longer than a catalog takes to fail over
_NOT_KNOWN: Final = "NotFoundError"  # of the SDK: an owner of an older build, which has no such activity
_SILENT: Final = "TemporalTimeout:Heartbeat"  # the server's name for it: a stopped process takes task after task
_UNHEARD: Final = {
    TimeoutType.SCHEDULE_TO_START,
    TimeoutType.HEARTBEAT,
}  # no worker picked it up, or none is heard any more

OWNERSHIP_FAILURES: Final = frozenset({"NotOwner", "LookupRefused"})
"""Types of failures that say nothing of the work itself: it was not begun, or is another worker's by now."""

W = TypeVar("W", bound=TopicWork)
R = TypeVar("R")


class Dispatch:
    """Sends one topic's activities to its owner, in one run; a topic of no name, or of several, has none."""

    def __init__(self, topic: str, *, patience_s: int, owner: str = "") -> None:
        """Take the encoded name, how long an owner may let work lie, and which worker is believed to own it."""
        self.owner = owner if topic else ""
        """The worker that is believed to own the topic; "": not known."""
        self._topic = topic
        self._patience_s = patience_s
        self._unheard: set[str] = set()  # owners that let work lie

    async def execute(
        self, work: MethodSyncSingleParam[Any, W, Answer[R]], request: W, options: workflow.ActivityConfig
    ) -> R:
        """Have the work done at the owner or, if that cannot be, anywhere."""
        asked = replace(request, topic=self._topic, owner_patience_s=self._patience_s)
        for _ in range(_TURNS if self._topic else 0):
            owner = self.owner
            asked = replace(asked, place=Route.OWNER if owner else Route.LOOKUP)
            sent = self._at_owner(options) if owner else options
            try:
                answer = await workflow.execute_activity_method(work, asked, **sent)
            except ActivityError as error:
                self._missed(owner, error, options)
                continue
            if isinstance(answer, WorkResult):
                self.owner = answer.owner
                return answer.result
            self.owner = "" if answer.owner in self._unheard else answer.owner
            if not self.owner:
                break
        last = await workflow.execute_activity_method(work, replace(asked, place=Route.ANYWHERE), **options)
        if isinstance(last, Redirect):
            raise ApplicationError(f"work for any worker was redirected to {last.owner}", type="Unsupported")
        return last.result

    def _at_owner(self, options: workflow.ActivityConfig) -> workflow.ActivityConfig:
        policy = options["retry_policy"] or RetryPolicy()
        return {
            **options,
            "task_queue": owner_queue(self.owner),
            "schedule_to_start_timeout": timedelta(seconds=self._patience_s),
            "retry_policy": replace(
                policy,
                maximum_attempts=policy.maximum_attempts or _AT_OWNER,
                non_retryable_error_types=[_NOT_KNOWN, _SILENT],
            ),
        }

    def _missed(self, owner: str, error: ActivityError, options: workflow.ActivityConfig) -> None:
        """Forget an owner that lost the topic, left work undone, or failed again and again; raise any other failure."""
        cause = error.cause
        late = owner and isinstance(cause, TimedOut) and cause.type in _UNHEARD
        kind = cause.type if isinstance(cause, ApplicationError) else None
        unbound = owner and not (options["retry_policy"] or RetryPolicy()).maximum_attempts
        failing = unbound and error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED
        if late or failing or kind == _NOT_KNOWN:
            self._unheard.add(owner)
        elif kind != "NotOwner":
            raise error
        if self.owner == owner:  # or another one is known by now
            self.owner = ""
