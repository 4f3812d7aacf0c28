"""The bulk jobs of a reconciliation, as the port `BulkJobs` runs them; each one's output is the next one's input.

Storage is listed first, then ledgers are read, then intents: rows precede objects, and intents outlive rows.
"""

from dataclasses import dataclass, field
from typing import Final

from logstore.delayed.jobs import BuildIndexes
from logstore.records.rebuilding import RebuildRecords
from logstore.transactions.snapshots import BuildBuffers

SCRUB_RATE: Final = 32 << 20
"""Bytes a second that a scrub reads unless told otherwise."""

MIN_SCRUB_RATE: Final = 128 << 10
"""Bytes a second. A page of 8 GiB, which was cut for a higher rate, ends in 19 hours at this one; it may take 24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListStorage:
    """List every bucket of the catalog, or read inventories in the place of listings.

    Its summary counts `objects`, as `rules.Sides` has them.
    """

    run_id: str
    inventories: tuple[str, ...] = ()  # paths of manifests, at most one a bucket

    name = "list-storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReferences:
    """Read all that the catalog names: ledgers with their copies, then intents that are not over.

    Its summary counts `ledgers`, as `rules.Sides` has them.
    """

    run_id: str

    name = "read-references"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSides:
    """Find candidates: what one side names and the other does not, or names otherwise.

    Its summary counts `stored`, `named` and `matched`, as `rules.Overlap` has them, of primary copies, and the same
    of tiered ones as `tiered_stored`, `tiered_named` and `tiered_matched`; as `young` the ledgers whose rows were
    left out for their age; and as `expected` those of which a listing must show objects. Its fact `ROWS_BEFORE` is the
    cut-off of rows: an inventory may have made it earlier.
    """

    run_id: str
    before_us: int  # objects that are younger, by the store's clock, are left out
    rows_before_us: int  # rows that are younger, by the catalog's clock, are left out
    next_ledger_id: int  # no ledger of this catalog has this id or a higher one

    name = "compare-sides"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFindings:
    """Ask storage and catalog once more about every candidate; what is left are the findings.

    Its folder holds them as `FindingFiles` reads them.
    """

    run_id: str
    before_us: int

    name = "verify-findings"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutScrub:
    """Cut the ledgers of a scrub into pages, each a range of ids.

    Its summary counts `pages`, and the `ledgers`, `objects` and `size_bytes` that are to be read.
    """

    run_id: str
    topics: tuple[int, ...]  # ids; none: every topic
    next_ledger_id: int  # ledgers with this id or a higher one are left to the next scrub
    bytes_per_s: int = SCRUB_RATE  # of all tasks of a page together; pages are cut to some minutes of it

    name = "cut-scrub"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPage:
    """Read each segment and tiered copy of one page, and compare digests.

    Its folder holds findings as `FindingFiles` reads them. Its summary counts `objects` and `size_bytes` that were
    read, and as `elsewhere` the tiered copies in buckets that tasks do not read.
    """

    run_id: str
    page: int
    bytes_per_s: int  # of all tasks together, 1 or more

    main = "scrub-page"

    @property
    def name(self) -> str:
        """Of the page: each has an output of its own, so that a scrub goes on where it was."""
        return f"{self.main}-{self.page:06d}"


BulkJob = (
    ListStorage
    | ReadReferences
    | CompareSides
    | VerifyFindings
    | CutScrub
    | ScrubPage
    | BuildBuffers
    | BuildIndexes
    | RebuildRecords
)
"""All of them; those of transactions, of delayed messages, and another protocol's, join here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProgress:
    """How far a job is."""

    stage: str  # in words
    done: int  # tasks
    tasks: int


ROWS_BEFORE: Final = "rows_before_us"
"""The fact of a comparison that says which rows were left out: microseconds since 1970, by the catalog's clock."""

LEFT_OUT: Final = "left out: "
"""How the name of a fact begins that says of something, in a sentence, why it could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSummary:
    """What a job published, the same when it is asked for again."""

    counts: dict[str, int] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)  # `LEFT_OUT` and a name: why that could not be compared
    folder: str = ""  # of its output
    files: dict[str, int] = field(default_factory=dict)  # of its output by name, with their bytes
