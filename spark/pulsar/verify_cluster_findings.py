"""`verify-cluster`: look the owner of each candidate up by name, and keep the candidates that are still true.

Nothing but ZooKeeper and bookies is asked. What only a broker may know stays unconfirmed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.atomic_files import replace_atomically
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import OwnerLookup, describe_lookup, is_confirmed_without_broker
from logstore.pulsar.plan_jobs import CompareScansJob, VerifyClusterJob
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.finding_files import FINDING_SCHEMA, FINDINGS_PER_PAGE, FindingFiles, findings_to_table
from logstore.reconciliation.findings import CLUSTER_KINDS, Finding, FindingKind
from spark.job_runner import JobContext

_PAGES_PER_TASK: Final = 8

VERDICT: Final = "verdict"
"""Key of the verdict in the statement of an orphan ledger. The value is an `OwnerLookup`."""

CONFIRMED: Final = "confirmed"
"""Key in the statement of an orphan ledger: whether all that may refer to it was asked, "true" or "false"."""


@dataclass(frozen=True, slots=True)
class _VerifyTask:
    number: int
    pages: tuple[int, ...]


def verify_cluster_findings(cluster: PulsarCluster, context: JobContext, job: VerifyClusterJob) -> BulkJobSummary:
    """Write the true findings. The summary counts them by kind, and `dropped` candidates."""
    del job
    folder = Path(context.get_published_summary(CompareScansJob.name).folder)
    pages = range(FindingFiles(folder).pages)
    starts = range(0, len(pages), _PAGES_PER_TASK)
    tasks = [_VerifyTask(number, tuple(pages[start : start + _PAGES_PER_TASK])) for number, start in enumerate(starts)]
    verify = partial(_write_verified_findings, cluster=cluster, candidates=folder, folder=context.folder)
    counts = sum(context.run_in_executors("look owners up", tasks, verify), Counter[str]())
    return BulkJobSummary(counts={name: counts[name] for name in (*(kind.value for kind in CLUSTER_KINDS), "dropped")})


def _write_verified_findings(
    task: _VerifyTask, *, cluster: PulsarCluster, candidates: Path, folder: Path
) -> Counter[str]:
    """Write the true findings of some pages of candidates into one file, in an executor. Two runs may overlap."""
    files, counts = FindingFiles(candidates), Counter[str]()
    with (
        cluster.open_reader() as reader,
        replace_atomically(folder / f"findings-{task.number:06d}.parquet") as new,
        pq.ParquetWriter(new, FINDING_SCHEMA) as writer,
    ):
        for page in task.pages:
            page_candidates = list(files.read_page(page).values())
            findings = verify_cluster_candidates(reader, cluster.ledgers_root, page_candidates)
            counts.update(finding.kind.value for finding in findings)
            counts["dropped"] += len(page_candidates) - len(findings)
            if findings:
                writer.write_table(findings_to_table(findings), row_group_size=FINDINGS_PER_PAGE)
    return counts


def verify_cluster_candidates(reader: ZnodeReader, ledgers_root: str, candidates: Sequence[Finding]) -> list[Finding]:
    """Return the candidates that are still true, in unchanged order. Owners are read after the ledgers."""
    znodes = dict(reader.read([candidate.key.removeprefix("/") for candidate in candidates]))
    owners = OwnerDirectory(reader, ledgers_root)
    verified = [
        _verify_candidate(candidate, znodes[candidate.key.removeprefix("/")], owners) for candidate in candidates
    ]
    return [finding for finding in verified if finding is not None]


def _verify_candidate(candidate: Finding, znode: Znode | None, owners: OwnerDirectory) -> Finding | None:
    if candidate.kind not in {FindingKind.ORPHAN_LEDGER, FindingKind.UNATTRIBUTED_LEDGER}:
        return candidate
    scanned = candidate.statement["version"], candidate.statement["czxid"]
    if znode is None or (str(znode.version), str(znode.czxid)) != scanned:
        return None
    if candidate.kind is FindingKind.UNATTRIBUTED_LEDGER:
        return candidate
    owner = StatedOwner(PulsarComponent(candidate.statement["component"]), candidate.statement["owner"])
    lookup = owners.look_up(candidate.ledger_id or 0, owner)
    if lookup is OwnerLookup.LISTING:
        return None
    is_confirmed = lookup is not OwnerLookup.UNREADABLE and is_confirmed_without_broker(owner, lookup)
    statement = {VERDICT: lookup.value, CONFIRMED: str(is_confirmed).lower()}
    return replace(
        candidate,
        kind=FindingKind.UNATTRIBUTED_LEDGER if lookup is OwnerLookup.UNREADABLE else candidate.kind,
        statement={**candidate.statement, **statement},
        detail=f"nothing refers to it, and {describe_lookup(lookup)}",
    )
