"""Guards of a reconciliation: what age an object needs, what a reference set must look like, how much may be deleted.

Each of them refuses before anything is changed. Source: iceberg#4195 (age), lakeFS#4658 (no overlap),
ClickHouse#114194 (a stale reference set).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.log.ledgers import LedgerState
from logstore.reconciliation.findings import FindingKind

AGE_FLOOR_S: Final = 3_600
"""No object younger than this is ever a finding: above the longest upload, 45 minutes, and its grace."""

MAX_ORPHAN_SHARE: Final = 0.05
"""Of all ledgers, above which apply refuses unless it is told otherwise."""


_SHARED: Final = (FindingKind.ORPHAN_LEDGER, FindingKind.UNREFERENCED_LEDGER, FindingKind.ORPHAN_OFFLOAD)
"""Kinds whose findings are weighed against all ledgers."""


_FAR: Final = 64
"""Numbers above a ledger's highest that lost races explain; phase two asks for each number below it by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Copies of one kind, by the side that names them."""

    stored: int  # of which an object was listed
    named: int  # that the catalog expects where was listed
    matched: int  # that both sides name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """How much was compared, counted by the comparison itself."""

    objects: int  # listed, of ledgers
    ledgers: int  # rows read
    ledgers_counted: int  # rows that the catalog counted after the read, of ids that existed before it
    primary: Overlap
    tiered: Overlap
    expected: int = 0  # ledgers whose published primary copies are old enough to be listed


def check_age(older_than_s: float, *, unsafe: bool) -> None:
    """Refuse an age below the floor, unless told that it is meant.

    Raises:
        InvalidInput: A negative age: the cut-off would lie in the future.
        PreconditionFailed: Below the floor.
    """
    if older_than_s < 0:
        raise InvalidInput("older-than", expected="0s or more: no cut-off lies in the future", found=older_than_s)
    if older_than_s < AGE_FLOOR_S and not unsafe:
        raise PreconditionFailed(
            f"older-than: expected {_shown(AGE_FLOOR_S)} or more, found {_shown(older_than_s)}; an upload may take"
            " 45 minutes, and what it writes would look like an orphan; --unsafe-age allows it where no process writes"
        )


def check_sides(sides: Sides) -> None:
    """Refuse a comparison whose sides cannot both be right; then it says nothing of any object.

    Raises:
        PreconditionFailed: The catalog's rows are fewer than it counts, or are none beside objects, or name no copy of
            any ledger; or nothing is listed of ledgers that must have objects; or no copy of a kind is named by both
            sides although neither is empty.
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
    for kind, one in (("primary", sides.primary), ("tiered", sides.tiered)):
        if one.stored and one.named and not one.matched:
            raise PreconditionFailed(
                f"comparison: expected {kind} copies that storage and catalog both name, found none of {one.named:,}"
                f" in the catalog and {one.stored:,} in storage; the listing or the catalog is not this store's"
            )


def check_fraction(name: str, value: float) -> None:
    """Refuse a value of the option `name` that is no number from 0 to 1.

    Raises:
        InvalidInput: It is none.
    """
    if not 0 <= value <= 1:
        raise InvalidInput(name, expected="a number from 0 to 1", found=value)


def check_orphan_share(findings: Mapping[str, int], ledgers: int, max_share: float) -> None:
    """Refuse to remove more ledgers, and tiered copies of ledgers, than may be.

    Tiered copies count, because a catalog that has lost all contexts names none of them, and nothing else would tell.

    Args:
        findings: Counts by kind.
        ledgers: Rows of the catalog at the plan.
        max_share: 0 to 1 inclusive.

    Raises:
        InvalidInput: A share that is none.
        PreconditionFailed: More.
    """
    check_fraction("max-orphan-share", max_share)
    weighed = {kind.value: findings.get(kind.value, 0) for kind in _SHARED}
    to_delete = sum(weighed.values())
    share = to_delete / (ledgers + to_delete) if to_delete else 0.0
    if share > max_share:
        told = ", ".join(f"{rows:,} {kind}" for kind, rows in weighed.items() if rows)
        raise PreconditionFailed(
            f"orphan share: expected at most {max_share:g} of all ledgers, found {share:.3g}: {to_delete:,} of"
            f" {ledgers + to_delete:,} ledgers ({ledgers:,} of the catalog, {to_delete:,} found) would go: {told};"
            f" read the report, and give --max-orphan-share {rounded_up(share)} if it is right"
        )


def reason_to_keep_segment(state: LedgerState, *, last_segment: int, primary: bool, number: int) -> str | None:
    """Why an object of a ledger that no row names must not be passed over, and so removed; None: it may be.

    Args:
        state: Of the ledger.
        last_segment: The highest number that its writer has used, as the catalog knows.
        primary: Whether it has its primary copy.
        number: Of the segment.
    """
    if state is LedgerState.CREATING:
        return "the ledger is being created"
    if not primary:
        return "the ledger has no primary copy any more"
    if takes_segments(state) and number > last_segment + _FAR:
        return f"it is more than {_FAR} above {last_segment}, the highest of an open ledger"
    return None


def takes_segments(state: LedgerState) -> bool:
    """A closed ledger takes no segment, whatever its number; phase two would ask for all numbers below a higher one."""
    return state is LedgerState.OPEN


def _shown(seconds: float) -> str:
    """An age as it is typed: 90m, or 1h."""
    for unit, size in (("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def rounded_up(share: float) -> float:
    """Return the next share in whole percent, as an operator types it."""
    return min(1.0, -(-share * 100 // 1) / 100)
