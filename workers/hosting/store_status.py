"""Read-only pages `/status` and `/status.json`: the state of the store, for people and for programs.

The pages have totals, and a few rows of each list. No query reads a whole table. The state is read at most once in ten
seconds, for all clients together. A page may therefore be ten seconds old.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web
from temporalio.client import Client
from temporalio.service import RPCError

from logstore.catalog.sql_catalog import Catalog
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import SextonError
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.ports.catalog.transactions import StoredTransaction
from logstore.reconciliation.findings import plan_result
from logstore.records.services.flusher import find_unrecordable
from logstore.records.services.replicas import ReplicaStatus
from logstore.transactions.transaction_ids_and_states import TransactionState
from workers.client.workflow_search import query_workflows
from workers.hosting.page_server import PageRouter
from workers.hosting.readiness import Readiness
from workers.human_readable_values import decode_topic_name, format_time_to_second, select_fields
from workers.pages import CONTENT_SECURITY_POLICY, render_template
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
        leases, bundles = self._catalog.fences.list_newest_leases(), self._catalog.fences.count_bundles()
        bundles_by_worker = Counter(lease.worker_id for lease in leases)
        return {
            "bundles": bundles,
            "never_owned": bundles - len(leases),
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


_MAX_AGE_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 5.0  # for the answer of each service
_POLICY: Final = {
    "Content-Security-Policy": f"{CONTENT_SECURITY_POLICY}; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

Read = Callable[[], Awaitable[dict[str, Any]]]


class CachedDocument:
    """Cache of a document for some seconds. Concurrent callers share one read. Use it only on one event loop."""

    def __init__(
        self, read: Read, *, max_age_s: float = _MAX_AGE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._max_age_s, self._clock = read, max_age_s, clock
        self._lock = asyncio.Lock()
        self._cached: tuple[float, dict[str, Any]] | None = None

    async def get(self) -> dict[str, Any]:
        async with self._lock:
            if self._cached is None or self._clock() - self._cached[0] >= self._max_age_s:
                self._cached = self._clock(), await self._read()
            return self._cached[1]


class TimeLimitedReader:
    """Reader in a thread, with a timeout. While a read hangs, no other read starts. Use it only on one event loop."""

    def __init__(self, read: Callable[[], dict[str, Any]], timeout_s: float) -> None:
        self._read, self._timeout_s = read, timeout_s
        self._running: asyncio.Task[dict[str, Any]] | None = None

    async def get(self) -> dict[str, Any] | None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(self._read))
        done, _ = await asyncio.wait([self._running], timeout=self._timeout_s)
        return self._running.result() if done else None


class StatusReader:
    def __init__(
        self,
        worker_id: str,
        store: StoreStatusReader,
        client: Client,
        readiness: Readiness,
        ui: WebUiLinks,
        *,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> None:
        self._worker_id, self._client, self._sections = worker_id, client, store.section_names
        self._readiness, self._ui, self._answer_timeout_s = readiness, ui, answer_timeout_s
        self._catalog = TimeLimitedReader(store.read, answer_timeout_s)
        self._replicas = TimeLimitedReader(store.read_replicas, answer_timeout_s)

    async def read(self) -> dict[str, Any]:
        timeout = {"error": f"no answer within {self._answer_timeout_s:g} s"}
        catalog, replicas, jobs = await asyncio.gather(
            self._catalog.get(), self._replicas.get(), self._read_running_jobs()
        )
        return {
            "at": format_time_to_second(time.time_ns() // 1000),
            "worker": {
                "worker_id": self._worker_id,
                "ready": self._readiness.is_ready,
                "phase": self._readiness.phase.value,
                "checks": [asdict(result) for result in self._readiness.latest_results_failing_if_stale()],
            },
            **(catalog or dict.fromkeys(self._sections, timeout)),
            "replicas": replicas or timeout,
            "jobs": jobs,
        }

    async def _read_running_jobs(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                rows = await query_workflows(self._client, None, "Running", None, limit=MAX_ROWS_PER_LIST)
        except (RPCError, TimeoutError) as error:
            return {
                "error": f"Temporal does not answer: {str(error) or f'nothing within {self._answer_timeout_s:g} s'}"
            }
        running = [
            {"type": row.type, "began": format_time_to_second(int(row.started.timestamp() * 1e6))}
            | self._ui.link_job(row.workflow_id, row.run_id)
            for row in rows
        ]
        return {"running": running}


def add_status_pages(pages: PageRouter, status_reader: StatusReader) -> None:
    cached = CachedDocument(status_reader.read)

    async def respond_json(_: web.Request) -> web.StreamResponse:
        return web.json_response(await cached.get())

    async def respond_page(_: web.Request) -> web.StreamResponse:
        text = render_template("status.html", status=await cached.get(), most=MAX_ROWS_PER_LIST)
        return web.Response(text=text, content_type="text/html", headers=_POLICY)

    pages.add("/status", respond_page)
    pages.add("/status.json", respond_json)
