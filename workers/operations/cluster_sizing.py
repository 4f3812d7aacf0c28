"""Estimates of time and space of a plan for a Pulsar cluster, and of its apply.

Print a Markdown table for clusters with these numbers of ledgers:

    python -m workers.operations.cluster_sizing [--deletions-per-s N] LEDGERS…
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from logstore.errors import InvalidInput
from logstore.pulsar.plan_jobs import MIN_BETWEEN_SCANS_S, READS_PER_S
from logstore.reconciliation.finding_files import FINDINGS_PER_PAGE
from workers.operations.sizing import EVENTS_PER_ACTIVITY, format_bytes

ZNODES_PER_LEDGER: Final = 1.3
"""Znodes that a scan reads, if ten ledgers belong to a topic with one cursor and one schema."""

HEAP_BYTES_PER_LEDGER: Final = 2_070
"""Memory of each ZooKeeper server for these znodes."""

FACT_BYTES_PER_LEDGER: Final = 221
"""Output of one scan."""

COMPARISON_SHARE: Final = 0.032
"""Time of the comparison, as a share of the time of an unlimited scan."""

UNLIMITED_READS_PER_S: Final = 17_000
"""Znodes that a scan reads on two cores which ZooKeeper uses, too."""

MEASURED_DELETIONS_PER_S: Final = 2_653
"""Ledgers that an apply looks at once more, journals and deletes without a limit, if ten belong to a topic.

Source: `docs/benchmarks.md`, on two idle cores, with no limit of reads.
"""

JOURNAL_BYTES_PER_LEDGER: Final = {"postgresql": 470, "sqlite": 416}
"""Row in the catalog with its index, of a ledger with three bookies."""

COPY_BYTES_PER_LEDGER: Final = 470
"""Line in the records bucket of such a ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCluster:
    ledgers: int
    orphan_share: float = 0.01
    reads_per_s: float = READS_PER_S  # 0 < reads_per_s; bounds the reads of a plan
    deletions_per_s: int = MEASURED_DELETIONS_PER_S

    def __post_init__(self) -> None:
        if not 1 <= self.ledgers < 2**53:
            raise InvalidInput("ledgers", expected="1 to 2**53 - 1", found=self.ledgers)
        if self.deletions_per_s < 1:
            raise InvalidInput("deletions-per-s", expected="at least 1", found=self.deletions_per_s)

    @property
    def orphans(self) -> int:
        return round(self.ledgers * self.orphan_share)

    @property
    def znodes(self) -> int:
        return round(self.ledgers * ZNODES_PER_LEDGER)

    @property
    def scan_s(self) -> float:
        return self.znodes / min(self.reads_per_s, UNLIMITED_READS_PER_S)

    @property
    def plan_s(self) -> float:
        """Time of two scans, the wait between them, and the comparison."""
        return 2 * self.scan_s + MIN_BETWEEN_SCANS_S + COMPARISON_SHARE * self.znodes / UNLIMITED_READS_PER_S

    @property
    def apply_s(self) -> float:
        return self.orphans / self.deletions_per_s

    @property
    def apply_events(self) -> int:
        """Events in Temporal's history of the apply, whose pages are full."""
        pages = math.ceil(self.orphans / FINDINGS_PER_PAGE)
        return EVENTS_PER_ACTIVITY * (pages + 2)  # a page, the begin and the end are activities


def format_cluster_table(clusters: list[PlannedCluster]) -> str:
    """Return a table with a column for each cluster. All have the same rate of deletions."""
    rate = clusters[0].deletions_per_s
    format_by_row: dict[str, Callable[[PlannedCluster], str]] = {
        "znodes of a scan": lambda cluster: f"{cluster.znodes:,}",
        "memory of each ZooKeeper server": lambda cluster: format_bytes(cluster.ledgers * HEAP_BYTES_PER_LEDGER),
        "time of a scan at the default rate": lambda cluster: _format_time(cluster.scan_s),
        "time of a plan at the default rate": lambda cluster: _format_time(cluster.plan_s),
        "files of a plan": lambda cluster: format_bytes(2 * cluster.ledgers * FACT_BYTES_PER_LEDGER),
        "orphans, if one ledger in a hundred is one": lambda cluster: f"{cluster.orphans:,}",
        f"time to delete them at {rate:,} a second": lambda cluster: _format_time(cluster.apply_s),
        "time to delete them at 50 a second": lambda cluster: _format_time(cluster.orphans / 50),
        "journal in PostgreSQL": lambda cluster: format_bytes(cluster.orphans * JOURNAL_BYTES_PER_LEDGER["postgresql"]),
        "journal in the records bucket": lambda cluster: format_bytes(cluster.orphans * COPY_BYTES_PER_LEDGER),
        "events of the apply in Temporal": lambda cluster: f"{cluster.apply_events:,}",
    }
    heads = " | ".join(f"{cluster.ledgers:,} ledgers" for cluster in clusters)
    head = f"| | {heads} |\n|---|{'---:|' * len(clusters)}\n"
    return head + "".join(
        f"| {name} | {' | '.join(map(format_cell, clusters))} |\n" for name, format_cell in format_by_row.items()
    )


def _format_time(seconds: float) -> str:
    time = timedelta(seconds=seconds)
    if time.days:
        return f"{time / timedelta(days=1):.1f} days"
    if seconds >= 3_600:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--deletions-per-s", type=int, default=MEASURED_DELETIONS_PER_S)
    parser.add_argument("ledgers", type=int, nargs="+")
    given = parser.parse_args()
    sys.stdout.write(
        format_cluster_table(
            [PlannedCluster(ledgers=ledgers, deletions_per_s=given.deletions_per_s) for ledgers in given.ledgers]
        )
    )
