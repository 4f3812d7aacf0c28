"""Bulk jobs that the port `BulkJobRunner` runs. A job of a plan reads the output of the plan's earlier jobs.

Storage is listed before ledgers are read, because a ledger's row exists before its objects. Ledgers are read before
intents, because a ledger's row exists before its intents.
"""

from dataclasses import dataclass, field
from typing import Final

from logstore.delayed.index_build_job import BuildDelayedIndexJob
from logstore.field_bounds import between
from logstore.pulsar.plan_jobs import (
    CompareOffloadsJob,
    CompareScansJob,
    ListOffloadsJob,
    ScanClusterJob,
    VerifyClusterJob,
)
from logstore.records.rebuild_job import WriteCatalogRowsJob
from logstore.transactions.buffer_serialization import BuildTransactionBuffersJob

SCRUB_RATE: Final = 32 << 20
"""Default rate of a scrub in bytes per second."""

MIN_SCRUB_RATE: Final = 128 << 10
"""Lowest rate of a scrub in bytes per second. A page of 8 GiB then takes 19 hours; its timeout is 24 hours."""

SCRUB_BYTES_PER_S: Final = between(MIN_SCRUB_RATE, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListStorageJob:
    """Job that lists the objects in every bucket of the catalog.

    If a bucket has an inventory, the job reads the inventory. The summary has the count `objects` of
    `plausibility_guards.ComparisonCounts`.
    """

    run_id: str
    inventories: tuple[str, ...] = ()  # paths of manifests, at most one per bucket

    name = "list-storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLedgersAndIntentsJob:
    """Job that reads ledgers with their copies, then unfinished intents and dead letters.

    The summary has the count `ledgers` of `plausibility_guards.ComparisonCounts`.
    """

    run_id: str

    name = "read-references"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareStorageWithCatalogJob:
    """Job that compares storage with the catalog, and writes each difference as a candidate for a finding.

    The summary has the fields of `CopyOverlap`: without a prefix for primary copies, and with the prefix `tiered_` for
    tiered copies. The fact `ROWS_BEFORE` is the cut-off: `rows_before_us`, or an earlier time if an inventory is old.
    `young` counts ledgers whose rows are younger than the cut-off. `expected` counts ledgers of which a listing must
    show objects.
    """

    run_id: str
    before_us: int  # younger objects, by the store's clock, are left out
    rows_before_us: int  # younger rows, by the catalog's clock, are left out
    next_ledger_id: int  # no ledger of this catalog has this id or a higher one

    name = "compare-sides"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFindingsJob:
    """Job that checks each candidate again in storage and catalog. `FindingFiles` reads the job's output."""

    run_id: str
    before_us: int

    name = "verify-findings"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutScrubIntoPagesJob:
    """Job that cuts the ledgers of a scrub into pages. A page is a range of ledger ids.

    The summary counts `pages`, and the `ledgers`, `objects` and `size_bytes` to be read.
    """

    run_id: str
    topics: tuple[int, ...]  # ids; empty: every topic
    next_ledger_id: int  # ledgers with this id or a higher one are left to the next scrub
    bytes_per_s: int = SCRUB_RATE  # of all tasks of a page together; a page takes some minutes at this rate

    name = "cut-scrub"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPageJob:
    """Job that reads each segment and tiered copy of one page, and compares digests.

    `FindingFiles` reads the job's output. The summary counts the `objects` and `size_bytes` that were read. `elsewhere`
    counts tiered copies in buckets that the job cannot read.
    """

    run_id: str
    page: int
    bytes_per_s: int  # of all tasks together, 1 or more

    main = "scrub-page"

    @property
    def name(self) -> str:
        """Name of the page's output. An interrupted scrub keeps the outputs of finished pages."""
        return f"{self.main}-{self.page:06d}"


BulkJob = (
    ListStorageJob
    | ReadLedgersAndIntentsJob
    | CompareStorageWithCatalogJob
    | VerifyFindingsJob
    | CutScrubIntoPagesJob
    | ScrubPageJob
    | BuildTransactionBuffersJob
    | BuildDelayedIndexJob
    | WriteCatalogRowsJob
    | ListOffloadsJob
    | ScanClusterJob
    | CompareScansJob
    | CompareOffloadsJob
    | VerifyClusterJob
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJobProgress:
    stage: str  # a phrase
    done: int  # finished tasks
    tasks: int


ROWS_BEFORE: Final = "rows_before_us"
"""Key in `BulkJobSummary.facts`. The value is the cut-off of rows: microseconds since 1970 by the catalog's clock."""

LEFT_OUT: Final = "left out: "
"""Prefix of keys in `BulkJobSummary.facts`. The value is a sentence that says why something was not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJobSummary:
    counts: dict[str, int] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    folder: str = ""  # of the output
    files: dict[str, int] = field(default_factory=dict)  # size in bytes by file name
