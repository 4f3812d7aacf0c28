"""Findings of a reconciliation, and the results of plans and applies.

Source: orphan removals of iceberg and lakeFS.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from logstore.positions import LedgerId


class FindingKind(StrEnum):
    """Kind of a finding. Files of findings contain these values."""

    ORPHAN_LEDGER = "orphan_ledger"  # objects of a copy that no row names
    ORPHAN_SEGMENT = "orphan_segment"  # an object of a live ledger that no segment's row names
    ORPHAN_OFFLOAD = "orphan_offload"  # tiered objects, or parts of an upload, that no offload context names
    UNREFERENCED_LEDGER = "unreferenced_ledger"  # row of a ledger that no other row names and that is not needed
    STALLED_DELETION = "stalled_deletion"  # an unfinished intent that no workflow works on
    MISSING_DATA = "missing_data"  # data loss: a row's objects are absent or too short, or a row is lost
    CORRUPT_DATA = "corrupt_data"  # found by a scrub: bytes that differ from their digest in two reads
    MISMATCH = "mismatch"  # storage contradicts the catalog's row, or keeps objects of a refused deletion
    CONFIRMATION = "confirmation"  # a confirmation object of a ledger; deleted with the ledger
    FOREIGN = "foreign"  # an object whose key cannot be parsed, or of another application
    ORPHAN_MANAGED_LEDGER = "orphan_managed_ledger"  # of a cluster: a managed ledger whose topic is gone
    ABANDONED_UPLOAD = "abandoned_upload"  # of a cluster: an unfinished upload of an offload
    DANGLING_REFERENCE = "dangling_reference"  # of a cluster: a reference to a ledger that does not exist
    UNATTRIBUTED_LEDGER = "unattributed_ledger"  # of a cluster: a ledger without references and without a known owner
    HAZARD = "hazard"  # of a cluster: a state that makes deletions dangerous, such as a shadow topic

    @property
    def is_removable(self) -> bool:
        """True if an apply removes findings of this kind. Other kinds are only reported."""
        return self in _REMOVABLE_KINDS


STORE_KINDS: Final = (
    FindingKind.ORPHAN_LEDGER,
    FindingKind.ORPHAN_SEGMENT,
    FindingKind.ORPHAN_OFFLOAD,
    FindingKind.UNREFERENCED_LEDGER,
    FindingKind.STALLED_DELETION,
    FindingKind.MISSING_DATA,
    FindingKind.CORRUPT_DATA,
    FindingKind.MISMATCH,
    FindingKind.CONFIRMATION,
    FindingKind.FOREIGN,
)
"""Kinds of findings about Sexton's own store."""

CLUSTER_KINDS: Final = (
    FindingKind.ORPHAN_LEDGER,
    FindingKind.ORPHAN_MANAGED_LEDGER,
    FindingKind.ORPHAN_OFFLOAD,
    FindingKind.ABANDONED_UPLOAD,
    FindingKind.DANGLING_REFERENCE,
    FindingKind.UNATTRIBUTED_LEDGER,
    FindingKind.HAZARD,
)
"""Kinds of findings about a Pulsar cluster."""

