"""State of one store for its status page: totals, and a few rows of each list. No query reads a whole table."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from logstore.catalog.sql_catalog import Catalog
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import SextonError
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.ports.catalog.transactions import StoredTransaction
from logstore.reconciliation.findings import plan_result
from logstore.records.services.flusher import find_unrecordable
from logstore.records.services.replica_shipments import ReplicaStatus
from logstore.transactions.transaction_ids_and_states import TransactionState
from workers.human_readable_values import decode_topic_name, format_time_to_second, select_fields
from workflows.delayed.job_definitions import MERGE_BUCKETS, SEAL_BUCKETS
from workflows.deletion.job_definitions import DELETE_LEDGERS, SWEEP_DELETIONS
from workflows.job_definition import JobDefinition
from workflows.pulsar.job_definitions import PLAN_PULSAR
from workflows.reconciliation.job_definitions import RECONCILE_ORPHANS
from workflows.records.job_definitions import FLUSH_RECORDS, RAID_TOMBSTONES
from workflows.transactions.job_definitions import TRANSACTION_COORDINATOR

MAX_ROWS_PER_LIST: Final = 10
_MAX_ERROR_CHARACTERS: Final = 300
_DECIDED_STATES: Final = (TransactionState.COMMITTING, TransactionState.ABORTING)

Section = dict[str, Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WebUiLinks:
    """Links to jobs in Temporal's Web UI. All URLs are empty unless `address` begins with `http://` or `https://`."""

    address: str
    namespace: str

    def link_job(self, workflow_id: str, run_id: str = "") -> Section:
        """Return the job's id and the URL of the run `run_id`. Without `run_id` the URL shows the newest run."""
        path = "/".join(quote(part, safe="") for part in (workflow_id, run_id) if part)
        return {"workflow_id": workflow_id, "url": self._make_url(f"/{path}")}

    def link_type(self, name: str) -> Section:
        query = quote(f'WorkflowType="{name}"', safe="")
        return {"workflow_type": name, "url": self._make_url(f"?query={query}")}

    def _make_url(self, suffix: str) -> str:
        if not self.address.startswith(("http://", "https://")):
            return ""
        return f"{self.address.rstrip('/')}/namespaces/{quote(self.namespace, safe='')}/workflows{suffix}"


