"""`verify-cluster`: look the owner of each candidate up by name, and keep the candidates that are still true.

What only a broker may know stays unconfirmed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.owner_lookup import OwnerDirectory, open_owner_directory
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.cluster_findings import CONFIRMED, VERDICT
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import LedgerVerdict, OwnerLookup, judge_owner_lookup
from logstore.pulsar.plan_jobs import CompareScansJob, VerifyClusterJob
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.findings import CLUSTER_KINDS, Finding, FindingKind
from spark.job_runner import JobContext
from spark.reconciliation.candidate_verification import DROPPED, Verifier, verify_candidate_pages

_LEDGER_KINDS: Final = frozenset({FindingKind.ORPHAN_LEDGER, FindingKind.UNATTRIBUTED_LEDGER})


def verify_cluster_findings(cluster: PulsarCluster, context: JobContext, job: VerifyClusterJob) -> BulkJobSummary:
    """Write the true findings. The summary counts them by kind, `dropped` candidates, and `problems` of the scans."""
    del job
    compared = context.get_published_summary(CompareScansJob.name)
    problems = compared.counts["problems"]
    open_verifier = partial(_open_verifier, cluster=cluster, is_complete=not problems)
    counts = verify_candidate_pages(context, "look owners up", [Path(compared.folder)], open_verifier)
    names = (*(kind.value for kind in CLUSTER_KINDS), DROPPED)
    return BulkJobSummary(counts={name: counts[name] for name in names} | {"problems": problems})


@contextmanager
def _open_verifier(*, cluster: PulsarCluster, is_complete: bool) -> Iterator[Verifier]:
    with cluster.open_reader() as reader, open_owner_directory(cluster, reader) as owners:

        def verify(candidates: Sequence[Finding]) -> list[Finding]:
            findings = verify_cluster_candidates(reader, owners, candidates)
            return findings if is_complete else [_withdraw_confirmation(finding) for finding in findings]

        yield verify


def _withdraw_confirmation(finding: Finding) -> Finding:
    """Return the finding of an incomplete plan. What was not read may refer to any orphan."""
    if CONFIRMED not in finding.statement:
        return finding
    return replace(finding, statement={**finding.statement, CONFIRMED: "false"})


def verify_cluster_candidates(
    reader: ZnodeReader, owners: OwnerDirectory, candidates: Sequence[Finding]
) -> list[Finding]:
    """Return the candidates that are still true, in unchanged order. Owners are read after the ledgers."""
    current = _drop_changed_ledgers(reader, candidates)
    owner_by_ledger_id: dict[int, StatedOwner] = {
        candidate.ledger_id: _get_stated_owner(candidate)
        for candidate in current
        if candidate.kind is FindingKind.ORPHAN_LEDGER and candidate.ledger_id is not None
    }
    lookups = owners.look_up(owner_by_ledger_id)
    judged = [
        _judge_candidate(candidate, lookups[candidate.ledger_id])
        if candidate.kind is FindingKind.ORPHAN_LEDGER and candidate.ledger_id is not None
        else candidate
        for candidate in current
    ]
    return [finding for finding in judged if finding is not None]


def _drop_changed_ledgers(reader: ZnodeReader, candidates: Sequence[Finding]) -> list[Finding]:
    """Return the candidates without ledgers that were deleted or changed since the second scan."""
    ledgers = [candidate for candidate in candidates if candidate.kind in _LEDGER_KINDS]
    znodes = reader.read([ledger.key.removeprefix("/") for ledger in ledgers])
    unchanged = {
        ledger.ledger_id
        for ledger, (_, znode) in zip(ledgers, znodes, strict=True)
        if znode is not None and _is_unchanged(ledger, znode)
    }
    return [
        candidate for candidate in candidates if candidate.kind not in _LEDGER_KINDS or candidate.ledger_id in unchanged
    ]


def _is_unchanged(candidate: Finding, znode: Znode) -> bool:
    return (str(znode.version), str(znode.czxid)) == (candidate.statement["version"], candidate.statement["czxid"])


def _get_stated_owner(candidate: Finding) -> StatedOwner:
    return StatedOwner(PulsarComponent(candidate.statement["component"]), candidate.statement["owner"])


def _judge_candidate(candidate: Finding, lookup: OwnerLookup) -> Finding | None:
    judgement = judge_owner_lookup(_get_stated_owner(candidate), lookup)
    if judgement.verdict is LedgerVerdict.REFERENCED:
        return None
    confirmed = str(judgement.is_confirmed).lower()
    return replace(
        candidate,
        kind=FindingKind.ORPHAN_LEDGER if judgement.verdict.is_orphan else FindingKind.UNATTRIBUTED_LEDGER,
        statement={**candidate.statement, VERDICT: judgement.verdict.value, CONFIRMED: confirmed},
        detail=f"nothing refers to it, and {judgement.reason}",
    )
