"""The activities of coordinators and broadcasts: SQL is the queue, and what they claim they tell.

Idempotency of all of them: what is decided stays decided, claims lapse, markers may be written twice (`Broadcaster`).
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from temporalio import activity

from activities.deletion.claims import CLAIM_S, own_claim
from activities.heartbeats import beating, defined
from activities.transactions.values import BusyInput, Drained, DrainInput, ForgetInput, TellInput, Told
from logstore.errors import StoreUnavailable
from logstore.ports.catalog import Claim, CoordinatorWork, Finished, StoredTransaction, Transactions
from logstore.transactions.services.broadcast import Broadcaster, BroadcastResult
from logstore.transactions.transactions import (
    MAX_ERROR_CHARACTERS,
    MAX_REPORTED_PARTICIPANTS,
    Owed,
    TransactionId,
    summarize_failures,
)
from logstore.units import raise_if_stopped

_BATCH: Final = 500
"""Transactions that are told at once."""

_EXPIRED: Final = 1_000
_MOST_HANDED: Final = 100  # ids in an answer; more of them are handed over by the next one
_LOOK_S: Final = (0.003, 0.012)  # between two looks for work, at first and at last
_GATHER: Final = 0.1  # of the time that a batch took is waited for the next one: its clients decide again together

BROADCAST: Final = "sexton_transactions_broadcast_seconds"

BUCKETS: Final[Mapping[str, Sequence[float]]] = {
    BROADCAST: (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
}
"""Upper bounds by metric, inclusive, in seconds; the SDK's own are for milliseconds."""


@dataclass(slots=True)
class _Served:
    """What one call has done so far."""

    finished: int = 0
    expired: int = 0
    handed: int = 0
    cut_short: bool = False  # it ended though it had not waited for more