_REMOVABLE_KINDS = frozenset(
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
    """One difference between storage and catalog, or between the ledgers and the references of a Pulsar cluster."""

    kind: FindingKind
    ledger_id: LedgerId | None = None  # None: the finding is not about a ledger
    copy: str = ""  # `CopyKind` of the objects; "" for a row of the catalog, and in a cluster
    bucket: str = ""  # "" for a row of the catalog, and for a znode
    key: str = ""  # key of the object or of a tiered copy's data, or prefix of a ledger; path of a znode in a cluster
    uuid: str = ""  # of a tiered copy
    row_id: int | None = None  # of the intent in `pending_deletion`, if any
    topic: str = ""  # encoded; "" if unknown
    objects: int = 0  # in a cluster: ledgers, or what a hazard counts
    size_bytes: int = 0
    newest_us: int | None = None  # time of the newest object, by the store's clock; of a znode, by ZooKeeper's clock
    statement: Mapping[str, str] = field(default_factory=dict)  # ledger owner that storage states; in a cluster: facts
    detail: str = ""  # a sentence


class FindingFate(StrEnum):
    """Result of an apply for one finding."""

    DELETED = "deleted"  # storage confirms the deletion
    STARTED = "started"  # another workflow deletes the objects
    KEPT = "kept"  # nothing was deleted: the finding is no longer true, or not safe to remove
    FAILED = "failed"  # objects remain: the deletion is a dead letter, or is retried


@dataclass(frozen=True, slots=True, kw_only=True)
class FateOfFinding:
    number: int
    fate: FindingFate
    reason: str = ""
    objects: int = 0  # confirmed as deleted
    size_bytes: int = 0


MAX_REASONS: Final = 20  # reasons that a result counts separately; the files have all reasons
_OTHER_REASONS: Final = "other reasons"
MAX_FAILURES: Final = 100  # failures in a result; the files have all failures


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOrScrubResult:
    """Result of a plan or a scrub, in the summary of its run."""

    findings: dict[str, int]  # by kind, zeros too
    size_bytes: dict[str, int]  # by kind, zeros too
    ledgers: int  # rows of the catalog that were compared
    before_us: int  # cut-off of objects, by the store's clock
    report: str  # folder of the findings
    left_out: list[str] = field(default_factory=list)  # sentences about what could not be compared
    rows_before_us: int = 0  # cut-off of rows, by the catalog's clock; 0 in a scrub
    young: int = 0  # ledgers whose rows were left out because of their age
    incomplete: list[str] = field(default_factory=list)  # what a plan of a cluster could not read; sentences
    references: int = 0  # of a plan of a cluster: references to ledgers


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyCounts:
    """Counts of the fates of findings."""

    applied: dict[str, int] = field(default_factory=dict)  # by kind
    skipped: dict[str, int] = field(default_factory=dict)  # by reason
    failed: int = 0
    objects: int = 0  # confirmed as deleted
    size_bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # a sample: error by number of the finding


RESULT = "result"
"""Key of the result in the summary of a finished run."""

FATES_FOLDER = "folder"
"""Key in the summary of an apply that keeps fates in files: in a cluster, or in the own store by an earlier build."""

STOPPED = "stopped"
"""Key in the summary of an apply in a cluster: what the plan did not expect, as a sentence. Empty: nothing."""

LEFT = "left"
"""Key in the summary of an apply in a cluster: number of orphans that a later apply may remove."""

LEFT_HELD_BACK = "left_held_back"
"""Key in the summary of an apply in a cluster: those of `LEFT` that an apply without options keeps."""


def plan_result(summary: Mapping[str, Any]) -> PlanOrScrubResult:
    return PlanOrScrubResult(**_known_fields(PlanOrScrubResult, summary[RESULT]))


def apply_counts(summary: Mapping[str, Any]) -> ApplyCounts:
    return ApplyCounts(**_known_fields(ApplyCounts, summary[RESULT]))


def _known_fields(kind: type[PlanOrScrubResult] | type[ApplyCounts], result: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in result.items() if name in names}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FindingPosition:
    """Position of a finding in the order of last changes, oldest first."""

    newest_us: int
    number: int  # of the finding


def apply_run_id(run_id: str) -> str:
    """Return the id of the apply of plan `run_id`. A plan has at most one apply."""
    return f"apply-{run_id}"


def plan_run_id(run_id: str) -> str:
    """Return the id of the plan of apply `run_id`."""
    return run_id.removeprefix("apply-")


def apply_batch_id(run_id: str, page: int) -> str:
    """Return the id of the batch that deletes the findings of one page. `run_id` is the id of the plan."""
    return f"orphans-{run_id}-{page}"


def add_apply_counts(left: ApplyCounts, right: ApplyCounts) -> ApplyCounts:
    return limit_samples(
        ApplyCounts(
            applied=dict(Counter(left.applied) + Counter(right.applied)),
            skipped=dict(Counter(left.skipped) + Counter(right.skipped)),
            failed=left.failed + right.failed,
            objects=left.objects + right.objects,
            size_bytes=left.size_bytes + right.size_bytes,
            failures={**left.failures, **right.failures},
        )
    )


def limit_samples(counts: ApplyCounts) -> ApplyCounts:
    """Keep the first failures and the first reasons, to fit a workflow payload. Add up further reasons in one count."""
    named = {name: rows for name, rows in counts.skipped.items() if name != _OTHER_REASONS}
    first = dict(islice(named.items(), MAX_REASONS))
    rest = sum(counts.skipped.values()) - sum(first.values())
    return ApplyCounts(
        applied=counts.applied,
        skipped=first | ({_OTHER_REASONS: rest} if rest else {}),
        failed=counts.failed,
        objects=counts.objects,
        size_bytes=counts.size_bytes,
        failures=dict(islice(counts.failures.items(), MAX_FAILURES)),
    )
