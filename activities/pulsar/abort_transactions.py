"""Aborts of transactions of a Pulsar cluster: look, abort, and look again until nobody owes anything.

The run of an abort keeps the transactions as they were before the first abort. An abort may succeed and be reported as
failed, so only the state of a transaction says how it ended. A transaction is identified by its id and by the time at
which it was opened, because a coordinator that was made anew gives the same ids again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

from activities.bulk_jobs import RUN_CLAIM_S
from activities.deletion.claims_and_causes import own_workflow_cause, own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats
from activities.pulsar.abort_checks import require_abortable
from activities.pulsar.inputs_and_results import (
    AbortAttempt,
    AbortTransactionInput,
    BeginAbortInput,
    BegunAbort,
    CheckAbortsInput,
    CheckedAborts,
)
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import PreconditionFailed, ServiceFailed, StoreUnavailable, UnknownObject
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.ports.pulsar_cluster import ClusterTransactions, PulsarClusterAccess
from logstore.pulsar.cluster_transactions import (
    AFTER_ABORT,
    BEFORE_ABORT,
    AbortOutcome,
    OpenTransaction,
    TransactionAbort,
    TransactionParticipant,
    TransactionReport,
    find_state_refusal,
    list_holds,
    list_unsettled_parts,
    needs_other_transactions,
    transaction_from_document,
)
from logstore.pulsar.plan_jobs import IDENTITY
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.reconciliation.services.run_checks import find_run
from logstore.stop_checks import raise_if_stopped
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState

_RESULTS: Final = "results"  # key in the summary of a run
_MAX_SENTENCES: Final = 5  # of one kind in a result, which is part of a workflow payload
_NO_OTHERS: Final = TransactionReport((), ())
_UNREADABLE: Final = (ServiceFailed, StoreUnavailable, PreconditionFailed, UnknownObject, UnreadableMetadata)
"""Errors about one coordinator or participant. They say nothing about the other transactions of a run."""


@dataclass(frozen=True, slots=True)
class _TransactionLook:
    """State of one transaction of a run. `participants` are those after its end, or `None` before it."""

    result: TransactionAbort
    state: str = ""  # "": it has ended, or cannot be read
    participants: Sequence[TransactionParticipant] | None = None


class AbortTransactionsActivities:
    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: PulsarClusterAccess,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._runs, self._audit_log = catalog.reconciliation, catalog.audit_log
        self._cluster, self._clock = cluster, clock

    @define_activity(name="pulsar.begin_abort")
    @send_heartbeats()
    def begin_abort(self, request: BeginAbortInput) -> BegunAbort:
        """Check that all transactions may be aborted, and open the run with what was seen of them.

        Idempotency: keyed by `run_id`. What the first call saw stays.
        Raises: InvalidInput, UnknownObject, PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy
            (retry).
        """
        run = find_run(self._runs, request.run_id)
        if run is None:
            with self._cluster.open_transactions() as transactions:
                identity = transactions.read_identity()
                abortable = require_abortable(
                    transactions, request.transactions, now_s=self._clock(), unsafe_age=request.unsafe_age
                )
            summary = {
                "actor": request.actor,
                "reason": request.reason,
                IDENTITY: identity,
                BEFORE_ABORT: {transaction.id: asdict(transaction) for transaction in abortable},
            }
            claim = own_workflow_claim(RUN_CLAIM_S)
            run = self._runs.open_run(request.run_id, RunKind.ABORT, claim=claim, summary=summary)
        if run.finished_us is not None:
            return BegunAbort(done=_parse_results(run))
        self._record_act("abort-transactions", run, {"transactions": list(run.summary[BEFORE_ABORT])})
        return BegunAbort()

    @define_activity(name="pulsar.abort_transaction")
    @send_heartbeats()
    def abort_transaction(self, request: AbortTransactionInput) -> AbortAttempt:
        """Ask the coordinator to abort a transaction, if it is the one that was seen before and has not ended.

        A problem of this transaction is part of the result, so that it does not hinder others.

        Idempotency: a transaction that has ended stays as it is.
        Raises: UnknownObject, PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy (retry).
        """
        run = self._runs.get_run(request.run_id)
        before, transaction_id = _parse_transactions(run)[request.txn], TransactionId.parse(request.txn)
        with self._cluster.open_transactions() as transactions:
            _require_cluster(run, transactions)
            try:
                current = transactions.find(transaction_id)
                problem = _find_refusal(before, current) if current else ""
                if current is None or problem:
                    return AbortAttempt(problem=problem)
                transactions.abort(transaction_id)
            except _UNREADABLE as error:
                return AbortAttempt(problem=str(error))
        return AbortAttempt(decided=True)

    @define_activity(name="pulsar.check_aborts")
    @send_heartbeats()
    def check_aborts(self, request: CheckAbortsInput) -> CheckedAborts:
        """Look which transactions of the run have not ended, and which of their participants still owe something.

        Idempotency: nothing is changed.
        Raises: UnknownObject, PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy (retry).
        """
        looks = self._look_at_transactions(self._runs.get_run(request.run_id), request.attempts)
        return CheckedAborts(
            unsettled=sum(look.result.outcome == AbortOutcome.UNSETTLED for look in looks),
            open=[look.result.txn for look in looks if look.state == TransactionState.OPEN],
            aborting=[look.result.txn for look in looks if look.state == TransactionState.ABORTING],
        )

    @define_activity(name="pulsar.conclude_abort")
    @send_heartbeats()
    def conclude_abort(self, request: CheckAbortsInput) -> list[TransactionAbort]:
        """Look at the transactions and their participants for the last time, and end the run with what was seen.

        Idempotency: the result of an ended run stays.
        Raises: UnknownObject, PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy (retry).
        """
        run = self._runs.get_run(request.run_id)
        if run.finished_us is not None:
            return _parse_results(run)
        looks = self._look_at_transactions(run, request.attempts)
        results = [look.result for look in looks]
        after = {look.result.txn: [asdict(each) for each in look.participants or ()] for look in looks}
        self._record_act("aborted-transactions", run, {"results": {each.txn: each.outcome for each in results}})
        self._runs.close_run(
            run.run_id, {**run.summary, AFTER_ABORT: after, _RESULTS: [asdict(result) for result in results]}
        )
        return results

    def _look_at_transactions(
        self, run: ReconciliationRun, attempts: Mapping[str, AbortAttempt]
    ) -> list[_TransactionLook]:
        with self._cluster.open_transactions() as transactions:
            _require_cluster(run, transactions)
            list_open = cache(transactions.list_open)
            looks: list[_TransactionLook] = []
            for txn, before in _parse_transactions(run).items():
                raise_if_stopped()
                attempt = attempts.get(txn, AbortAttempt())
                try:
                    looks.append(_look_at_transaction(transactions, list_open, before, attempt))
                except _UNREADABLE as error:
                    looks.append(_TransactionLook(_make_unsettled_result(txn, str(error))))
        return looks

    def _record_act(self, act: str, run: ReconciliationRun, detail: Mapping[str, Any]) -> None:
        cause = own_workflow_cause(run.summary["actor"], run.summary["reason"])
        self._audit_log.record_act(act, cause, detail={"run": run.run_id, **detail})


def _look_at_transaction(
    transactions: ClusterTransactions,
    list_open: Callable[[], TransactionReport],
    before: OpenTransaction,
    attempt: AbortAttempt,
) -> _TransactionLook:
    current = transactions.find(TransactionId.parse(before.id))
    if current and current.opened_ms == before.opened_ms:
        return _TransactionLook(_judge_open_transaction(current, attempt), state=current.state)
    participants = transactions.read_participants_after_end(before)
    others = list_open() if needs_other_transactions(participants) else _NO_OTHERS
    return _TransactionLook(_judge_ended_transaction(before, participants, others, attempt), participants=participants)


def _judge_open_transaction(current: OpenTransaction, attempt: AbortAttempt) -> TransactionAbort:
    owing = [str(participant) for participant in current.participants if participant.owes == "abort"][:_MAX_SENTENCES]
    owed = f", and these participants owe the abort: {'; '.join(owing)}" if owing else ""
    problem = f"expected its end, found it {current.state}{owed}{_describe_attempt(attempt)}"
    if current.state == TransactionState.COMMITTING:
        return TransactionAbort(txn=current.id, outcome=AbortOutcome.COMMITTED, problem=problem)
    return _make_unsettled_result(current.id, problem)


def _judge_ended_transaction(
    before: OpenTransaction,
    participants: Sequence[TransactionParticipant],
    others: TransactionReport,
    attempt: AbortAttempt,
) -> TransactionAbort:
    """Return the result. `others` are the open transactions, if they are needed to explain the participants."""
    unsettled = list_unsettled_parts(participants, others)
    still_held = list_holds(participants, others)[:_MAX_SENTENCES]
    if unsettled:
        return _make_unsettled_result(before.id, "; ".join(unsettled[:_MAX_SENTENCES]), still_held)
    was_aborted = any(participant.was_aborted for participant in participants)
    if attempt.decided or before.state == TransactionState.ABORTING or was_aborted:
        return TransactionAbort(txn=before.id, outcome=AbortOutcome.ABORTED, still_held=still_held)
    problem = f"it has ended, and nothing says whether by an abort or a commit{_describe_attempt(attempt)}"
    return TransactionAbort(txn=before.id, outcome=AbortOutcome.ENDED, problem=problem, still_held=still_held)


def _describe_attempt(attempt: AbortAttempt) -> str:
    return f". The request said: {attempt.problem}" if attempt.problem else ""


def _find_refusal(before: OpenTransaction, current: OpenTransaction) -> str:
    """Return why the current transaction is not the one that may be aborted, or ""."""
    if current.opened_ms != before.opened_ms:
        return f"transaction {before.id}: expected one opened at {before.opened_ms} ms, found another one"
    return find_state_refusal(current) or ""


def _make_unsettled_result(txn: str, problem: str, still_held: Sequence[str] = ()) -> TransactionAbort:
    return TransactionAbort(txn=txn, outcome=AbortOutcome.UNSETTLED, problem=problem, still_held=list(still_held))


def _parse_transactions(run: ReconciliationRun) -> dict[str, OpenTransaction]:
    return {txn: transaction_from_document(document) for txn, document in run.summary[BEFORE_ABORT].items()}


def _parse_results(run: ReconciliationRun) -> list[TransactionAbort]:
    return [TransactionAbort(**result) for result in run.summary[_RESULTS]]


def _require_cluster(run: ReconciliationRun, transactions: ClusterTransactions) -> None:
    if (identity := transactions.read_identity()) != run.summary[IDENTITY]:
        raise PreconditionFailed(f"abort {run.run_id}: expected the cluster {run.summary[IDENTITY]}, found {identity}")