class Coordination:
    """The activities, over ports."""

    def __init__(self, *, transactions: Transactions, broadcasts: Broadcaster, finished_retention_s: float) -> None:
        """Take the catalog's transactions, what tells their participants, and when finished ones are forgotten."""
        self._transactions, self._broadcasts = transactions, broadcasts
        self._retention_s = finished_retention_s
        self._serving = threading.Lock()  # one at a time in a process: the more are told at once, the less each costs

    @defined(name="transactions.drain")
    @beating()
    def drain(self, request: DrainInput) -> Drained:
        """Abort what has timed out, and tell the participants of what is decided, until there is nothing more to do.

        It lingers a little: the next transaction is then told without a workflow task. Transactions with a participant
        that cannot be told are handed to workflows of their own, unless nothing could be told at all.

        Idempotency: what was told stays told, and what this attempt had claimed is claimed by the next.
        Heartbeat: every two seconds.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        expired, _ = self._expire(request.tc_id)
        served = _Served(expired=expired)
        if self._serving.acquire(timeout=request.linger_s):  # otherwise: what another one serves, it serves for all
            try:
                self._serve(request, served)
            finally:
                self._serving.release()
        return self._drained(request.tc_id, served)

    def _serve(self, request: DrainInput, served: _Served) -> None:
        """Tell participants what is decided, of any coordinator, until nothing was left for a while.

        Between two batches the coordinator's own deadlines are looked at: none waits for the end of the work.
        """
        begun = worked = time.monotonic()
        pause, rest, first = _LOOK_S[0], 0.0, True
        while True:
            late, work = self._expire(request.tc_id)
            served.expired += late
            claimed = 0
            if first or work.undone:
                first = False  # what an earlier attempt of this activity had claimed is claimed by it again
                if rest:
                    time.sleep(rest)
                taken = time.monotonic()
                claimed = self._tell_batch(served)
            now = time.monotonic()
            if claimed:
                worked, pause = now, _LOOK_S[0]
                rest = _GATHER * (now - taken) if claimed > 1 else 0.0
            served.cut_short = now - begun > request.most_s or served.handed >= _MOST_HANDED
            if served.cut_short or now - worked > request.linger_s:
                return
            if not claimed:
                time.sleep(pause)
                pause = min(1.5 * pause, _LOOK_S[1])

    def _tell_batch(self, served: _Served) -> int:
        """Claim what waits, as much as is told at once, and tell it; how many transactions that were."""
        batch = self._transactions.claim(own_claim(), limit=_BATCH)
        if batch:
            done = self._broadcasts.settle(batch)
            _record(done.finished)
            served.finished += len(done.finished)
            served.handed += self._hand_over(done)
        return len(batch)

    def _expire(self, tc_id: int) -> tuple[int, CoordinatorWork]:
        """Abort the coordinator's open transactions whose deadline has passed; how many, and what is to be done then.

        One that its program decides just now is locked, and left to the next look.
        """
        count, found = 0, 1
        while True:
            raise_if_stopped()
            work = self._transactions.work_of(tc_id)  # a read: a look locks no row
            if not found or work.next_deadline_us is None or work.next_deadline_us > work.now_us:
                return count, work
            found = self._transactions.expire(tc_id, limit=_EXPIRED)
            count += found

    def _hand_over(self, done: BroadcastResult) -> int:
        """Give what failed to workflows of its own; if no topic answers, the whole store is away: try again."""
        if done.failures and done.topics_away == done.topics > 1:
            told = summarize_failures(next(iter(done.failures.values())))
            raise StoreUnavailable(f"transactions: no topic could be told: {told}")
        claims = {txn: Claim(workflow_id=broadcast_id(txn), run_id="", ttl_s=CLAIM_S) for txn in done.failures}
        if claims:
            self._transactions.hand_over(done.failures, to=claims)
        return len(claims)

    def _drained(self, tc_id: int, served: _Served) -> Drained:
        """What the catalog says in the end: what a worker handed over and died is in the next answer."""
        handed = self._transactions.handed_over(limit=_MOST_HANDED)
        work = self._transactions.work_of(tc_id)
        deadline = None if work.next_deadline_us is None else (work.next_deadline_us - work.now_us) / 1_000_000
        return Drained(
            finished=served.finished,
            expired=served.expired,
            handed_over=[str(txn) for txn in handed],
            more=work.undone or served.cut_short or len(handed) >= _MOST_HANDED,
            next_deadline_s=deadline if deadline is None else max(0.0, deadline),
        )

    @defined(name="transactions.tell")
    @beating()
    def tell(self, request: TellInput) -> Told:
        """Tell the participants of one decided transaction that are still owed; those that fail are named.

        Idempotency: keyed by `txn`; of one that is finished the end is answered again.
        Raises: UnknownObject, TransactionNotDecided, ClaimHeld (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        txn = TransactionId.parse(request.txn)
        found = self._transactions.claim_one(txn, own_claim(CLAIM_S + request.wait_s))
        if found.finished_us is None:
            done = self._broadcasts.settle([found])
            _record(done.finished)
            if failures := done.failures.get(txn):
                self._transactions.failed(txn, failures)
            found = self._transactions.get(txn)
        return _told(found)

    @defined(name="transactions.busy_coordinators")
    @beating()
    def busy_coordinators(self, request: BusyInput) -> list[int]:
        """Coordinators with work that no workflow does, the first of them.

        Idempotency: reads only.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        return self._transactions.busy_coordinators()[: request.limit]

    @defined(name="transactions.forget")
    @beating()
    def forget(self, request: ForgetInput) -> int:
        """Forget a page of transactions that finished long ago; how many.

        Idempotency: the next page, each time.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        return self._transactions.forget(older_than_s=self._retention_s, limit=request.limit)


def broadcast_id(txn: TransactionId) -> str:
    """`broadcast-transaction/{tc}-{sequence}`: the workflow that tells one transaction's participants alone."""
    return f"broadcast-transaction/{txn.tc_id}-{txn.sequence}"


def _told(found: StoredTransaction) -> Told:
    owed = found.owed
    return Told(
        state=found.state.value,
        settled=len(found.participants) - len(owed),
        owed=[
            Owed(participant=str(one.participant), topic=one.topic, error=(one.last_error or "")[:MAX_ERROR_CHARACTERS])
            for one in owed[:MAX_REPORTED_PARTICIPANTS]
        ],
        owed_count=len(owed),
    )


def _record(finished: Iterable[Finished]) -> None:
    """Record how long broadcasts took, from a transaction's decision until its last participant was told.

    It is recorded after the catalog has committed the end, and only by the call that brought it: a repeated activity
    adds nothing. A worker that dies between the two leaves that transaction out for ever. Both ends are by the
    catalog's clock. One without participants is over once it is decided, and one whose last participant an operator
    resolved was not told: neither is recorded. A transaction that is not told yet is in the gauge
    `sexton_transactions_oldest_decided_seconds`. Labels are those of the activity alone: no topic, no transaction.
    """
    took = [one.took_us / 1_000_000 for one in finished if one.took_us is not None]
    if not took:
        return
    about = "From the decision of a transaction until its last participant was told"
    histogram = activity.metric_meter().create_histogram_float(BROADCAST, about, "s")
    for seconds in took:
        histogram.record(max(0.0, seconds))
