"""`compare-scans`: write as candidates the ledgers to which neither of two scans of a Pulsar cluster has a reference.

An owner does not need a ledger that it has given up after an offload. `judge_two_scans` leaves out
some ledgers, such as changed ledgers. A later job looks up the owners. A harmful reference of both scans to an absent
ledger is a candidate, too. One task reads the facts of one group of ledger ids.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from infra.pulsar.cluster_access import PulsarCluster
from logstore.errors import PreconditionFailed
from logstore.positions import LedgerId
from logstore.pulsar.cluster_findings import (
    COMPONENT,
    CONFIRMED,
    CZXID,
    OWNER,
    SOURCE,
    VERDICT,
    VERSION,
    Hazard,
    make_hazard,
)
from logstore.pulsar.ledger_metadata import APPLICATION, BookKeeperLedgerState, PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import (
    AgeFloors,
    LedgerJudgement,
    LedgerVerdict,
    ScannedLedger,
    judge_two_scans,
)
from logstore.pulsar.plan_jobs import (
    BEGUN_MS,
    CLUSTER_MS,
    ENDED_MS,
    IDENTITY,
    LEDGERS_ROOT,
    PROBLEM,
    CompareScansJob,
    ScanClusterJob,
)
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.finding_files import write_finding_file
from logstore.reconciliation.findings import Finding, FindingKind
from spark.job_runner import JobContext
from spark.pulsar.cluster_facts import LEDGERS, LOCKS, LOG_SOURCES, REFERENCES, require_all_rows
from spark.pulsar.compare_managed_ledgers import ManagedLedgerComparison, write_orphan_managed_ledgers
from spark.reconciliation.fact_files import read_facts

Ids = npt.NDArray[np.int64]

_GROUPED_KINDS: Final = ("ledgers", "references")

_REQUIRED_REFERENCES: Final = "required_references"  # count of references to ledgers that must exist
_MAX_DANGLING: Final = 10
_MAX_DANGLING_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class ScanGroup:
    """Facts of one scan about one group of ledger ids: tables `LEDGERS` and `REFERENCES`."""

    ledgers: pa.Table
    references: pa.Table

    @classmethod
    def read(cls, folder: Path, group: int) -> "ScanGroup":
        return cls(read_facts(folder, "ledgers", group, LEDGERS), read_facts(folder, "references", group, REFERENCES))


@dataclass(frozen=True, slots=True)
class HazardCount:
    ledgers: int = 0
    size_bytes: int = 0


HazardName = tuple[Hazard, str]
"""A hazard, and the name of an application, or ""."""


@dataclass(frozen=True, slots=True)
class ScanComparison:
    findings: list[Finding]
    counts: Counter[str]
    hazards: Mapping[HazardName, HazardCount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _GroupResult:
    """Result of one task. `rows` are the numbers of rows that it read, by kind and scan."""

    counts: Counter[str]
    rows: Counter[tuple[str, int]]
    hazards: Mapping[HazardName, HazardCount]


def compare_scans(cluster: PulsarCluster, context: JobContext, job: CompareScansJob) -> BulkJobSummary:
    """Write candidates. Problems of the scans are counted: the comparison goes on, and its plan is incomplete.

    Raises:
        PreconditionFailed: The scans cannot be compared, or their files are not those that they wrote.
    """
    first, second = (
        context.get_published_summary(ScanClusterJob(run_id=job.run_id, number=number).name) for number in (1, 2)
    )
    require_comparable_scans(first, second, between_s=job.between_s, ledgers_root=cluster.ledgers_root)
    floors = AgeFloors() if job.older_than_s is None else AgeFloors.for_all_states(job.older_than_s)
    locked = _ids(read_facts(Path(second.folder), "locks", None, LOCKS))
    require_all_rows("scan 2", {"locks": len(locked)}, second.counts)
    compare = partial(
        _write_candidates_of_group,
        locked=locked,
        scans=(Path(first.folder), Path(second.folder)),
        folder=context.folder,
        root=cluster.ledgers_root,
        now_ms=second.counts[CLUSTER_MS],
        floors=floors,
    )
    results = context.run_in_executors("compare scans", list(range(first.counts["groups"])), compare)
    rows = sum((result.rows for result in results), Counter[tuple[str, int]]())
    for number, scan in enumerate((first, second), start=1):
        require_all_rows(f"scan {number}", {kind: rows[kind, number] for kind in _GROUPED_KINDS}, scan.counts)
    write_orphans = partial(
        write_orphan_managed_ledgers,
        scans=(Path(first.folder), Path(second.folder)),
        folder=context.folder,
        now_ms=second.counts[CLUSTER_MS],
        floor_s=floors.open_s,
    )
    file_names = ["candidates-managed-ledgers.parquet"]
    (managed_ledgers,) = context.run_in_executors("compare managed ledgers", file_names, write_orphans)
    hazards = _make_hazards(cluster, results, managed_ledgers)
    write_finding_file(context.folder / "candidates-hazards.parquet", [hazards])
    counts = sum((result.counts for result in results), Counter[str]())
    counts += Counter(finding.kind.value for finding in hazards)
    counts[FindingKind.ORPHAN_MANAGED_LEDGER.value] = managed_ledgers.orphans
    problems = make_problems_of_references(counts)
    return BulkJobSummary(
        counts=counts | {"problems": first.counts["problems"] + second.counts["problems"] + len(problems)},
        facts=problems,
    )


def make_problems_of_references(counts: Mapping[str, int]) -> dict[str, str]:
    """Return a problem if so many ledgers are missing that they are probably those of another cluster."""
    dangling, required = counts[FindingKind.DANGLING_REFERENCE.value], counts[_REQUIRED_REFERENCES]
    if dangling <= _MAX_DANGLING or dangling <= _MAX_DANGLING_SHARE * required:
        return {}
    reason = (
        f"expected the ledgers of {required:,} references, found none for {dangling:,}."
        " Compare pulsar_ledgers_root with the settings of the brokers"
    )
    return {f"{PROBLEM}references to ledgers": reason}


def require_comparable_scans(
    first: BulkJobSummary, second: BulkJobSummary, *, between_s: float, ledgers_root: str
) -> None:
    """Refuse scans of other clusters, and scans that are too close. A ledger may be without its reference in between.

    Raises:
        PreconditionFailed: See above.
    """
    for number, scan in enumerate((first, second), start=1):
        if scan.facts[LEDGERS_ROOT] != ledgers_root:
            expected = f'expected a scan of the ledgers below "/{ledgers_root}"'
            raise PreconditionFailed(f'scan {number}: {expected}, found "/{scan.facts[LEDGERS_ROOT]}"; plan again')
    if first.facts[IDENTITY] != second.facts[IDENTITY]:
        expected = f"expected the cluster {first.facts[IDENTITY]} of scan 1"
        raise PreconditionFailed(f"scan 2: {expected}, found {second.facts[IDENTITY]}; plan again")
    gap_s = (second.counts[BEGUN_MS] - first.counts[ENDED_MS]) / 1_000
    if gap_s < between_s:
        expected = f"expected {between_s:,.0f} s or more between the scans"
        raise PreconditionFailed(f"scan 2: {expected}, found {gap_s:,.0f} s; plan again")


def _write_candidates_of_group(
    group: int, *, locked: Ids, scans: tuple[Path, Path], folder: Path, root: str, now_ms: int, floors: AgeFloors
) -> _GroupResult:
    """Write the candidates of a group into one file, in an executor. Two runs of a task may overlap."""
    first, second = (ScanGroup.read(scan, group) for scan in scans)
    comparison = compare_scan_groups(first, second, locked, root=root, now_ms=now_ms, floors=floors)
    write_finding_file(folder / f"candidates-{group:03d}.parquet", [comparison.findings])
    rows = {
        (kind, number): len(getattr(scan, kind))
        for number, scan in enumerate((first, second), start=1)
        for kind in _GROUPED_KINDS
    }
    return _GroupResult(comparison.counts, Counter(rows), comparison.hazards)


def compare_scan_groups(
    first: ScanGroup, second: ScanGroup, locked: Ids, *, root: str, now_ms: int, floors: AgeFloors
) -> ScanComparison:
    """Return candidates: orphan ledgers whose owners are not looked up yet, unattributed ledgers, dangling references.

    `root` is the path of the ledgers. `now_ms` is as in `judge_two_scans`.
    """
    tables = first.ledgers, second.ledgers
    ids_before, ids_after = map(_ids, tables)
    referenced = np.union1d(_find_referenced_ids(first), _find_referenced_ids(second))
    unreferenced_before = np.setdiff1d(ids_before, referenced, assume_unique=True)
    unreferenced_after = np.setdiff1d(ids_after, referenced, assume_unique=True)
    in_both: Ids = np.intersect1d(unreferenced_before, unreferenced_after, assume_unique=True)
    transient = len(unreferenced_before) + len(unreferenced_after) - 2 * len(in_both)
    counts = Counter(transient=transient)
    findings: list[Finding] = []
    rows_before, rows_after = (_select_rows(table, in_both) for table in tables)
    is_locked = np.isin(in_both, locked).tolist()
    for row_before, row, is_row_locked in zip(rows_before, rows_after, is_locked, strict=True):
        before, after = _make_scanned_ledger(row_before), _make_scanned_ledger(row, locked=is_row_locked)
        judgement = judge_two_scans(before, after, now_ms=now_ms, floors=floors)
        counts[judgement.verdict.value] += 1
        if judgement.verdict is LedgerVerdict.UNREFERENCED or judgement.verdict.is_unattributed:
            findings.append(_make_ledger_finding(row, judgement, root))
    dangling, harmless = _find_dangling(first.references, second.references, np.union1d(ids_before, ids_after))
    findings += dangling
    required = len(second.references.filter(pc.invert(second.references["can_be_absent"])))
    counts.update({"harmless": harmless, _REQUIRED_REFERENCES: required})
    counts.update(finding.kind.value for finding in findings)
    return ScanComparison(findings, counts, _count_hazards(tables[1], second.references))


def _find_referenced_ids(scan: ScanGroup) -> Ids:
    """Return the ids of ledgers that a reference needs. An owner does not need a ledger that it has given up."""
    is_given_up = scan.references["given_up"]
    given_up = scan.references.filter(is_given_up)
    existing = scan.ledgers.filter(pc.is_in(scan.ledgers["ledger_id"], value_set=given_up["ledger_id"]))
    owner_by_ledger = dict(zip(existing["ledger_id"].to_pylist(), existing["owner"].to_pylist(), strict=True))
    rows = given_up.filter(pc.is_in(given_up["ledger_id"], value_set=existing["ledger_id"])).to_pylist()
    of_others = [row["ledger_id"] for row in rows if row["path"] != owner_by_ledger[row["ledger_id"]]]
    ids: Ids = np.union1d(_ids(scan.references.filter(pc.invert(is_given_up))), np.array(of_others, np.int64))
    return ids


def _ids(table: pa.Table) -> Ids:
    ids: Ids = table["ledger_id"].to_numpy()
    return ids


def _select_rows(table: pa.Table, ids: Ids) -> list[dict[str, Any]]:
    """Return the rows of these ledgers, ascending by id."""
    selected = table.filter(pc.is_in(table["ledger_id"], value_set=pa.array(ids)))
    rows: list[dict[str, Any]] = selected.sort_by("ledger_id").to_pylist()
    return rows


def _make_scanned_ledger(row: Mapping[str, Any], *, locked: bool = False) -> ScannedLedger:
    owner = StatedOwner(PulsarComponent(row["component"]), row["owner"]) if row["component"] else None
    return ScannedLedger(
        ledger_id=row["ledger_id"],
        version=row["version"],
        czxid=row["czxid"],
        modified_ms=row["modified_ms"],
        state=BookKeeperLedgerState.from_fact(row["state"]),
        owner=owner,
        replication_lock=locked,
    )


def _make_ledger_finding(row: Mapping[str, Any], judgement: LedgerJudgement, root: str) -> Finding:
    is_unattributed = judgement.verdict.is_unattributed
    statement = {name: str(row[name]) for name in (VERSION, CZXID, "state", "application", COMPONENT, OWNER)}
    return Finding(
        kind=FindingKind.UNATTRIBUTED_LEDGER if is_unattributed else FindingKind.ORPHAN_LEDGER,
        ledger_id=LedgerId(row["ledger_id"]),
        key=f"/{root}/{format_ledger_path(row['ledger_id'])}",
        objects=1,
        size_bytes=row["size_bytes"],
        newest_us=row["modified_ms"] * 1_000,
        statement=statement | {VERDICT: judgement.verdict.value, CONFIRMED: "false"},
        detail=judgement.reason,
    )


def _find_dangling(first: pa.Table, second: pa.Table, existing: Ids) -> tuple[list[Finding], int]:
    """Return references of both scans to ledgers that neither scan has, and the number of harmless ones."""
    absent = [table.filter(pa.array(~np.isin(_ids(table), existing))) for table in (first, second)]
    dangling = absent[1].join(absent[0], ["ledger_id", "path", "source"], join_type="left semi")
    harmful = dangling.filter(pc.invert(dangling["can_be_absent"]))
    findings = [
        Finding(
            kind=FindingKind.DANGLING_REFERENCE,
            ledger_id=LedgerId(row["ledger_id"]),
            key=f"/{row['path']}",
            statement={SOURCE: row["source"]},
            detail="it refers to a ledger that does not exist",
        )
        for row in harmful.to_pylist()
    ]
    return findings, len(dangling) - len(harmful)


def _count_hazards(ledgers: pa.Table, references: pa.Table) -> dict[HazardName, HazardCount]:
    """Count ledgers without metadata of Pulsar, by hazard. `ledgers` has the rows of one group of ids."""
    has_application = pc.not_equal(ledgers["application"], "")
    foreign = ledgers.filter(pc.and_(has_application, pc.not_equal(ledgers["application"], APPLICATION)))
    sums = foreign.group_by("application").aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
    hazards = {
        (Hazard.FOREIGN_APPLICATION, row["application"]): HazardCount(row["size_bytes_count"], row["size_bytes_sum"])
        for row in sums.to_pylist()
    }
    log_ids = _ids(references.filter(pc.is_in(references["source"], pa.array(LOG_SOURCES))))
    of_logs = ledgers.filter(pc.and_(pc.invert(has_application), pa.array(np.isin(_ids(ledgers), log_ids))))
    if of_logs.num_rows:
        hazards[Hazard.LOG_LEDGERS, ""] = HazardCount(of_logs.num_rows, pc.sum(of_logs["size_bytes"]).as_py())
    return hazards


def _make_hazards(
    cluster: PulsarCluster, results: Sequence[_GroupResult], managed_ledgers: ManagedLedgerComparison
) -> list[Finding]:
    """Return one finding for each hazard, and for each foreign application."""
    totals: dict[HazardName, HazardCount] = {}
    for result in results:
        for name, count in result.hazards.items():
            total = totals.get(name, HazardCount())
            totals[name] = HazardCount(total.ledgers + count.ledgers, total.size_bytes + count.size_bytes)
    hazards = [
        make_hazard(hazard, count.ledgers, [application] if application else [], size_bytes=count.size_bytes)
        for (hazard, application), count in sorted(totals.items())
    ]
    if managed_ledgers.shadow_topics:
        hazards.append(make_hazard(Hazard.SHADOW_TOPICS, managed_ledgers.shadow_topics, managed_ledgers.shadow_names))
    if cluster.shared_clusters:
        hazards.append(make_hazard(Hazard.SHARED_BOOKKEEPER, len(cluster.shared_clusters), cluster.shared_clusters))
    return hazards
