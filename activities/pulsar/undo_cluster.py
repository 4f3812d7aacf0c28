"""Undo of applies of a plan of a Pulsar cluster: put deleted ledgers back, page by page, from the journal.

A ledger whose znode is back is readable again as long as bookies have its entries, until their next garbage collection.
"""

from collections import Counter
from dataclasses import replace
from typing import Final

from activities.heartbeats import define_activity, send_heartbeats
from activities.pulsar.inputs_and_results import UndonePage, UndoPageInput
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.catalog import CatalogIdentity, ClusterJournal, ReconciliationRuns
from logstore.ports.pulsar_cluster import PulsarClusterAccess
from logstore.reconciliation.findings import apply_run_id
from logstore.stop_checks import raise_if_stopped

_LEDGERS_PER_PAGE: Final = 1_000


class UndoClusterActivities:
    def __init__(
        self,
        *,
        reconciliation: ReconciliationRuns,
        identities: CatalogIdentity,
        journal: ClusterJournal,
        cluster: PulsarClusterAccess,
    ) -> None:
        self._runs, self._identities = reconciliation, identities
        self._journal, self._cluster = journal, cluster

    @define_activity(name="pulsar.undo_page")
    @send_heartbeats()
    def undo_page(self, request: UndoPageInput) -> UndonePage:
        """Restore the next ledgers of the journal, and look whether bookies still have their entries.

        The lease of the cluster is taken for the page. Without a next ledger, the lease is freed.

        Idempotency: a ledger that exists with the same value stays.
        Raises: UnknownObject, PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy (retry).
        """
        plan_run, run_id = self._runs.get_run(request.run_id), apply_run_id(request.run_id)
        ledgers = self._journal.list_ledgers(
            run_id, after=request.after, limit=_LEDGERS_PER_PAGE, ledger_ids=request.ledger_ids or None
        )
        holder = f"the undo of {request.run_id}, catalog {self._identities.catalog_id()}"
        if not ledgers:
            if request.after < 0:
                raise UnknownObject("run_id", expected="a plan whose apply has deleted ledgers", found=request.run_id)
            self._cluster.release_lease(holder)
            return UndonePage(counts={}, last=None)
        undone = []
        with self._cluster.open_changes(holder) as changes:
            if changes.identity != plan_run.summary["identity"]:
                expected = f"expected the cluster {plan_run.summary['identity']}"
                raise PreconditionFailed(f"plan {request.run_id}: {expected}, found {changes.identity}")
            for ledger in ledgers:
                raise_if_stopped()
                restoration, stored_data = changes.restore(ledger)
                undone.append(replace(ledger, restoration=restoration.value, stored_data=stored_data.value))
        self._journal.store_undo_results(run_id, undone)
        counts = Counter(each.restoration for each in undone) + Counter(each.stored_data for each in undone)
        return UndonePage(counts={str(name): count for name, count in counts.items()}, last=ledgers[-1].ledger_id)
