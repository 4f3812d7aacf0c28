"""Apply of a complete plan of a Pulsar cluster, page by page: journal, last look, removal.

The journal has a ledger's path, value and version before the ledger is deleted. A step may run twice: a deletion names
the version, and a ledger that is absent and in the journal counts as deleted. What the plan did not expect stops the
apply for good, because its rules may not describe this cluster. `irreversible_removals` removes other kinds than
ledgers.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Final

from activities.bulk_jobs import RUN_CLAIM_S
from activities.deletion.claims_and_causes import own_workflow_cause, own_workflow_claim
from activities.heartbeats import define_activity, send_heartbeats
from activities.pulsar.apply_certificates import CERTIFICATE, ApplyCertificates
from activities.pulsar.apply_guards import require_apply_allowed
from activities.pulsar.inputs_and_results import (
    AppliedClusterPage,
    ApplyClusterPageInput,
    BeginClusterApplyInput,
    ClusterApplyScope,
    ConcludeClusterApplyInput,
    ConcludedClusterApply,
)
from activities.pulsar.irreversible_removals import IrreversibleRemovals
from activities.pulsar.journal_copies import JournalCopies
from activities.pulsar.leased_clusters import name_apply, open_planned_cluster
from activities.pulsar.orphan_selection import (
    RemovalScope,
    count_held_back,
    get_position,
    iterate_orphans_to_remove,
    select_oldest,
    select_orphans,
)
from activities.reconciliation import finding_fates
from logstore.catalog.reconciliation.cluster_journal import iterate_journal
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import (
    PreconditionFailed,
    StoreUnavailable,
    UnexpectedClusterState,
    UnreadableClusterState,
)
from logstore.failpoints import effect
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import JournaledLedger, ReconciliationRun, RunKind
from logstore.ports.object_storage import OwnedStore
from logstore.ports.pulsar_cluster import MAX_LEDGERS_PER_DELETION, ClusterChanges, PulsarClusterAccess
from logstore.pulsar.cluster_findings import require_ledger_id
from logstore.pulsar.plan_jobs import IDENTITY, LEDGERS_ROOT, VerifyClusterJob
from logstore.rate_limiter import RateLimiter
from logstore.reconciliation.finding_files import FateFiles, FindingFiles
from logstore.reconciliation.findings import (
    LEFT,
    LEFT_HELD_BACK,
    RESULT,
    STOPPED,
    ApplyCounts,
    FateOfFinding,
    Finding,
    FindingKind,
    FindingPosition,
    PlanOrScrubResult,
    add_apply_counts,
    apply_counts,
    apply_run_id,
)
from logstore.reconciliation.services.run_checks import (
    find_apply,
    find_run,
    require_all_findings,
    require_appliable_cluster_plan,
)
from logstore.stop_checks import raise_if_stopped

_ONLY_THE_JOURNAL: Final = "only the journal of an earlier apply is left of this plan; plan again"
_LEDGERS_PER_LOOK: Final = 1_000


class ApplyClusterActivities:
    def __init__(
        self,
        *,
        catalog: Catalog,
        records: OwnedStore,
        cluster: PulsarClusterAccess,
        bulk: BulkJobRunner,
        store_now_us: Callable[[], int],
        finished_retention_s: float,
    ) -> None:
        self._runs, self._identities = catalog.reconciliation, catalog.identities
        self._journal, self._audit_log = catalog.cluster_journal, catalog.audit_log
        self._copies, self._cluster, self._bulk = JournalCopies(records), cluster, bulk
        self._certificates = ApplyCertificates(records)
        self._store_now_us, self._retention_s = store_now_us, finished_retention_s

    @define_activity(name="pulsar.begin_apply")
    @send_heartbeats()
    def begin_cluster_apply(self, request: BeginClusterApplyInput) -> ClusterApplyScope:
        """Check that the plan may be applied, take the lease of the cluster, and open the run of the apply.

        Also remove the journals of old applies from the records bucket.

        Idempotency: keyed by the plan's `run_id`. For an apply that has ended, return the counts.
        Raises: InvalidInput, UnknownObject, PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy
            (retry).
        """
        plan, plan_run = require_appliable_cluster_plan(self._runs, self._identities, request.run_id)
        earlier = find_apply(self._runs, request.run_id)
        if earlier is not None and earlier.finished_us is not None:
            return _make_ended_scope(earlier)
        files = require_all_findings(self._open_findings(request.run_id), plan, request.run_id)
        removal_scope = self._make_scope(request)
        shadow_topics = require_apply_allowed(
            plan,
            files,
            removal_scope,
            max_orphan_share=request.max_orphan_share,
            is_bookkeeper_exclusive=self._cluster.is_bookkeeper_exclusive(),
        )
        with self._open_changes(request.run_id, plan_run, shadow_topics, continues=request.is_continued) as changes:
            ledgers_root = changes.ledgers_root
        summary = {
            "actor": request.actor,
            "reason": request.reason,
            "plan": request.run_id,
            "pages": files.pages,
            "folder": str(self._bulk.create_run_folder(request.run_id)),
            IDENTITY: plan_run.summary[IDENTITY],
            LEDGERS_ROOT: ledgers_root,
        }
        orphans = sum(plan.findings[kind.value] for kind in removal_scope.kinds)
        run = self._open_run(request.run_id, summary)
        if RESULT in run.summary:  # the outcome of an earlier apply of the plan
            self._runs.store_summary(run.run_id, summary)
        scope = {
            "orphans": orphans,
            "limit": request.limit,
            "include_unconfirmed": request.include_unconfirmed,
            "include_irreversible": request.include_irreversible,
        }
        self._record_act("apply-cluster-plan", request, scope)
        self._copies.remove_old(
            older_than_us=self._store_now_us() - round(self._retention_s * 1_000_000),
            is_run_known=lambda run_id: find_run(self._runs, run_id) is not None,
        )
        last = request.last or (self._find_last_orphan(files, plan, request) if request.limit else None)
        return ClusterApplyScope(
            pages=0 if request.limit and last is None else files.pages,
            findings=orphans,
            shadow_topics=shadow_topics,
            last=last,
        )

    @define_activity(name="pulsar.apply_page")
    @send_heartbeats()
    def apply_cluster_page(self, request: ApplyClusterPageInput) -> AppliedClusterPage:
        """Store the orphans of a page in the journal, look at each once more, and remove it.

        Idempotency: what is absent and in the journal counts as removed. Fates that are stored stay.
        Raises: PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy (retry).
        """
        plan, plan_run = require_appliable_cluster_plan(self._runs, self._identities, request.run_id)
        run = self._runs.get_run(apply_run_id(request.run_id))
        self._open_run(request.run_id, run.summary)  # renews the claim, so that no plan removes the run as an old one
        findings = self._open_findings(request.run_id).read_page(request.page)
        fate_files = self._open_fates(request.run_id)
        fates = dict(fate_files.read_page(request.page) or {})
        orphans, kept = select_orphans(findings, fates, plan, self._make_scope(request), last=request.last)
        surprise = None
        if orphans:
            with self._open_changes(request.run_id, plan_run, request.shadow_topics, continues=True) as changes:
                new_fates, surprise = self._remove_orphans(request, changes, orphans)
            later_fates = fate_files.read_page(request.page) or {}  # of an attempt that has overtaken this one
            fates = {**later_fates, **fates, **new_fates}
        with effect("pulsar.put_fates"):
            fate_files.write_page(request.page, list(fates.values()))
        counts = finding_fates.count_fates(findings, fates | kept)
        can_go_on = isinstance(surprise, UnreadableClusterState)
        return AppliedClusterPage(counts=counts, stopped=str(surprise or ""), can_go_on=can_go_on)

    @define_activity(name="pulsar.conclude_apply")
    @send_heartbeats()
    def conclude_cluster_apply(self, request: ConcludeClusterApplyInput) -> ConcludedClusterApply:
        """Sum up the fates, store a certificate and an audit row, and free the lease.

        End the run if nothing is left to do, or if the apply was stopped and can never go on. Otherwise the run keeps
        the outcome until the next apply of the plan.

        Idempotency: the result of an ended run stays. Counts come from files, and the certificate from the journal.
        Raises: PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy (retry).
        """
        plan, plan_run = require_appliable_cluster_plan(self._runs, self._identities, request.run_id)
        run = self._runs.get_run(apply_run_id(request.run_id))
        if run.finished_us is None:
            self._settle_deletions(run)
            total, left = self._sum_fates(plan, request)
            outcome = {RESULT: asdict(total), STOPPED: request.stopped, **left}
            certificate = self._issue_certificate(plan_run, run, request, outcome)
            self._record_act("applied-cluster-plan", request, {**outcome, CERTIFICATE: certificate})
            is_over = not left[LEFT] or (request.stopped and not request.can_go_on)
            store = self._runs.close_run if is_over else self._runs.store_summary
            store(run.run_id, {**run.summary, **outcome, CERTIFICATE: certificate})
        else:
            total, certificate = apply_counts(run.summary), run.summary.get(CERTIFICATE, "")
        self._cluster.release_lease(self._holder(request.run_id))
        return ConcludedClusterApply(counts=total, certificate=certificate)

    def _open_run(self, run_id: str, summary: Mapping[str, Any]) -> ReconciliationRun:
        claim = own_workflow_claim(RUN_CLAIM_S)
        return self._runs.open_run(apply_run_id(run_id), RunKind.APPLY, claim=claim, summary=summary)

    def _record_act(
        self, act: str, request: BeginClusterApplyInput | ConcludeClusterApplyInput, detail: Mapping[str, Any]
    ) -> None:
        cause = own_workflow_cause(request.actor, request.reason)
        self._audit_log.record_act(act, cause, detail={"plan": request.run_id, **detail})

    def _settle_deletions(self, run: ReconciliationRun) -> None:
        """Store in the journal what attempts have deleted that lost the lease before they could store it."""
        unsettled = (ledger for ledger in iterate_journal(self._journal, run.run_id) if ledger.deleted_us is None)
        while page := list(islice(unsettled, _LEDGERS_PER_LOOK)):
            if self._cluster.read_identity() != run.summary[IDENTITY]:
                return
            ledger_ids = {ledger.ledger_id for ledger in page}
            absent_ids = ledger_ids - self._cluster.find_existing_ledgers(ledger_ids)
            self._journal.settle(run.run_id, deleted_ids=absent_ids, existing_ids=())

    def _issue_certificate(
        self,
        plan_run: ReconciliationRun,
        run: ReconciliationRun,
        request: ConcludeClusterApplyInput,
        outcome: Mapping[str, object],
    ) -> str:
        """Return the key of the certificate, or "" if nothing was removed."""
        conclusion = {
            "plan": request.run_id,
            "cluster": {"name": plan_run.summary["cluster"], IDENTITY: run.summary[IDENTITY]},
            "catalog_id": self._identities.catalog_id(),
            "actor": request.actor,
            "reason": request.reason,
            **outcome,
        }
        certificate = self._certificates.issue(run, self._journal, conclusion)
        return certificate.key if certificate else ""

    def _open_findings(self, run_id: str) -> FindingFiles:
        published = self._bulk.find_published_summary(run_id, VerifyClusterJob.name)
        if published is None:
            where = "every worker must see the folder of bulk output"
            raise PreconditionFailed(f"plan {run_id}: expected its findings, found none here; {where}, or plan again")
        return FindingFiles(Path(published.folder))

    def _open_fates(self, run_id: str) -> FateFiles:
        return finding_fates.page_fate_files(self._bulk.create_run_folder(run_id))

    def _open_changes(
        self, run_id: str, plan_run: ReconciliationRun, shadow_topics: Sequence[str], *, continues: bool
    ) -> AbstractContextManager[ClusterChanges]:
        identity, holder = plan_run.summary[IDENTITY], self._holder(run_id)
        return open_planned_cluster(
            self._cluster, run_id, identity, holder, shadow_topics=shadow_topics, continues=continues
        )

    def _holder(self, run_id: str) -> str:
        return name_apply(run_id, self._identities.catalog_id())

    def _make_scope(
        self, request: BeginClusterApplyInput | ApplyClusterPageInput | ConcludeClusterApplyInput
    ) -> RemovalScope:
        return RemovalScope(
            include_unconfirmed=request.include_unconfirmed,
            include_irreversible=request.include_irreversible,
            has_offload_bucket=self._cluster.has_offload_bucket(),
            is_offload_bucket_exclusive=self._cluster.is_offload_bucket_exclusive(),
            has_admin_api=self._cluster.has_admin_api(),
        )

    def _remove_orphans(
        self, request: ApplyClusterPageInput, changes: ClusterChanges, orphans: Mapping[int, Finding]
    ) -> tuple[dict[int, FateOfFinding], UnexpectedClusterState | None]:
        """Return the fates of `orphans`, and what stopped the removals. Then some orphans have no fate."""
        ledgers = {number: each for number, each in orphans.items() if each.kind is FindingKind.ORPHAN_LEDGER}
        others = {number: each for number, each in orphans.items() if number not in ledgers}
        fates: dict[int, FateOfFinding] = {}
        if ledgers:
            fates, surprise = self._delete_ledgers(request, changes, ledgers)
            if surprise:
                return fates, surprise
        removals = IrreversibleRemovals(
            self._runs.get_run(apply_run_id(request.run_id)),
            self._journal,
            self._copies,
            changes,
            removals_per_s=request.removals_per_s,
        )
        other_fates, surprise = removals.remove(others)
        return fates | other_fates, surprise

    def _delete_ledgers(
        self, request: ApplyClusterPageInput, changes: ClusterChanges, orphans: Mapping[int, Finding]
    ) -> tuple[dict[int, FateOfFinding], UnexpectedClusterState | None]:
        """Return the fates of `orphans`, and what stopped the deletion. Then some ledgers have no fate."""
        run_id, surprise = apply_run_id(request.run_id), None
        try:
            self._delete_and_pace(request, changes, list(orphans.values()))
        except UnexpectedClusterState as error:
            surprise = error
        journaled_ids = self._journal.find_ledger_ids(run_id, list(map(require_ledger_id, orphans.values())))
        existing_ids = changes.find_existing(journaled_ids)
        if existing_ids and surprise is None:
            raise StoreUnavailable(f"ledger {min(existing_ids)}: expected to be deleted, found it; looking again")
        deleted_ids = journaled_ids - existing_ids
        # What cannot be read now may be readable for the next attempt. If this one wakes up when the next one has
        # deleted the ledgers, it must not make the journal forget them.
        can_go_on = isinstance(surprise, UnreadableClusterState)
        never_deleted_ids = frozenset[int]() if can_go_on else existing_ids
        self._journal.settle(run_id, deleted_ids=deleted_ids, existing_ids=never_deleted_ids)
        fates = _make_fates(orphans, deleted_ids)
        if surprise is None:
            fates |= {
                number: finding_fates.kept_fate(number, finding_fates.GONE) for number in orphans.keys() - fates.keys()
            }
        return fates, surprise

    def _delete_and_pace(
        self, request: ApplyClusterPageInput, changes: ClusterChanges, findings: Sequence[Finding]
    ) -> None:
        run_id = apply_run_id(request.run_id)
        self._store_in_journal(run_id, changes.read_planned(findings))
        ledgers = self._journal.list_ledgers(  # also those that an earlier attempt has deleted
            run_id, after=-1, limit=len(findings), ledger_ids=list(map(require_ledger_id, findings))
        )
        limiter = RateLimiter(request.removals_per_s or math.inf)
        for part in limiter.iterate_batches(ledgers, MAX_LEDGERS_PER_DELETION):
            raise_if_stopped()
            changes.delete(part)

    def _store_in_journal(self, run_id: str, ledgers: Sequence[JournaledLedger]) -> None:
        """Store ledgers in the catalog and in the records bucket. An undo needs one of the two."""
        self._journal.add(run_id, ledgers)
        self._copies.store(self._runs.get_run(run_id), ledgers)

    def _find_last_orphan(
        self, files: FindingFiles, plan: PlanOrScrubResult, request: BeginClusterApplyInput
    ) -> FindingPosition | None:
        fate_files, scope = self._open_fates(request.run_id), self._make_scope(request)
        orphans = iterate_orphans_to_remove(files, fate_files, plan, scope)
        oldest = select_oldest(orphans, request.limit)
        return get_position(*oldest[-1]) if oldest else None

    def _make_fates_of_deleted(self, run_id: str, orphans: Mapping[int, Finding]) -> dict[int, FateOfFinding]:
        """Return the fates of orphans that are in the journal as deleted, though no attempt has stored a fate."""
        ids = [require_ledger_id(each) for each in orphans.values() if each.kind is FindingKind.ORPHAN_LEDGER]
        if not ids:
            return {}
        ledgers = self._journal.list_ledgers(apply_run_id(run_id), after=-1, limit=len(ids), ledger_ids=ids)
        return _make_fates(orphans, {ledger.ledger_id for ledger in ledgers if ledger.deleted_us is not None})

    def _sum_fates(
        self, plan: PlanOrScrubResult, request: ConcludeClusterApplyInput
    ) -> tuple[ApplyCounts, dict[str, int]]:
        """Return the counts of all pages, and those of orphans that a later apply may remove."""
        files = require_all_findings(self._open_findings(request.run_id), plan, request.run_id)
        fate_files, scope = self._open_fates(request.run_id), self._make_scope(request)
        total, left = ApplyCounts(), {LEFT: 0, LEFT_HELD_BACK: 0}
        for page in range(files.pages):
            raise_if_stopped()
            findings, fates = files.read_page(page), fate_files.read_page(page) or {}
            orphans, kept = select_orphans(findings, fates, plan, scope)
            if deleted := self._make_fates_of_deleted(request.run_id, orphans):
                fates |= deleted
                orphans, kept = select_orphans(findings, fates, plan, scope)
            total = add_apply_counts(total, finding_fates.count_fates(findings, fates | kept))
            left[LEFT] += len(orphans) + len(kept)
            left[LEFT_HELD_BACK] += len(kept) + count_held_back(orphans.values(), plan)
        return total, left


def _make_fates(orphans: Mapping[int, Finding], deleted_ids: Collection[int]) -> dict[int, FateOfFinding]:
    """Return the fates of the ledgers that are deleted."""
    return {
        number: finding_fates.deleted_fate(number, finding)
        for number, finding in orphans.items()
        if finding.ledger_id in deleted_ids
    }


def _make_ended_scope(run: ReconciliationRun) -> ClusterApplyScope:
    counts = apply_counts(run.summary)
    return ClusterApplyScope(
        pages=run.summary["pages"],
        findings=sum(counts.applied.values()) + sum(counts.skipped.values()),
        done=counts,
        stopped=run.summary.get(STOPPED, _ONLY_THE_JOURNAL),
        certificate=run.summary.get(CERTIFICATE, ""),
    )
