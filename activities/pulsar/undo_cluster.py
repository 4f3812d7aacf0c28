"""Undo of applies of a plan of a Pulsar cluster: put deleted ledgers back, page by page, from the journal.

A ledger whose znode is back is readable again as long as bookies have its entries, until their next garbage collection.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from activities.bulk_jobs import RUN_CLAIM_S
from activities.deletion.claims_and_causes import own_workflow_cause, own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats
from activities.pulsar.inputs_and_results import BeginUndoInput, UndonePage, UndoPageInput
from activities.pulsar.journal_copies import JournalCopies, find_or_read_back_apply
from activities.pulsar.leased_clusters import name_apply, name_undo, open_planned_cluster
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import UnknownObject
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.object_storage import OwnedStore
from logstore.ports.pulsar_cluster import PulsarClusterAccess
from logstore.pulsar.plan_jobs import IDENTITY
from logstore.reconciliation.findings import apply_run_id

_LEDGERS_PER_PAGE: Final = 1_000
_MAX_IDS_IN_MESSAGE: Final = 10


class UndoClusterActivities:
    def __init__(self, *, catalog: Catalog, records: OwnedStore, cluster: PulsarClusterAccess) -> None:
        self._runs, self._audit_log = catalog.reconciliation, catalog.audit_log
        self._identities, self._journal = catalog.identities, catalog.cluster_journal
        self._copies, self._cluster = JournalCopies(records), cluster

    @define_activity(name="pulsar.begin_undo")
    @send_heartbeats()
    def begin_undo(self, request: BeginUndoInput) -> None:
        """Check that the journal has the ledgers. If the catalog has no journal, read it from the records bucket.

        Idempotency: a run that is in the catalog stays.
        Raises: UnknownObject, PreconditionFailed (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        run_id = apply_run_id(request.run_id)
        find_or_read_back_apply(self._runs, self._journal, self._copies, run_id, own_workflow_claim(RUN_CLAIM_S))
        if not self._journal.list_ledgers(run_id, after=-1, limit=1):
            expected = "a plan whose apply has deleted ledgers"
            if self._journal.list_removals(run_id, after=-1, limit=1):
                expected += "; objects, uploads and managed ledgers do not come back"
            raise UnknownObject("run_id", expected=expected, found=request.run_id)
        unknown_ids = sorted(set(request.ledger_ids) - self._journal.find_ledger_ids(run_id, request.ledger_ids))
        if unknown_ids:
            others = len(unknown_ids) - _MAX_IDS_IN_MESSAGE
            found = ", ".join(map(str, unknown_ids[:_MAX_IDS_IN_MESSAGE])) + (f" and {others:,} more" * (others > 0))
            expected = f"ledgers that applies of {request.run_id} have deleted"
            raise UnknownObject("ledger", expected=expected, found=found)
        self._record_act("undo-cluster-plan", request, {"chosen": len(request.ledger_ids)})

    @define_activity(name="pulsar.undo_page")
    @send_heartbeats()
    def undo_page(self, request: UndoPageInput) -> UndonePage:
        """Restore the next ledgers of the journal, and look whether bookies still have their entries.

        The lease of the cluster is taken for the page, also from an apply of the plan: bookies may free the space of
        its ledgers before a dead apply's lease expires. Without a next ledger, the lease is freed.

        Idempotency: a ledger that exists with the same value stays.
        Raises: UnknownObject, PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy (retry).
        """
        run, catalog_id = self._runs.get_run(apply_run_id(request.run_id)), self._identities.catalog_id()
        holder, apply_holder = name_undo(request.run_id, catalog_id), name_apply(request.run_id, catalog_id)
        if not self._list_ledgers(request, limit=1):
            self._cluster.release_lease(holder)
            return UndonePage(counts={}, last=None)
        with open_planned_cluster(
            self._cluster, request.run_id, run.summary[IDENTITY], holder, overtakes=apply_holder
        ) as changes:
            ledgers = self._list_ledgers(request, limit=_LEDGERS_PER_PAGE)  # no apply adds any from now on
            results = changes.restore(ledgers)
        undone = [
            replace(ledger, restoration=restoration.value, stored_data=stored_data.value)
            for ledger, (restoration, stored_data) in zip(ledgers, results, strict=True)
        ]
        self._journal.store_undo_results(run.run_id, undone)
        if len(ledgers) < _LEDGERS_PER_PAGE:  # an attempt that wakes up behind the end of the undo keeps no lease
            self._cluster.release_lease(holder)
        results_seen = chain.from_iterable((each.restoration, each.stored_data) for each in undone)
        counts = {str(name): count for name, count in Counter(results_seen).items()}
        last = ledgers[-1].ledger_id
        self._record_act("undone-cluster-plan", request, {"counts": counts, "after": request.after, "last": last})
        return UndonePage(counts=counts, last=last)

    def _record_act(self, act: str, request: BeginUndoInput | UndoPageInput, detail: Mapping[str, Any]) -> None:
        cause = own_workflow_cause(request.actor, request.reason)
        self._audit_log.record_act(act, cause, detail={"plan": request.run_id, **detail})

    def _list_ledgers(self, request: UndoPageInput, *, limit: int) -> list[JournaledLedger]:
        return self._journal.list_ledgers(
            apply_run_id(request.run_id), after=request.after, limit=limit, ledger_ids=request.ledger_ids or None
        )
