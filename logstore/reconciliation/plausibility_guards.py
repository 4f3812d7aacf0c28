"""Guards that refuse a reconciliation before any change: age of objects, plausible counts, share of orphans.

Source: apache/iceberg#4195 (age), treeverse/lakeFS#4658 (no overlap), ClickHouse/ClickHouse#114194 (stale references).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.log.ledgers import LedgerState
from logstore.reconciliation.findings import FindingKind

AGE_FLOOR_S: Final = 3_600
"""Minimum age of a finding's objects. An upload takes at most 45 minutes plus `UPLOAD_GRACE_S`."""

MAX_ORPHAN_SHARE: Final = 0.05
"""Largest share of all ledgers that an apply removes. An operator may set another limit."""

_WEIGHED_KINDS: Final = (FindingKind.ORPHAN_LEDGER, FindingKind.UNREFERENCED_LEDGER, FindingKind.ORPHAN_OFFLOAD)
"""Kinds of findings that count towards the orphan share.

Tiered copies count, because no other guard notices a catalog that has lost all offload contexts.
"""

MAX_NUMBERS_ABOVE_LAST: Final = 64
"""Maximum distance from an open ledger's highest segment number to a segment that an apply may remove.

For a removal, the highest number is raised to the number of the removed segment. Phase two later requests one object
for each number up to the highest number.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOverlap:
    """Numbers of copies of one kind in storage, in the catalog, and in both."""

    stored: int
    named: int  # by the catalog, in buckets that were listed
    matched: int  # in both


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonCounts:
    objects: int  # listed objects of ledgers
    ledgers: int  # number of ledgers that were read
    ledgers_counted: int  # number of ledgers from before the read that still exist after the read
    primary: CopyOverlap
    tiered: CopyOverlap
    expected: int = 0  # ledgers with published primary copies that are old enough to be listed


_UPLOADS: Final = "an upload may take 45 minutes, and what it writes would look like an orphan"


def require_min_age(
    older_than_s: float,
    *,
    unsafe: bool,
    floor_s: float = AGE_FLOOR_S,
    reason: str = _UPLOADS,
    option: str = "older-than",
) -> None:
    """Refuse an age below `floor_s`, unless it is `unsafe`. `reason` is a clause of the message.

    Raises:
        InvalidInput: The age is below 0.
        PreconditionFailed: The age is below the floor.
    """
    if older_than_s < 0:
        raise InvalidInput(option, expected="0s or more: no cut-off lies in the future", found=older_than_s)
    if older_than_s < floor_s and not unsafe:
        raise PreconditionFailed(
            f"{option}: expected {_format_age(floor_s)} or more, found {_format_age(older_than_s)}; {reason};"
            " --unsafe-age allows it where no process writes"
        )


def require_plausible_counts(counts: ComparisonCounts) -> None:
    """Refuse a comparison if the listing or the catalog seems incomplete or seems to belong to another store.

    Raises:
        PreconditionFailed: One of these is true.

            1. Fewer rows were read than the catalog counts.
            2. Objects are listed, but the catalog has no ledgers or no copies.
            3. The catalog expects objects in the primary bucket, but none is listed.
            4. Storage and catalog both have copies of a kind, but none is in both.
    """
    if counts.ledgers < counts.ledgers_counted:
        raise PreconditionFailed(
            f"reference set: expected {counts.ledgers_counted:,} ledgers or more, found {counts.ledgers:,}; plan again"
        )
    if counts.objects and not counts.ledgers:
        raise PreconditionFailed(
            f"reference set: expected ledgers beside {counts.objects:,} listed objects, found none;"
            " this catalog is empty, or not the store's"
        )
    if counts.expected and not counts.primary.stored:
        raise PreconditionFailed(
            f"listing: expected objects of {counts.expected:,} ledgers in the primary bucket, found none; the listing"
            " is not this store's, or hides its objects: compare `sexton ledger explain ID` of a ledger, and plan again"
        )
    if counts.objects and not counts.primary.named and not counts.tiered.named:
        raise PreconditionFailed(
            f"reference set: expected copies of {counts.ledgers:,} ledgers beside {counts.objects:,} listed objects,"
            " found none; the catalog has lost its copies, or all of them stand elsewhere"
        )
    for kind, overlap in (("primary", counts.primary), ("tiered", counts.tiered)):
        if overlap.stored and overlap.named and not overlap.matched:
            raise PreconditionFailed(
                f"comparison: expected {kind} copies that storage and catalog both name, found none of"
                f" {overlap.named:,} in the catalog and {overlap.stored:,} in storage; the listing or the catalog is"
                " not this store's"
            )


def check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidInput(name, expected="a number from 0 to 1", found=value)


def check_orphan_share(findings: Mapping[str, int], ledgers: int, max_share: float) -> None:
    """Raise `PreconditionFailed` if an apply would remove more than `max_share` (0 to 1) of all ledgers.

    `findings` has counts by kind. `ledgers` are all others: those of the catalog, or of a cluster, at the plan.
    """
    check_fraction("max-orphan-share", max_share)
    weighed = {kind.value: findings.get(kind.value, 0) for kind in _WEIGHED_KINDS}
    to_delete = sum(weighed.values())
    share = to_delete / (ledgers + to_delete) if to_delete else 0.0
    if share > max_share:
        counts = ", ".join(f"{rows:,} {kind}" for kind, rows in weighed.items() if rows)
        raise PreconditionFailed(
            f"orphan share: expected at most {max_share:g} of all ledgers, found {share:.3g}: {to_delete:,} of"
            f" {ledgers + to_delete:,} ledgers would go: {counts};"
            f" read the report, and give --max-orphan-share {round_up_share(share)} if it is right"
        )


def reason_to_keep_segment(state: LedgerState, *, last_segment: int, has_primary_copy: bool, number: int) -> str | None:
    """Return why a segment without a row must be kept, or `None` if its object may be removed.

    `last_segment` is the ledger's highest segment number in the catalog.
    """
    if state is LedgerState.CREATING:
        return "the ledger is being created"
    if not has_primary_copy:
        return "the ledger has no primary copy any more"
    if takes_segments(state) and number > last_segment + MAX_NUMBERS_ABOVE_LAST:
        return f"it is more than {MAX_NUMBERS_ABOVE_LAST} above {last_segment}, the highest of an open ledger"
    return None


def takes_segments(state: LedgerState) -> bool:
    return state is LedgerState.OPEN


def _format_age(seconds: float) -> str:
    for unit, size in (("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def round_up_share(share: float) -> float:
    return min(1.0, math.ceil(share * 100) / 100)
