"""Activities of coordinators and broadcasts. They claim transactions in SQL and broadcast the decisions.

Activities may run twice: decisions never change, claims expire, and a second transaction marker is harmless.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from temporalio import activity

from activities.deletion.claims_and_causes import CLAIM_S, own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.errors import StoreUnavailable
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.transactions import CoordinatorWorkStatus, FinishedTransaction, StoredTransaction
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasCoordinator, HasRowLimit, HasTransaction
from logstore.transactions.services.broadcast import Broadcaster, BroadcastResult
from logstore.transactions.transaction_ids_and_states import (
    MAX_ERROR_CHARACTERS,
    MAX_REPORTED_PARTICIPANTS,
    BroadcastState,
    OwedParticipant,
    TransactionId,
    summarize_failures,
)

_MAX_TRANSACTIONS_PER_BATCH: Final = 500
_MAX_EXPIRED_PER_STATEMENT: Final = 1_000
_MAX_IDS_PER_RESULT: Final = 100  # ids of transactions that were handed over; the next result has further ids
_MIN_POLL_S, _MAX_POLL_S = 0.003, 0.012  # pause between two polls for work
# Share of a batch's duration to wait before the next batch, whose transactions the same clients decide together.
_GATHER_RATIO: Final = 0.1

BROADCAST_SECONDS: Final = "sexton_transactions_broadcast_seconds"

HISTOGRAM_BOUNDS_S: Final[Mapping[str, Sequence[float]]] = {
    BROADCAST_SECONDS: (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
}
"""Upper bounds of histogram buckets by metric, in seconds, inclusive. Temporal's default bounds are in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainInput(HasCoordinator):
    tc_id: int
    linger_s: float = 1.0  # time without work after which the drain returns
    most_s: float = 30.0  # time after which the drain returns, even if there is more work


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    finished: int = 0  # transactions that became final
    expired: int = 0  # transactions aborted after their deadline
    handed_over: list[str] = field(default_factory=list)  # ids of transactions; one page
    more: bool = False  # there may be more work
    next_deadline_s: float | None = None  # seconds until the next open transaction times out


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastInput(HasTransaction):
    txn: str  # tc:sequence
    wait_s: float = 0.0  # pause of the workflow after this call, added to the claim


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyCoordinatorsInput(HasRowLimit):
    limit: int = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOldTransactionsInput(HasRowLimit):
    limit: int = 1_000


@dataclass(slots=True)
class _DrainProgress:
    finished: int = 0
    expired: int = 0
    handed_over: int = 0
    is_cut_short: bool = False  # the drain ended although there may be more work


