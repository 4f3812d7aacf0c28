"""Which worker does the work of one topic: its owner, if that can be told and picks it up, and otherwise anybody.

1. Where an owner is known, or believed, its own queue. Not picked up in time, silent since, or `NotOwner`: ask.
2. To ask is to send the work to the shared queue. Whoever gets it looks for the owner. That is itself, or nobody: it is
   done, in this one activity. Another worker: nothing is done, and 1. ZooKeeper could not be asked: `ownership.look_up`
   is tried until it can, for that there is no owner has to be said by somebody.
3. Asked twice in vain, or an owner named that had not picked up before, or where what is retried without end has failed
   for minutes: the shared queue, under no lease. Such an owner may be the only one whom the catalog does not answer.

Nothing that is decided about data rests on this: claims keep two workers off the same rows, and leases keep off whoever
has lost the topic. Attempts are counted anew wherever the work is sent, which is five times at most.

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
    from activities.ownership import Elsewhere, LookUpInput, Ownership, Place, TopicAnswer, TopicWork, owner_queue

_TURNS: Final = 4  # two owners, asked for twice; who changes hands more often is served by anybody
_AT_OWNER: Final = 8  # attempts of what has no bound, over 90 s or more: longer than a catalog takes to fail over
_NOT_KNOWN: Final = "NotFoundError"  # of the SDK: an owner of an older build, which has no such activity
_SILENT: Final = "TemporalTimeout:Heartbeat"  # the server's name for it: a stopped process takes task after task
_UNHEARD: Final = {TimeoutType.SCHEDULE_TO_START, TimeoutType.HEARTBEAT}  # nobody picked it up, or nobody any more
_LOOK_UP = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=1),  # one question, while a connection comes back
    heartbeat_timeout=timedelta(seconds=10),  # a killed worker is noticed within this
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),  # unlimited: waits for ZooKeeper to come back
)

W = TypeVar("W", bound=TopicWork)
A = TypeVar("A", bound=TopicAnswer)
R = TypeVar("R")


class Route:
    """The way of one topic's activities, in one run; a topic of no name, or of several, has none."""

    def __init__(self, topic: str, *, patience_s: int, owner: str = "") -> None:
        """Take the encoded name, how long an owner may let work lie, and who is believed to own it."""
        self.owner = owner if topic else ""
        """Who is believed to own the topic; "": not known."""
        self._topic = topic
        self._patience_s = patience_s
        self._unheard: set[str] = set()  # owners that let work lie

    async def execute(self, work: MethodSyncSingleParam[Any, W, A], request: W, options: workflow.ActivityConfig) -> A:
        """Have the work done at the owner or, if that cannot be, anywhere."""
        for _ in range(_TURNS if self._topic else 0):
            owner = self.owner
            try:
                answer = await self._send(owner, work, request, options)
            except ActivityError as error:
                self._missed(owner, error, options)
                continue
            if answer.elsewhere is None:
                self.owner = answer.owner
                return answer
            self.owner = await self._named(answer.elsewhere)
            if not self.owner:
                break
        return await self._shared(Place.ANYWHERE, work, request, options)

    async def execute_unasked(
        self, work: MethodSyncSingleParam[Any, W, R], request: W, options: workflow.ActivityConfig
    ) -> R:
        """As `execute`, of what can be done anywhere as well: nobody is asked for an owner that is not known."""
        owner = self.owner
        if owner:
            try:
                return await self._send(owner, work, request, options)
            except ActivityError as error:
                self._missed(owner, error, options)
        return await self._shared(Place.ANYWHERE, work, request, options)

    async def _send(
        self, owner: str, work: MethodSyncSingleParam[Any, W, R], request: W, options: workflow.ActivityConfig
    ) -> R:
        """To the owner's queue or, where none is known, to the shared one."""
        if not owner:
            return await self._shared(Place.ASK, work, request, options)
        policy = options["retry_policy"] or RetryPolicy()
        at_owner: workflow.ActivityConfig = {
            **options,
            "task_queue": owner_queue(owner),
            "schedule_to_start_timeout": timedelta(seconds=self._patience_s),
            "retry_policy": replace(
                policy,
                maximum_attempts=policy.maximum_attempts or _AT_OWNER,
                non_retryable_error_types=[_NOT_KNOWN, _SILENT],
            ),
        }
        asked = replace(request, topic=self._topic, place=Place.OWNER)
        return await workflow.execute_activity_method(work, asked, **at_owner)

    async def _shared(
        self, place: Place, work: MethodSyncSingleParam[Any, W, R], request: W, options: workflow.ActivityConfig
    ) -> R:
        asked = replace(request, topic=self._topic, place=place)
        return await workflow.execute_activity_method(work, asked, **options)

    def _missed(self, owner: str, error: ActivityError, options: workflow.ActivityConfig) -> None:
        """Forget who lost the topic, let work lie, or failed at what is retried without end; else it is the work's."""
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

    async def _named(self, elsewhere: Elsewhere) -> str:
        """Whose the work is, once that can be told; "" for nobody's who would pick it up."""
        owner = elsewhere.worker_id
        if not owner:
            asked = LookUpInput(topic=self._topic)
            owner = (await workflow.execute_activity_method(Ownership.look_up, asked, **_LOOK_UP)).worker_id
        return "" if owner in self._unheard else owner
