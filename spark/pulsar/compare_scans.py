"""`compare-scans`: write as candidates the ledgers to which neither of two scans of a Pulsar cluster has a reference.

`judge_unreferenced_ledger` leaves out some of these, such as changed ledgers. A later job looks up the owner. A harmful
reference of both scans to an absent ledger is a candidate, too. One task reads the facts of one group of ledger ids.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from infra.pulsar.cluster_access import PulsarCluster
from logstore.atomic_files import replace_atomically
from logstore.errors import PreconditionFailed
from logstore.positions import LedgerId
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import (
    AgeFloors,
    LedgerJudgement,
    LedgerVerdict,
    OwnerLookup,
    ScannedLedger,
    judge_unreferenced_ledger,
)
from logstore.pulsar.plan_jobs import CompareScansJob, ScanClusterJob
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.finding_files import FINDING_SCHEMA, FINDINGS_PER_PAGE, findings_to_table
from logstore.reconciliation.findings import Finding, FindingKind
from spark.job_runner import JobContext
from spark.pulsar.cluster_facts import LEDGERS, LOCKS, REFERENCES
from spark.reconciliation.fact_files import read_facts
from spark.reconciliation.shard_group import find_positions

Ids = npt.NDArray[np.int64]

UNREADABLE_STATE: Final = ""
ROWS: Final = "rows of "  # prefix of counts of the rows that were read, which are not published


@dataclass(frozen=True, slots=True)
class ScanGroup:
    """Facts of one scan about one group of ledger ids: tables `LEDGERS` and `REFERENCES`."""

    ledgers: pa.Table
    references: pa.Table

    @classmethod
    def read(cls, folder: Path, group: int) -> "ScanGroup":
        return cls(read_facts(folder, "ledgers", group, LEDGERS), read_facts(folder, "references", group, REFERENCES))


@dataclass(frozen=True, slots=True)
class ScanComparison:
    findings: list[Finding]
    counts: Counter[str]


def compare_scans(cluster: PulsarCluster, context: JobContext, job: CompareScansJob) -> BulkJobSummary:
    first, second = (
        context.get_published_summary(ScanClusterJob(run_id=job.run_id, number=number).name) for number in (1, 2)
    )
    floors = AgeFloors() if job.older_than_s is None else AgeFloors.for_all_states(job.older_than_s, unsafe=True)
    compare = partial(
        _write_candidates_of_group,
        scans=(Path(first.folder), Path(second.folder)),
        folder=context.folder,
        root=cluster.ledgers_root,
        now_ms=job.now_ms,
        floors=floors,
    )
    totals = sum(
        context.run_in_executors("compare scans", list(range(first.counts["groups"])), compare), Counter[str]()
    )
    require_all_rows(totals, (first, second))
    return BulkJobSummary(counts={name: count for name, count in totals.items() if not name.startswith(ROWS)})


def require_all_rows(totals: Mapping[str, int], scans: tuple[BulkJobSummary, BulkJobSummary]) -> None:
    """Refuse files that have other numbers of rows than the scans counted. A missing row would make an orphan.

    Raises:
        PreconditionFailed: An executor does not see all files, or a late attempt of a task has replaced some.
    """
    for number, scan in enumerate(scans, start=1):
        for kind in ("ledgers", "references"):
            found, expected = totals.get(f"{ROWS}{kind} {number}", 0), scan.counts[kind]
            if found != expected:
                raise PreconditionFailed(f"scan {number}: expected {expected:,} {kind} in its files, found {found:,}")


def _write_candidates_of_group(
    group: int, *, scans: tuple[Path, Path], folder: Path, root: str, now_ms: int, floors: AgeFloors
) -> Counter[str]:
    """Write the candidates of a group into one file, in an executor. Two runs of a task may overlap."""
    first, second = (ScanGroup.read(scan, group) for scan in scans)
    locked = _ids(read_facts(scans[1], "locks", None, LOCKS))
    comparison = compare_scan_groups(first, second, locked, root=root, now_ms=now_ms, floors=floors)
    with (
        replace_atomically(folder / f"candidates-{group:03d}.parquet") as new,
        pq.ParquetWriter(new, FINDING_SCHEMA) as writer,
    ):
        if comparison.findings:
            writer.write_table(findings_to_table(comparison.findings), row_group_size=FINDINGS_PER_PAGE)
    rows = {
        f"{ROWS}{kind} {number}": len(getattr(scan, kind))
        for number, scan in enumerate((first, second), start=1)
        for kind in ("ledgers", "references")
    }
    return comparison.counts + Counter(rows)


def compare_scan_groups(
    first: ScanGroup, second: ScanGroup, locked: Ids, *, root: str, now_ms: int, floors: AgeFloors
) -> ScanComparison:
    """Return candidates: orphan ledgers whose owners are not looked up yet, unattributed ledgers, dangling references.

    `root` is the path of the ledgers, and `now_ms` the time by the clock of ZooKeeper's server.
    """
    tables = [scan.ledgers.sort_by("ledger_id") for scan in (first, second)]
    ids_before, ids_after = (_ids(table) for table in tables)
    referenced = np.union1d(_ids(first.references), _ids(second.references))
    unreferenced_before = np.setdiff1d(ids_before, referenced, assume_unique=True)
    unreferenced_after = np.setdiff1d(ids_after, referenced, assume_unique=True)
    in_both: Ids = np.intersect1d(unreferenced_before, unreferenced_after, assume_unique=True)
    transient = len(unreferenced_before) + len(unreferenced_after) - 2 * len(in_both)
    counts = Counter(transient=transient)
    findings: list[Finding] = []
    rows_before, rows_after = (
        _select_rows(table, ids, in_both) for table, ids in zip(tables, (ids_before, ids_after), strict=True)
    )
    is_locked = np.isin(in_both, locked).tolist()
    for row_before, row, is_row_locked in zip(rows_before, rows_after, is_locked, strict=True):
        before, after = _make_scanned_ledger(row_before), _make_scanned_ledger(row, locked=is_row_locked)
        judgement = judge_unreferenced_ledger(before, after, OwnerLookup.ABSENT, now_ms=now_ms, floors=floors)
        counts[judgement.verdict.value] += 1
        if judgement.verdict in {LedgerVerdict.ORPHAN, LedgerVerdict.UNATTRIBUTED}:
            findings.append(_make_ledger_finding(row, after, judgement, root))
    dangling, harmless = _find_dangling(first.references, second.references, np.union1d(ids_before, ids_after))
    counts.update(harmless=harmless, dangling=len(dangling))
    return ScanComparison(findings + dangling, counts)


def _ids(table: pa.Table) -> Ids:
    ids: Ids = table["ledger_id"].to_numpy()
    return ids


def _select_rows(table: pa.Table, ids: Ids, selected: Ids) -> list[dict[str, Any]]:
    """Return the rows of the selected ledgers, all of which are in `ids`, the ascending ids of the table's rows."""
    positions, _ = find_positions(ids, selected)
    rows: list[dict[str, Any]] = table.take(pa.array(positions)).to_pylist()
    return rows


