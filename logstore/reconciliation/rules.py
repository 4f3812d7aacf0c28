"""Guards of a reconciliation: age of objects, plausible sides, share of orphans. Each refuses before any change.

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
"""Lowest age of a finding's objects: more than the longest upload, 45 minutes, and its grace."""

MAX_ORPHAN_SHARE: Final = 0.05
"""Default share of all ledgers above which apply refuses."""

_WEIGHED_KINDS: Final = (FindingKind.ORPHAN_LEDGER, FindingKind.UNREFERENCED_LEDGER, FindingKind.ORPHAN_OFFLOAD)
"""Kinds that are weighed against all ledgers.

Tiered copies count: a catalog that has lost all contexts names none of them, and no other guard notices that.
"""

MAX_NUMBERS_ABOVE_LAST: Final = 64
"""Gap above a ledger's highest segment number that lost races explain.

A larger number is not passed over: phase two would ask for each number below it by name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Numbers of copies of one kind, by the sides that have them."""

    stored: int
    named: int  # by the catalog, in buckets that were listed
    matched: int  # on both sides


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCounts:
    """Counts of a comparison."""

    objects: int  # of ledgers, in listings
    ledgers: int  # rows
    ledgers_counted: int  # rows that the catalog counts after they were read, of ids from before
    primary: Overlap
    tiered: Overlap
    expected: int = 0  # ledgers with published primary copies that are old enough to be listed


def check_age(older_than_s: float, *, unsafe: bool) -> None:
    """Refuse an age below the floor, unless `unsafe` allows it.

    Raises:
        InvalidInput: The age is negative: the cut-off would lie in the future.
        PreconditionFailed: The age is below the floor.
    """
    if older_than_s < 0:
        raise InvalidInput("older-than", expected="0s or more: no cut-off lies in the future", found=older_than_s)
    if older_than_s < AGE_FLOOR_S and not unsafe:
        raise PreconditionFailed(
            f"older-than: expected {_format_age(AGE_FLOOR_S)} or more, found {_format_age(older_than_s)}; an upload may"
            " take 45 minutes, and what it writes would look like an orphan; --unsafe-age allows it where no process"
            " writes"
        )


def check_sides(sides: SideCounts) -> None:
    """Refuse a comparison whose sides cannot both be right.

    Raises:
        PreconditionFailed: One of these is true.

            1. Fewer rows were read than the catalog counts.
            2. Objects are listed, and there is no ledger, or no row names a copy.
            3. Nothing is listed of ledgers that must have objects.
            4. Both sides have copies of a kind, and none in common.
    """
    if sides.ledgers < sides.ledgers_counted:
        raise PreconditionFailed(
            f"reference set: expected {sides.ledgers_counted:,} ledgers or more, found {sides.ledgers:,}; plan again"
        )
    if sides.objects and not sides.ledgers:
        raise PreconditionFailed(
            f"reference set: expected ledgers beside {sides.objects:,} listed objects, found none;"
            " this catalog is empty, or not the store's"
        )
    if sides.expected and not sides.primary.stored:
        raise PreconditionFailed(
            f"listing: expected objects of {sides.expected:,} ledgers in the primary bucket, found none; the listing is"
            " not this store's, or hides its objects: compare `sexton ledger explain ID` of a ledger, and plan again"
        )
    if sides.objects and not sides.primary.named and not sides.tiered.named:
        raise PreconditionFailed(
            f"reference set: expected copies of {sides.ledgers:,} ledgers beside {sides.objects:,} listed objects,"
            " found none; the catalog has lost its copies, or all of them stand elsewhere"
        )
    for kind, overlap in (("primary", sides.primary), ("tiered", sides.tiered)):
        if overlap.stored and overlap.named and not overlap.matched:
            raise PreconditionFailed(
                f"comparison: expected {kind} copies that storage and catalog both name, found none of"
                f" {overlap.named:,} in the catalog and {overlap.stored:,} in storage; the listing or the catalog is"
                " not this store's"
            )


def check_fraction(name: str, value: float) -> None:
    """Refuse a value of the option `name` outside 0 to 1.

    Raises:
        InvalidInput: The value is outside.
    """
    if not 0 <= value <= 1:
        raise InvalidInput(name, expected="a number from 0 to 1", found=value)


def check_orphan_share(findings: Mapping[str, int], ledgers: int, max_share: float) -> None:
    """Refuse to remove more than a share of all ledgers.

    Args:
        findings: Counts by kind.
        ledgers: Rows of the catalog at the plan.
        max_share: 0 to 1 inclusive.

    Raises:
        InvalidInput: The share is outside 0 to 1.
        PreconditionFailed: More would be removed.
    """
    check_fraction("max-orphan-share", max_share)
    weighed = {kind.value: findings.get(kind.value, 0) for kind in _WEIGHED_KINDS}
    to_delete = sum(weighed.values())
    share = to_delete / (ledgers + to_delete) if to_delete else 0.0
    if share > max_share:
        counts = ", ".join(f"{rows:,} {kind}" for kind, rows in weighed.items() if rows)
        raise PreconditionFailed(
            f"orphan share: expected at most {max_share:g} of all ledgers, found {share:.3g}: {to_delete:,} of"
            f" {ledgers + to_delete:,} ledgers ({ledgers:,} of the catalog, {to_delete:,} found) would go: {counts};"
            f" read the report, and give --max-orphan-share {round_up_share(share)} if it is right"
        )


def reason_to_keep_segment(state: LedgerState, *, last_segment: int, primary: bool, number: int) -> str | None:
    """Return why a segment without a row must not be passed over and removed, or `None` if it may be.

    Args:
        state: Of the ledger.
        last_segment: Highest number that the ledger's writer has used, as the catalog knows.
        primary: Whether the ledger has its primary copy.
        number: Of the segment.
    """
    if state is LedgerState.CREATING:
        return "the ledger is being created"
    if not primary:
        return "the ledger has no primary copy any more"
    if takes_segments(state) and number > last_segment + MAX_NUMBERS_ABOVE_LAST:
        return f"it is more than {MAX_NUMBERS_ABOVE_LAST} above {last_segment}, the highest of an open ledger"
    return None


def takes_segments(state: LedgerState) -> bool:
    """Return whether a writer may still register segments of the ledger."""
    return state is LedgerState.OPEN


def _format_age(seconds: float) -> str:
    """Return an age as an operator types it: 90m, or 1h."""
    for unit, size in (("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def round_up_share(share: float) -> float:
    """Return the next share in whole percent, as an operator types it."""
    return min(1.0, math.ceil(share * 100) / 100)
