"""The state of one store, as its status page shows it: sums that gauges count as well, and a few rows of each list.

Nothing here walks over a table: a store of ten million ledgers is asked the same bounded questions as an empty one. How
many ledgers and topics there can be is known from the next ids; how many ledgers there are is what the newest plan has
counted.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import SextonError
from logstore.ports.catalog import Catalog, ReconciliationRun, RunKind, StoredTransaction
from logstore.reconciliation.findings import plan_result
from logstore.records.services.flushing import refused
from logstore.records.services.replicating import Replica
from logstore.transactions.transactions import TransactionState
from workers.pages.texts import decode_topic_name, format_time_s, select_fields
from workflows.delayed.values import MERGE_BUCKETS, SEAL_BUCKETS
from workflows.deletion.values import DELETE_LEDGERS, SWEEP_DELETIONS
from workflows.reconciliation.values import RECONCILE_ORPHANS
from workflows.records.values import FLUSH_RECORDS, RAID_TOMBSTONES
from workflows.transactions.values import TRANSACTION_COORDINATOR

MOST_ROWS: Final = 10  # of each list
_MOST_TEXT: Final = 300
_DECIDED: Final = (TransactionState.COMMITTING, TransactionState.ABORTING)

Section = dict[str, Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WebUi:
    """Addresses of jobs in Temporal's Web UI; none where no Web UI is known."""

    address: str
    namespace: str

    def job(self, workflow_id: str, run_id: str = "") -> Section:
        """The job's id and the address of its page: of its newest run, where none is named."""
        path = "/".join(quote(part, safe="") for part in (workflow_id, run_id) if part)
        return {"workflow_id": workflow_id, "url": self._at(f"/{path}")}

    def of_type(self, name: str) -> Section:
        """A list of all jobs of a type."""
        query = quote(f'WorkflowType="{name}"', safe="")
        return {"workflow_type": name, "url": self._at(f"?query={query}")}

    def _at(self, rest: str) -> str:
        if not self.address.startswith(("http://", "https://")):
            return ""
        return f"{self.address.rstrip('/')}/namespaces/{quote(self.namespace, safe='')}/workflows{rest}"


