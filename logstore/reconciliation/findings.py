"""What a reconciliation finds, one row a finding, and what plans and applies come to.

Plan, report and apply exchange findings; jobs return results, and the summary of a run keeps them.

Source: DESIGN of this project after iceberg's and lakeFS's orphan removals; every kind but five is only reported.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from logstore.positions import LedgerId


class FindingKind(StrEnum):
    """What is wrong. Stored by name."""

    ORPHAN_LEDGER = "orphan_ledger"  # objects of a copy that no row names
    ORPHAN_SEGMENT = "orphan_segment"  # an object under a live ledger that no segment's row names
    ORPHAN_OFFLOAD = "orphan_offload"  # tiered objects, or parts of an upload, that no offload context names
    UNREFERENCED_LEDGER = "unreferenced_ledger"  # a row that no list, cursor or schema names, and that nobody needs
    STALLED_DELETION = "stalled_deletion"  # an unfinished intent that no workflow works on
    MISSING_DATA = "missing_data"  # a row whose objects are absent or short, or that is lost itself: data loss
    CORRUPT_DATA = "corrupt_data"  # bytes that differ from their digest, read twice: a scrub finds them
    MISMATCH = "mismatch"  # storage's statement contradicts the row; objects of a refused deletion
    CONFIRMATION = "confirmation"  # an upload that vouches for a registered segment, and goes with its ledger
    FOREIGN = "foreign"  # cannot be parsed, or is another application's

    @property
    def applied(self) -> bool:
        """Whether apply acts upon it; the others are reported, and never touched."""
        return self in _APPLIED


_APPLIED = frozenset(
    {
        FindingKind.ORPHAN_LEDGER,
        FindingKind.ORPHAN_SEGMENT,
        FindingKind.ORPHAN_OFFLOAD,
        FindingKind.UNREFERENCED_LEDGER,
        FindingKind.STALLED_DELETION,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of a plan's findings."""

    kind: FindingKind
    ledger_id: LedgerId | None = None  # None: of no ledger
    copy: str = ""  # `CopyKind` of what is stored; "": it is a row of the catalog
    bucket: str = ""  # "": it is a row of the catalog
    key: str = ""  # of the object, of a tiered pair's data, or the prefix of a ledger
    uuid: str = ""  # of a tiered copy
    row_id: int | None = None  # of the intent in `pending_deletion`, if it concerns one
    topic: str = ""  # encoded, as storage or the catalog says; "": not known
    objects: int = 0
    size_bytes: int = 0
    newest_us: int | None = None  # the newest object, by the store's clock
    statement: Mapping[str, str] = field(default_factory=dict)  # whose it is, as storage itself says
    detail: str = ""  # in a sentence


class Fate(StrEnum):
    """What apply did about a finding."""

    DELETED = "deleted"  # as storage confirms
    STARTED = "started"  # its deletion has a workflow, which does not report here
    KEPT = "kept"  # not true any more, or not safe: nothing was done
    FAILED = "failed"  # not all of it is gone: its deletion is a dead letter, or is tried again


_MOST_REASONS: Final = 20  # told apart in counts; files have all
_OTHER: Final = "other reasons"
_MOST_FAILURES: Final = 100  # a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """What a plan came to, as its run's summary keeps it."""

    findings: dict[str, int]  # by kind, zeros too
    size_bytes: dict[str, int]  # by kind, zeros too
    ledgers: int  # rows of the catalog that were compared
    before_us: int  # the cut-off, by the store's clock
    report: str  # folder of the findings
    left_out: list[str] = field(default_factory=list)  # what could not be compared, in sentences
    rows_before_us: int = 0  # the cut-off of rows, by the catalog's clock; 0: a plan of an older build did not say
    young: int = 0  # ledgers whose rows were left out: nothing is said of what is missing of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyCounts:
    """What became of findings; of some of them, or of all."""

    applied: dict[str, int] = field(default_factory=dict)  # by kind
    skipped: dict[str, int] = field(default_factory=dict)  # by reason
    failed: int = 0
    objects: int = 0  # confirmed as deleted
    size_bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # a sample: finding's number -> why


RESULT = "result"
"""Under which the summary of a finished run keeps what it came to."""


def plan_result(summary: Mapping[str, Any]) -> PlanResult:
    """What a finished plan came to, in the words that this build knows: a newer one may have said more."""
    return PlanResult(**_known(PlanResult, summary[RESULT]))


def apply_counts(summary: Mapping[str, Any]) -> ApplyCounts:
    """What a finished apply came to, likewise."""
    return ApplyCounts(**_known(ApplyCounts, summary[RESULT]))


def _known(kind: type[PlanResult] | type[ApplyCounts], told: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in told.items() if name in names}


def apply_run_id(run_id: str) -> str:
    """The run of an apply, by that of its plan: a plan is applied once."""
    return f"apply-{run_id}"


def plan_run_id(run_id: str) -> str:
    """The plan of an apply, by the run of that."""
    return run_id.removeprefix("apply-")


def apply_batch_id(run_id: str, page: int) -> str:
    """Return the batch of the deletions of one page, `orphans-{run_id}-{page}`, where `run_id` is the plan's."""
    return f"orphans-{run_id}-{page}"


def together(left: ApplyCounts, right: ApplyCounts) -> ApplyCounts:
    """Both, in bounds."""
    return capped(
        ApplyCounts(
            applied=dict(Counter(left.applied) + Counter(right.applied)),
            skipped=dict(Counter(left.skipped) + Counter(right.skipped)),
            failed=left.failed + right.failed,
            objects=left.objects + right.objects,
            size_bytes=left.size_bytes + right.size_bytes,
            failures={**left.failures, **right.failures},
        )
    )


def capped(counts: ApplyCounts) -> ApplyCounts:
    """The counts with only as many reasons and failures as fit into one payload: the first ones."""
    named = {name: rows for name, rows in counts.skipped.items() if name != _OTHER}
    first = dict(islice(named.items(), _MOST_REASONS))
    rest = sum(counts.skipped.values()) - sum(first.values())
    return ApplyCounts(
        applied=counts.applied,
        skipped=first | ({_OTHER: rest} if rest else {}),
        failed=counts.failed,
        objects=counts.objects,
        size_bytes=counts.size_bytes,
        failures=dict(islice(counts.failures.items(), _MOST_FAILURES)),
    )