class TransactionCoordinatorActivities:
    def __init__(self, *, transactions: Transactions, broadcasts: Broadcaster, finished_retention_s: float) -> None:
        self._transactions, self._broadcasts = transactions, broadcasts
        self._retention_s = finished_retention_s
        self._drain_lock = threading.Lock()  # one drain per process: large batches cost less per transaction

    @define_activity(name="transactions.drain")
    @send_heartbeats()
    def abort_expired_and_broadcast_decided(self, request: DrainInput) -> DrainResult:
        """Abort expired transactions of one coordinator, and broadcast decided transactions of all coordinators.

        The call returns after `linger_s` without work, or after `most_s`. A transaction that is decided before the call
        returns needs no further workflow task. A transaction with a failed participant is handed over to a workflow of
        its own. If a batch has several topics and all of them fail, raise `StoreUnavailable` instead.

        Idempotency: settled participants stay settled. The next attempt claims the same transactions again.
        Heartbeat: every two seconds.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        expired, _ = self._abort_expired(request.tc_id)
        progress = _DrainProgress(expired=expired)
        if self._drain_lock.acquire(timeout=request.linger_s):  # otherwise another drain works for all coordinators
            try:
                self._abort_and_broadcast_until_idle(request, progress)
            finally:
                self._drain_lock.release()
        return self._read_drain_result(request.tc_id, progress)

    def _abort_and_broadcast_until_idle(self, request: DrainInput, progress: _DrainProgress) -> None:
        begun_s = last_work_s = time.monotonic()
        poll_s, gather_s, is_first = _MIN_POLL_S, 0.0, True
        while True:
            expired, work = self._abort_expired(request.tc_id)
            progress.expired += expired
            claimed = 0
            if is_first or work.has_unclaimed:
                is_first = False  # an earlier attempt of this activity may have claimed transactions
                if gather_s:
                    time.sleep(gather_s)
                batch_begun_s = time.monotonic()
                claimed = self._claim_and_broadcast_batch(progress)
            now_s = time.monotonic()
            if claimed:
                last_work_s, poll_s = now_s, _MIN_POLL_S
                gather_s = _GATHER_RATIO * (now_s - batch_begun_s) if claimed > 1 else 0.0
            progress.is_cut_short = now_s - begun_s > request.most_s or progress.handed_over >= _MAX_IDS_PER_RESULT
            if progress.is_cut_short or now_s - last_work_s > request.linger_s:
                return
            if not claimed:
                time.sleep(poll_s)
                poll_s = min(1.5 * poll_s, _MAX_POLL_S)

    def _claim_and_broadcast_batch(self, progress: _DrainProgress) -> int:
        batch = self._transactions.claim_decided_transactions(own_workflow_claim(), limit=_MAX_TRANSACTIONS_PER_BATCH)
        if batch:
            result = self._broadcasts.broadcast_batch(batch)
            _record_broadcast_durations(result.finished)
            progress.finished += len(result.finished)
            progress.handed_over += self._hand_over_failed(result)
        return len(batch)

    def _abort_expired(self, tc_id: int) -> tuple[int, CoordinatorWorkStatus]:
        """Abort expired transactions that no client has locked. Return the number of aborts, and the remaining work."""
        total, expired = 0, 1
        while True:
            raise_if_stopped()
            work = self._transactions.read_coordinator_work(tc_id)  # reads only; aborts would lock rows
            if not expired or work.next_deadline_us is None or work.next_deadline_us > work.now_us:
                return total, work
            expired = self._transactions.abort_expired_transactions(tc_id, limit=_MAX_EXPIRED_PER_STATEMENT)
            total += expired

    def _hand_over_failed(self, result: BroadcastResult) -> int:
        """Hand failed transactions over to workflows of their own. Raise `StoreUnavailable` if all topics failed."""
        if result.failures and result.topics_away == result.topics > 1:
            summary = summarize_failures(next(iter(result.failures.values())))
            raise StoreUnavailable(f"transactions: no topic could be told: {summary}")
        claims = {
            txn: Claim(workflow_id=broadcast_workflow_id(txn), run_id="", ttl_s=CLAIM_S) for txn in result.failures
        }
        if claims:
            self._transactions.hand_over_to_own_workflows(result.failures, claim_by_transaction=claims)
        return len(claims)

    def _read_drain_result(self, tc_id: int, progress: _DrainProgress) -> DrainResult:
        """Build the result. It includes transactions that an earlier attempt has handed over."""
        handed_over = self._transactions.list_handed_over_transactions(limit=_MAX_IDS_PER_RESULT)
        work = self._transactions.read_coordinator_work(tc_id)
        deadline_s = None if work.next_deadline_us is None else (work.next_deadline_us - work.now_us) / 1_000_000
        return DrainResult(
            finished=progress.finished,
            expired=progress.expired,
            handed_over=[str(txn) for txn in handed_over],
            more=work.has_unclaimed or progress.is_cut_short or len(handed_over) >= _MAX_IDS_PER_RESULT,
            next_deadline_s=None if deadline_s is None else max(0.0, deadline_s),
        )

    @define_activity(name="transactions.tell")
    @send_heartbeats()
    def tell_owed_participants(self, request: BroadcastInput) -> BroadcastState:
        """Tell the owed participants of one transaction. The result names the participants that are still owed.

        Idempotency: keyed by `txn`. For a finished transaction, only the state is returned.
        Raises: UnknownObject, TransactionNotDecided, ClaimHeld (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        txn = TransactionId.parse(request.txn)
        transaction = self._transactions.claim_transaction(txn, own_workflow_claim(CLAIM_S + request.wait_s))
        if transaction.finished_us is None:
            result = self._broadcasts.broadcast_batch([transaction])
            _record_broadcast_durations(result.finished)
            if failures := result.failures.get(txn):
                self._transactions.record_participant_errors(txn, failures)
            transaction = self._transactions.get_transaction(txn)
        return _to_broadcast_state(transaction)

    @define_activity(name="transactions.busy_coordinators")
    @send_heartbeats()
    def list_coordinators_with_work(self, request: BusyCoordinatorsInput) -> list[int]:
        """Return the ids of at most `limit` coordinators with unclaimed work, ascending.

        Idempotency: reads only.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        return self._transactions.list_busy_coordinators()[: request.limit]

    @define_activity(name="transactions.forget")
    @send_heartbeats()
    def remove_old_transactions(self, request: RemoveOldTransactionsInput) -> int:
        """Remove a page of transactions that finished longer ago than the retention. Return the number of removed rows.

        Idempotency: each call takes the next page.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        return self._transactions.remove_finished_transactions(older_than_s=self._retention_s, limit=request.limit)


def broadcast_workflow_id(txn: TransactionId) -> str:
    return f"broadcast-transaction/{txn.tc_id}-{txn.sequence}"


def _to_broadcast_state(transaction: StoredTransaction) -> BroadcastState:
    owed = transaction.owed
    return BroadcastState(
        state=transaction.state.value,
        settled=len(transaction.participants) - len(owed),
        owed=[
            OwedParticipant(
                participant=str(stored.participant),
                topic=stored.topic,
                error=(stored.last_error or "")[:MAX_ERROR_CHARACTERS],
            )
            for stored in owed[:MAX_REPORTED_PARTICIPANTS]
        ],
        owed_count=len(owed),
    )


def _record_broadcast_durations(finished: Iterable[FinishedTransaction]) -> None:
    """Record, for each transaction, the time from the decision until the last participant was told.

    Only the call that finished a transaction records the time. Nothing is recorded for a transaction without
    participants, or for a transaction whose last participant an operator settled.
    """
    durations_s = [txn.duration_us / 1_000_000 for txn in finished if txn.duration_us is not None]
    if not durations_s:
        return
    about = "From the decision of a transaction until its last participant was told"
    histogram = activity.metric_meter().create_histogram_float(BROADCAST_SECONDS, about, "s")
    for duration_s in durations_s:
        histogram.record(max(0.0, duration_s))
