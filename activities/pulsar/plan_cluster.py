"""Steps of a plan for a Pulsar cluster. They read the cluster, and change only rows and output of runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from activities.heartbeats import define_activity, send_heartbeats
from activities.pulsar.inputs_and_results import BeginClusterPlanInput, BegunClusterPlan
from activities.reconciliation.inputs_and_results import BulkJobInput, BulkJobResult, PlanStepInput
from activities.reconciliation.plan_orphans import PlanRuns, describe_left_out, find_result
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import InvalidInput, PreconditionFailed
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from logstore.ports.pulsar_cluster import PulsarClusterAccess
from logstore.pulsar.ledger_verdicts import LedgerVerdict
from logstore.pulsar.plan_jobs import (
    ENDED_MS,
    FIRST_SCAN,
    IDENTITY,
    NO_OFFLOAD_BUCKET,
    PROBLEM,
    SECOND_SCAN,
    ClusterPlanJob,
    CompareScansJob,
    VerifyClusterJob,
    make_plan_jobs,
    require_safe_times,
)
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import CLUSTER_KINDS, PlanOrScrubResult

_MAX_REASONS: Final = 20  # reasons in a result, which is part of a workflow payload
_MAX_REASON_CHARACTERS: Final = 300


class PlanClusterActivities:
    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: PulsarClusterAccess,
        bulk: BulkJobRunner,
        finished_retention_s: float,
    ) -> None:
        self._identities, self._cluster = catalog.identities, cluster
        self._plans = PlanRuns(
            RunKind.CLUSTER_PLAN,
            catalog=catalog,
            bulk=bulk,
            finished_retention_s=finished_retention_s,
            findings_counter="sexton_pulsar_findings_total",
        )

    @define_activity(name="pulsar.begin_plan")
    @send_heartbeats()
    def check_cluster_and_begin_plan(self, request: BeginClusterPlanInput) -> BegunClusterPlan:
        """Check the cluster, and open the run with the cluster's identity and the times of all later steps.

        If there is a run already, the cluster is not asked. A failed check does not end the plan, but makes it
        incomplete. Also remove old runs, and output of this catalog that has no run.

        Idempotency: keyed by `run_id`. The values that the first call stores in the run's row stay.
        Raises: InvalidInput, PreconditionFailed (terminal); ServiceFailed, StoreUnavailable, CatalogBusy (retry).
        """
        require_safe_times(request.between_s, request.older_than_s, unsafe=request.unsafe_age)
        run = self._plans.open_run_and_forget_old_runs(request.run_id, lambda: self._make_initial_values(request))
        return BegunClusterPlan(jobs=[job.name for job in _make_jobs(run.run_id, run.summary)], done=find_result(run))

    def _make_initial_values(self, request: BeginClusterPlanInput) -> Mapping[str, Any]:
        check = self._cluster.check()
        failed = [f"{each.name}: {each.detail}" for each in check.capabilities if not each.ok]
        return {
            "actor": request.actor,
            "reason": request.reason,
            "older_than_s": request.older_than_s,
            "between_s": request.between_s,
            "has_offload_bucket": self._cluster.has_offload_bucket(),
            "cluster": check.cluster,
            IDENTITY: check.identity,
            "failed_checks": failed,
            "catalog_id": self._identities.catalog_id(),
        }

    @define_activity(name="pulsar.run_bulk")
    def run_cluster_plan_bulk_job(self, request: BulkJobInput) -> BulkJobResult:
        """Run one bulk job until its output is published.

        Idempotency: keyed by (run_id, job). If the output is published already, only its counts are returned. If
            attempts overlap, the output of the first complete attempt is published.
        Heartbeat: (stage, tasks done, tasks), every two seconds. A cancellation cancels the bulk job.
        Raises: InvalidInput, PreconditionFailed, ProgramMissing (terminal); StoreUnavailable, ServiceFailed (retry).
        """
        try:
            return self._plans.run_bulk_job(request, lambda values: _find_job(request, values))
        except UnreadableMetadata as error:  # a problem of one znode is counted, so nothing can be scanned
            raise PreconditionFailed(f"{request.job}: the cluster cannot be scanned. {error}") from error

    @define_activity(name="pulsar.conclude_plan")
    @send_heartbeats()
    def conclude_cluster_plan(self, request: PlanStepInput) -> PlanOrScrubResult:
        """Finish the run with the counts of findings, and with the reasons why the plan is incomplete.

        Read the cluster's identity again, because findings about another cluster are worthless.

        Idempotency: the result of the first call stays. Counts come from published files, which do not change.
        Raises: InvalidInput, PreconditionFailed, CorruptData (terminal); ServiceFailed, StoreUnavailable, CatalogBusy
            (retry).
        """
        return self._plans.close_run(request.run_id, self._make_result)

    def _make_result(self, run: ReconciliationRun) -> PlanOrScrubResult:
        published = {
            job.name: self._plans.output.require_published_summary(run.run_id, job.name)
            for job in _make_jobs(run.run_id, run.summary)
        }
        second_scan, folder = published[SECOND_SCAN].counts, published[VerifyClusterJob.name].folder
        totals = FindingFiles(Path(folder)).count_findings_and_bytes_by_kind(CLUSTER_KINDS)
        incomplete = [
            *run.summary["failed_checks"],
            *_find_other_clusters(run.summary[IDENTITY], self._cluster.read_identity(), published),
            *_describe_problems(published),
        ]
        return PlanOrScrubResult(
            findings={kind.value: rows for kind, (rows, _) in totals.items()},
            size_bytes={kind.value: size for kind, (_, size) in totals.items()},
            ledgers=second_scan["ledgers"],
            references=second_scan["references"],
            before_us=second_scan[ENDED_MS] * 1_000,
            report=folder,
            young=published[CompareScansJob.name].counts.get(LedgerVerdict.YOUNG.value, 0),
            left_out=[
                *([] if run.summary["has_offload_bucket"] else [NO_OFFLOAD_BUCKET]),
                *describe_left_out(published.values()),
            ],
            incomplete=_limit_reasons(incomplete),
        )


def _make_jobs(run_id: str, values: Mapping[str, Any]) -> tuple[ClusterPlanJob, ...]:
    return make_plan_jobs(
        run_id,
        has_offload_bucket=values["has_offload_bucket"],
        between_s=values["between_s"],
        older_than_s=values["older_than_s"],
    )


def _find_job(request: BulkJobInput, values: Mapping[str, Any]) -> ClusterPlanJob:
    jobs = {job.name: job for job in _make_jobs(request.run_id, values)}
    if request.job not in jobs:
        raise InvalidInput("job", expected=f"one of {', '.join(jobs)}", found=request.job)
    return jobs[request.job]


def _find_other_clusters(planned: str, current: str, published: Mapping[str, BulkJobSummary]) -> Iterator[str]:
    """Yield a sentence for each step that saw another cluster than the plan began with."""
    identities = {name: published[name].facts[IDENTITY] for name in (FIRST_SCAN, SECOND_SCAN)} | {"the end": current}
    for step, identity in identities.items():
        if identity != planned:
            yield f"{step}: expected the cluster {planned}, found {identity}"


def _describe_problems(published: Mapping[str, BulkJobSummary]) -> Iterator[str]:
    """Yield a sentence for each thing that a job could not read. Both scans may have the same one."""
    facts = (fact for summary in published.values() for fact in summary.facts.items() if fact[0].startswith(PROBLEM))
    yield from dict.fromkeys(f"{name.removeprefix(PROBLEM)}: {reason}" for name, reason in facts)
    for scan in (FIRST_SCAN, SECOND_SCAN):
        named = sum(name.startswith(PROBLEM) for name in published[scan].facts)
        unnamed = published[scan].counts["problems"] - named
        if unnamed > 0:
            yield f"{scan}: {unnamed:,} further values cannot be read"


def _limit_reasons(reasons: list[str]) -> list[str]:
    """Return the first reasons, each of limited length, and the number of the others."""
    limited = [reason[:_MAX_REASON_CHARACTERS] for reason in reasons[:_MAX_REASONS]]
    others = len(reasons) - len(limited)
    return limited + ([f"{others:,} further reasons"] if others else [])