class StoreStatus:
    """Reads the state of one store. It blocks: to be called in a thread."""

    def __init__(self, catalog: Catalog, replicas: Callable[[], Sequence[Replica]], ui: WebUi) -> None:
        """Take the catalog, how to ask for replicas, and where jobs are seen."""
        self._catalog, self._replicas, self._ui = catalog, replicas, ui
        self._sections: Mapping[str, Callable[[], Section]] = {
            "totals": self._totals,
            "deletions": self._deletions,
            "transactions": self._transactions,
            "delayed": self._delayed,
            "records": self._records,
            "owners": self._owners,
            "plans": lambda: {"newest": [self._plan(one) for one in self._newest_plans()]},
        }

    @property
    def names(self) -> Collection[str]:
        """Of the sections of the catalog."""
        return self._sections

    def read(self) -> Section:
        """Every section of the catalog by its name; one that cannot be read has its `error` alone."""
        return {name: _guarded(section) for name, section in self._sections.items()}

    def read_replicas(self) -> Section:
        """The section of replicas, which the bucket of records tells; where it cannot, its `error` alone."""

        def row(one: Replica) -> Section:
            return {"replica": one.replica, "state": str(one.state or "NEW"), "lag_s": one.lag_s}

        return _guarded(lambda: {"known": [row(one) for one in self._replicas()[:MOST_ROWS]]})

    def _totals(self) -> Section:
        state = self._catalog.records.state()
        found: Section = {
            **select_fields(state, "catalog_id epoch adopting"),
            "next_topic_id": state.next_ids.topic,  # there were never more; a rebuilt catalog leaves some out
            "next_ledger_id": state.next_ids.ledger,
        }
        finished = next((one for one in self._newest_plans() if one.finished_us is not None), None)
        if finished is not None:
            found |= {
                "ledgers_at_plan": plan_result(finished.summary).ledgers,
                "plan_at": format_time_s(finished.created_us),
            }
        return found

    def _deletions(self) -> Section:
        found, rows = self._catalog.deletions.inflight(), self._catalog.deletions.list
        return {
            **select_fields(found, "estimated_inflight dead_lettered"),
            "oldest_pending_s": _age_s(found.oldest_us),
            "inflight": [self._intent(one) for one in rows(DeletionState.PENDING, limit=MOST_ROWS)],
            "dead_letters": [self._intent(one) for one in rows(DeletionState.DEAD_LETTERED, limit=MOST_ROWS)],
        }

    def _intent(self, one: DeletionIntent) -> Section:
        return {
            "id": one.row_id,
            "ledger_id": one.ledger_id,
            "copy": one.copy.value,
            "topic": decode_topic_name(one.topic),
            "outcome": one.outcome.value if one.outcome else None,
            "attempts": one.attempts,
            "last_error": (one.damage or one.last_error or "")[:_MOST_TEXT] or None,
            "paused": one.paused,
            "trace_id": one.trace_id,
            **self._job_of(one),
        }

    def _job_of(self, one: DeletionIntent) -> Section:
        """Its own, otherwise its batch; what is in none yet is found by the next trim of its topic, or by a sweep."""
        if one.handed_to or one.batch_id:
            return self._ui.job(one.handed_to or DELETE_LEDGERS.id(one.batch_id))
        return {"workflow_id": None, **self._ui.of_type(SWEEP_DELETIONS.name)}

    def _transactions(self) -> Section:
        counts = self._catalog.transactions.counts()
        stuck = self._catalog.transactions.many(states=_DECIDED, limit=MOST_ROWS)
        return {
            "unfinished": {state.value: count for state, count in counts.states.items()},
            "oldest_open_s": _age_s(counts.oldest_open_us),
            "oldest_decided_s": _age_s(counts.oldest_decided_us),
            "stuck": [self._stuck(one) for one in stuck],
        }

    def _stuck(self, one: StoredTransaction) -> Section:
        workflow = one.claim_workflow or TRANSACTION_COORDINATOR.id(one.txn.tc_id)
        return {
            "txn": str(one.txn),
            "state": one.state.value,
            "decided_s": _age_s(one.decided_us),
            "attempts": one.attempts,
            "owed": [decode_topic_name(participant.topic) for participant in one.owed[:MOST_ROWS]],
            "last_error": (one.last_error or "")[:_MOST_TEXT] or None,
            **self._ui.job(workflow),
        }

    def _delayed(self) -> Section:
        counts = self._catalog.delayed.counts()
        return {
            **select_fields(counts, "buckets messages"),
            "unsealed_messages": counts.unsealed,
            "jobs": [self._ui.of_type(job.name) for job in (SEAL_BUCKETS, MERGE_BUCKETS)],
        }

    def _records(self) -> Section:
        state, tombstones = self._catalog.records.state(), self._catalog.tombstones.counts()
        return {
            **select_fields(state, "manifest outbox"),
            "outbox_oldest_s": _age_s(state.oldest_us),
            "deletions_waiting": self._catalog.records.waiting_deletions(),
            "refused": [str(one) for one in refused(self._catalog.records)][:MOST_ROWS] if state.outbox else [],
            "tombstones": dict(tombstones.by_kind),
            "cenotaphs": tombstones.candidates,
            "oldest_tombstone_s": _age_s(tombstones.oldest_us),
            "jobs": [self._ui.job(FLUSH_RECORDS.id()), self._ui.of_type(RAID_TOMBSTONES.name)],
        }

    def _owners(self) -> Section:
        fences, bundles = self._catalog.fences.fences(), self._catalog.fences.bundles()
        owned = Counter(one.worker_id for one in fences)
        return {
            "bundles": bundles,
            "never_owned": bundles - len(fences),
            "workers": [{"worker_id": name, "bundles": count} for name, count in owned.most_common(MOST_ROWS)],
        }

    def _newest_plans(self) -> Sequence[ReconciliationRun]:
        return self._catalog.reconciliation.runs(RunKind.PLAN, limit=MOST_ROWS)

    def _plan(self, one: ReconciliationRun) -> Section:
        done = None if one.finished_us is None else plan_result(one.summary)
        return {
            "run_id": one.run_id,
            "began": format_time_s(one.created_us),
            "finished": None if one.finished_us is None else format_time_s(one.finished_us),
            "ledgers": None if done is None else done.ledgers,
            "findings": {} if done is None else {kind: count for kind, count in done.findings.items() if count},
            **self._ui.job(RECONCILE_ORPHANS.id(one.run_id)),
        }


def _guarded(section: Callable[[], Section]) -> Section:
    try:
        return section()
    except SextonError as error:
        return {"error": str(error)[:_MOST_TEXT]}
    except Exception as error:  # noqa: BLE001 - a row of another build may be one that this one cannot read
        _log.exception("status: a section met a fault that nothing here expects")
        return {"error": type(error).__name__}


def _age_s(since_us: int | None) -> int | None:
    return None if since_us is None else max(0, time.time_ns() // 1000 - since_us) // 1_000_000
