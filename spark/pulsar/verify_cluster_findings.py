"""`verify-cluster`: look the owner of each candidate up by name, and keep the candidates that are still true.

What only a broker may know stays unconfirmed, unless the admin API says more about a topic that is loaded anyway.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.compaction_lookup import ADMIN_API, CompactionLookup, look_up_compacted_ledgers
from infra.pulsar.finding_verification import ClusterVerifier, get_stated_owner
from infra.pulsar.offload_verification import UNANSWERED, is_about_offload, open_offload_verifier
from infra.pulsar.owner_lookup import open_owner_directory
from logstore.pulsar.cluster_findings import require_ledger_id
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import BrokerLookup
from logstore.pulsar.plan_jobs import OFFLOAD_OBJECTS, PROBLEM, CompareOffloadsJob, CompareScansJob, VerifyClusterJob
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import CLUSTER_KINDS, Finding, FindingKind
from spark.job_runner import JobContext
from spark.reconciliation.verify_findings import DROPPED, Verification, Verifier, verify_candidate_pages


def verify_cluster_findings(cluster: PulsarCluster, context: JobContext, job: VerifyClusterJob) -> BulkJobSummary:
    """Write the true findings. The summary counts them by kind, `dropped` candidates, and `problems` of the scans."""
    compared = context.get_published_summary(CompareScansJob.name)
    offloads = context.get_published_summary(CompareOffloadsJob.name) if job.has_offloads else None
    folders = [Path(summary.folder) for summary in (compared, offloads) if summary]
    problems = compared.counts["problems"]
    # Brokers are asked first: what a broker forgets because it unloads the topic is in the metadata then.
    compactions = _look_up_compactions(cluster, FindingFiles(Path(compared.folder)))
    open_verifier = partial(
        _open_verifier,
        cluster=cluster,
        parallel_sessions=context.spark.sparkContext.defaultParallelism,
        broker_lookups=compactions.answers,
        offload_facts=offloads.facts if offloads else {},
    )
    totals = verify_candidate_pages(context, "look owners up", folders, open_verifier)
    names = (*(kind.value for kind in CLUSTER_KINDS), DROPPED)
    subjects = totals.problems | ({ADMIN_API: compactions.problem} if compactions.problem else {})
    return BulkJobSummary(
        counts={name: totals.counts[name] for name in names} | {"problems": problems},
        facts={f"{PROBLEM}{subject}": reason for subject, reason in subjects.items()},
    )


def _look_up_compactions(cluster: PulsarCluster, candidates: FindingFiles) -> CompactionLookup:
    """Ask brokers about the compacted ledgers among the candidates: once, because each answer has all loaded topics."""
    if cluster.admin is None:
        return CompactionLookup({})
    owner_by_ledger_id: dict[int, StatedOwner] = {
        require_ledger_id(candidate): owner
        for _, candidate in candidates.iterate_findings(FindingKind.ORPHAN_LEDGER)
        if (owner := get_stated_owner(candidate)).component is PulsarComponent.COMPACTED_LEDGER
    }
    if not owner_by_ledger_id:
        return CompactionLookup({})
    with cluster.open_reader(parallel_sessions=1) as reader:
        return look_up_compacted_ledgers(cluster.admin, reader, owner_by_ledger_id)


@contextmanager
def _open_verifier(
    *,
    cluster: PulsarCluster,
    parallel_sessions: int,
    broker_lookups: Mapping[int, BrokerLookup],
    offload_facts: Mapping[str, str],
) -> Iterator[Verifier]:
    """Open sessions that end with the block. `offload_facts` are those of `compare-offloads`."""
    with (
        cluster.open_reader(parallel_sessions=parallel_sessions) as reader,
        open_owner_directory(cluster, reader, parallel_sessions=parallel_sessions) as owners,
    ):
        verifier = ClusterVerifier(reader, owners, broker_lookups, cluster.ledgers_root)

        def verify(candidates: Sequence[Finding]) -> Verification:
            offloads = [candidate for candidate in candidates if is_about_offload(candidate)]
            findings = verifier.verify([candidate for candidate in candidates if not is_about_offload(candidate)])
            problems: dict[str, str] = {}
            if offloads:
                verification = open_offload_verifier(cluster.offloads, reader, offload_facts).verify(offloads)
                findings += verification.findings
                if verification.dropped[UNANSWERED]:
                    problems[OFFLOAD_OBJECTS] = "expected an answer about each candidate, found none about some"
            return Verification(findings, problems)

        yield verify