def _make_scanned_ledger(row: Mapping[str, Any], *, locked: bool = False) -> ScannedLedger:
    owner = StatedOwner(PulsarComponent(row["component"]), row["owner"]) if row["component"] else None
    return ScannedLedger(
        ledger_id=row["ledger_id"],
        version=row["version"],
        czxid=row["czxid"],
        modified_ms=row["modified_ms"],
        state=BookKeeperLedgerState(row["state"]) if row["state"] != UNREADABLE_STATE else BookKeeperLedgerState.OPEN,
        owner=owner,
        replication_lock=locked,
    )


def _make_ledger_finding(
    row: Mapping[str, Any], ledger: ScannedLedger, judgement: LedgerJudgement, root: str
) -> Finding:
    is_orphan = judgement.verdict is LedgerVerdict.ORPHAN
    statement = {
        "version": str(ledger.version),
        "czxid": str(ledger.czxid),
        "state": row["state"],
        "application": row["application"],
        "component": row["component"],
        "owner": row["owner"],
    }
    return Finding(
        kind=FindingKind.ORPHAN_LEDGER if is_orphan else FindingKind.UNATTRIBUTED_LEDGER,
        ledger_id=LedgerId(ledger.ledger_id),
        key=f"/{root}/{format_ledger_path(ledger.ledger_id)}",
        objects=1,
        size_bytes=row["size_bytes"],
        newest_us=row["created_ms"] * 1_000,
        statement=statement,
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
            statement={"source": row["source"]},
            detail="it refers to a ledger that does not exist",
        )
        for row in harmful.to_pylist()
    ]
    return findings, len(dangling) - len(harmful)
