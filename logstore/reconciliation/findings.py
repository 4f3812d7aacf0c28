"""What a reconciliation finds, one row a finding, as plan, report and apply exchange it.

Source: DESIGN of this project after iceberg's and lakeFS's orphan removals; every kind but five is only reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from logstore.positions import LedgerId


class FindingKind(StrEnum):
    """What is wrong. Stored by name."""

    ORPHAN_LEDGER = "orphan_ledger"  # objects of a copy that no row names
    ORPHAN_SEGMENT = "orphan_segment"  # an object under a live ledger that no segment's row names
    ORPHAN_OFFLOAD = "orphan_offload"  # tiered objects, or parts of an upload, that no offload context names
    UNREFERENCED_LEDGER = "unreferenced_ledger"  # a row that no list, cursor or schema names
    STALLED_DELETION = "stalled_deletion"  # an unfinished intent that no workflow works on
    MISSING_DATA = "missing_data"  # a row whose objects are absent or short: data loss
    MISMATCH = "mismatch"  # storage's statement contradicts the row; objects of a refused deletion
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