class StoreStatusReader:
    """Reader of the state of one store. Its methods block."""

    def __init__(self, catalog: Catalog, list_replicas: Callable[[], Sequence[ReplicaStatus]], ui: WebUiLinks) -> None:
        self._catalog, self._list_replicas, self._ui = catalog, list_replicas, ui
        self._read_by_section: Mapping[str, Callable[[], Section]] = {
            "totals": self._read_identity_and_next_ids,
            "deletions": self._read_deletions,
            "transactions": self._read_transactions,
            "delayed": self._read_delayed,
            "records": self._read_record_log_and_tombstones,
            "owners": self._count_bundles_by_worker,
            "plans": lambda: {"newest": [self._format_plan(plan, RECONCILE_ORPHANS) for plan in self._newest_plans()]},
            "cluster_plans": self._read_cluster_plans,
        }

    @property
    def section_names(self) -> Collection[str]:
        return self._read_by_section

    def read(self) -> Section:
        """Return all sections about the catalog, by name. A section that cannot be read has only an `error`."""
        return {name: _read_or_error(read) for name, read in self._read_by_section.items()}

    def read_replicas(self) -> Section:
        """Read the section about replicas from the records bucket. After a failure the section has only an `error`."""

        def to_row(replica: ReplicaStatus) -> Section:
            return {"replica": replica.replica, "state": str(replica.state or "NEW"), "lag_s": replica.lag_s}

        return _read_or_error(lambda: {"known": list(map(to_row, self._list_replicas()[:MAX_ROWS_PER_LIST]))})

    def _read_identity_and_next_ids(self) -> Section:
        state = self._catalog.records.read_state()
        totals: Section = {
            **select_fields(state, "catalog_id epoch"),
            "adopting": state.is_adopting,
            "next_topic_id": state.next_ids.topic,  # not the number of topics, because a rebuilt catalog skips ids
            "next_ledger_id": state.next_ids.ledger,
        }
        finished = next((plan for plan in self._newest_plans() if plan.finished_us is not None), None)
        if finished is not None:
            totals |= {
                "ledgers_at_plan": plan_result(finished.summary).ledgers,
                "plan_at": format_time_to_second(finished.created_us),
            }
        return totals

    def _read_deletions(self) -> Section:
        inflight, list_intents = (
            self._catalog.deletions.count_undeleted_copies(),
            self._catalog.deletions.list_intents,
        )
        return {
            **select_fields(inflight, "estimated_inflight dead_lettered"),
            "oldest_pending_s": _age_s(inflight.oldest_us),
            "inflight": [
                self._format_intent(intent) for intent in list_intents(DeletionState.PENDING, limit=MAX_ROWS_PER_LIST)
            ],
            "dead_letters": [
                self._format_intent(intent)
                for intent in list_intents(DeletionState.DEAD_LETTERED, limit=MAX_ROWS_PER_LIST)
            ],
        }

    def _format_intent(self, intent: DeletionIntent) -> Section:
        if workflow_id := intent.handed_to or (DELETE_LEDGERS.id(intent.batch_id) if intent.batch_id else None):
            job = self._ui.link_job(workflow_id)
        else:  # the next trim of the topic or a sweep will take the intent
            job = {"workflow_id": None, **self._ui.link_type(SWEEP_DELETIONS.name)}
        return {
            "id": intent.row_id,
            "ledger_id": intent.ledger_id,
            "copy": intent.copy.value,
            "topic": decode_topic_name(intent.topic),
            "outcome": intent.outcome.value if intent.outcome else None,
            "attempts": intent.attempts,
            "last_error": (intent.damage or intent.last_error or "")[:_MAX_ERROR_CHARACTERS] or None,
            "paused": intent.paused,
            "trace_id": intent.trace_id,
            **job,
        }

    def _read_transactions(self) -> Section:
        counts = self._catalog.transactions.count_unfinished_transactions()
        stuck = self._catalog.transactions.list_transactions(states=_DECIDED_STATES, limit=MAX_ROWS_PER_LIST)
        return {
            "unfinished": {state.value: count for state, count in counts.count_by_state.items()},
            "oldest_open_s": _age_s(counts.oldest_open_us),
            "oldest_decided_s": _age_s(counts.oldest_decided_us),
            "stuck": [self._format_stuck_transaction(transaction) for transaction in stuck],
        }

    def _format_stuck_transaction(self, transaction: StoredTransaction) -> Section:
        workflow_id = transaction.claim_workflow or TRANSACTION_COORDINATOR.id(transaction.txn.tc_id)
        return {
            "txn": str(transaction.txn),
            "state": transaction.state.value,
            "decided_s": _age_s(transaction.decided_us),
            "attempts": transaction.attempts,
            "owed": [decode_topic_name(participant.topic) for participant in transaction.owed[:MAX_ROWS_PER_LIST]],
            "last_error": (transaction.last_error or "")[:_MAX_ERROR_CHARACTERS] or None,
            **self._ui.link_job(workflow_id),
        }

    def _read_delayed(self) -> Section:
        counts = self._catalog.delayed.count_delayed_messages()
        return {
            **select_fields(counts, "buckets messages"),
            "unsealed_messages": counts.unsealed,
            "jobs": [self._ui.link_type(job.name) for job in (SEAL_BUCKETS, MERGE_BUCKETS)],
        }

    def _read_record_log_and_tombstones(self) -> Section:
        state, tombstones = self._catalog.records.read_state(), self._catalog.tombstones.count_tombstones()
        return {
            "manifest": state.manifest,
            "outbox": state.outbox_changes,
            "outbox_oldest_s": _age_s(state.oldest_change_us),
            "deletions_waiting": self._catalog.records.count_unflushed_deletions(),
            "refused": [str(problem) for problem in find_unrecordable(self._catalog.records)][:MAX_ROWS_PER_LIST]
            if state.outbox_changes
            else [],
            "tombstones": dict(tombstones.by_kind),
            "cenotaphs": tombstones.candidates,
            "oldest_tombstone_s": _age_s(tombstones.oldest_us),
            "jobs": [self._ui.link_job(FLUSH_RECORDS.id()), self._ui.link_type(RAID_TOMBSTONES.name)],
        }

    def _count_bundles_by_worker(self) -> Section:
        fences, bundles = self._catalog.fences.list_fences(), self._catalog.fences.count_bundles()
        bundles_by_worker = Counter(fence.worker_id for fence in fences)
        return {
            "bundles": bundles,
            "never_owned": bundles - len(fences),
            "workers": [
                {"worker_id": name, "bundles": count}
                for name, count in bundles_by_worker.most_common(MAX_ROWS_PER_LIST)
            ],
        }

    def _newest_plans(self) -> Sequence[ReconciliationRun]:
        return self._catalog.reconciliation.list_runs(RunKind.PLAN, limit=MAX_ROWS_PER_LIST)

    def _read_cluster_plans(self) -> Section:
        runs = self._catalog.reconciliation.list_runs(RunKind.CLUSTER_PLAN, limit=MAX_ROWS_PER_LIST)

        def format_run(run: ReconciliationRun) -> Section:
            is_finished = run.finished_us is not None
            incomplete = plan_result(run.summary).incomplete if is_finished else []
            return {
                **self._format_plan(run, PLAN_PULSAR),
                "cluster": run.summary["cluster"] or run.summary["identity"],
                "complete": not incomplete if is_finished else None,
                "incomplete": incomplete,
            }

        return {"newest": [format_run(run) for run in runs]}

    def _format_plan(self, run: ReconciliationRun, job: JobDefinition[Any, Any]) -> Section:
        result = None if run.finished_us is None else plan_result(run.summary)
        return {
            "run_id": run.run_id,
            "began": format_time_to_second(run.created_us),
            "finished": None if run.finished_us is None else format_time_to_second(run.finished_us),
            "ledgers": None if result is None else result.ledgers,
            "findings": {} if result is None else {kind: count for kind, count in result.findings.items() if count},
            **self._ui.link_job(job.id(run.run_id)),
        }


def _read_or_error(read: Callable[[], Section]) -> Section:
    try:
        return read()
    except SextonError as error:
        return {"error": str(error)[:_MAX_ERROR_CHARACTERS]}
    except Exception as error:  # noqa: BLE001 - this build may be unable to read a row of another build
        _log.exception("status: a section met a fault that nothing here expects")
        return {"error": type(error).__name__}


def _age_s(since_us: int | None) -> int | None:
    return None if since_us is None else max(0, time.time_ns() // 1000 - since_us) // 1_000_000
