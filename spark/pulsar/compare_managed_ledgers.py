"""Comparison of the managed ledgers of two scans: orphans become candidates, and shadow topics a hazard.

A managed ledger is a candidate if both scans show it as an orphan for the same reason, and unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore.pulsar.cluster_findings import CONFIRMED, CZXID, MAX_NAMES, OWNER, VERDICT, VERSION
from logstore.pulsar.orphan_managed_ledgers import ManagedLedgerVerdict
from logstore.pulsar.znode_names import MANAGED_LEDGERS as MANAGED_LEDGERS_ROOT
from logstore.reconciliation.finding_files import FINDINGS_PER_PAGE, write_finding_file
from logstore.reconciliation.findings import Finding, FindingKind
from spark.pulsar.cluster_facts import MANAGED_LEDGER_FILES, MANAGED_LEDGERS
from spark.reconciliation.fact_files import read_ungrouped_batches

_UNCHANGED: Final = ["name", "version", "czxid", "verdict"]


@dataclass(frozen=True, slots=True)
class ManagedLedgerComparison:
    orphans: int
    shadow_topics: int
    shadow_names: tuple[str, ...]  # some of the shadow topics


def write_orphan_managed_ledgers(
    file_name: str, *, scans: tuple[Path, Path], folder: Path, now_ms: int, floor_s: float
) -> ManagedLedgerComparison:
    """Write the candidates into one file, in an executor. Two runs of a task may overlap. Memory holds the orphans.

    `now_ms` is as in `judge_two_scans`. A managed ledger that changed less than `floor_s` before is left out.
    """
    first, second = (_select_managed_ledgers(scan, "verdict") for scan in scans)
    unchanged = second.join(first, _UNCHANGED, join_type="left semi")
    old = unchanged.filter(pc.less_equal(unchanged["modified_ms"], now_ms - round(floor_s * 1_000)))
    write_finding_file(folder / file_name, _make_pages(old.sort_by("name")))
    shadows = _select_managed_ledgers(scans[1], "shadow_source").sort_by("name")
    names = shadows["name"].slice(0, MAX_NAMES + 1).to_pylist()
    return ManagedLedgerComparison(len(old), len(shadows), tuple(names))


def _select_managed_ledgers(scan: Path, column: str) -> pa.Table:
    """Return the managed ledgers of a scan with a value in a column."""
    batches = [
        batch.filter(pc.not_equal(batch.column(column), ""))
        for batch in read_ungrouped_batches(scan, MANAGED_LEDGER_FILES)
    ]
    return pa.Table.from_batches(batches, schema=MANAGED_LEDGERS)


def _make_pages(table: pa.Table) -> Iterator[list[Finding]]:
    for batch in table.to_batches(max_chunksize=FINDINGS_PER_PAGE):
        yield [
            Finding(
                kind=FindingKind.ORPHAN_MANAGED_LEDGER,
                key=f"/{MANAGED_LEDGERS_ROOT}/{row['name']}",
                objects=row["ledgers"],
                newest_us=row["modified_ms"] * 1_000,
                statement={
                    VERSION: str(row["version"]),
                    CZXID: str(row["czxid"]),
                    OWNER: f"{MANAGED_LEDGERS_ROOT}/{row['name']}",
                    VERDICT: row["verdict"],
                    CONFIRMED: "false",
                },
                detail=ManagedLedgerVerdict(row["verdict"]).reason,
            )
            for row in batch.to_pylist()
        ]
