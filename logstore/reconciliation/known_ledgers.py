"""Rows of the catalog that name a ledger id, and what they tell: an orphan, or a catalog that lost a row.

1. An orphan is a copy that no row explains. A row of any table that names the ledger explains its objects, even if the
   row of the copy is lost: then the catalog is damaged, and deleting the objects would turn that into lost data.
2. A row of a deletion that ended states whose ledger had the id: objects of another owner under it are another store's.
3. The ledger's row counts its segments. If its rows of segments are fewer, an object without a row may be one of them.
4. A ledger is published in the transaction that writes the row which names it, and whatever takes that row away files
   the ledger's deletion in the same transaction. A published ledger that nothing names has therefore lost that row,
   unless another row proves that a newer ledger took its place, or nothing was ever registered in it.

Plan and apply judge by the same functions, over the same rows. Source: ADR 30.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from logstore.log.ledgers import Component, CopyKind, LedgerStatement
from logstore.positions import LedgerId
from logstore.reconciliation.findings import FindingKind

_LOST_COPY: Final = "a row names the ledger, and the row of this copy is lost; repair the catalog by hand"
_LOST_LEDGER: Final = "the ledger's row is lost, and {tables} still names it; repair the catalog by hand"
_LOST_REFERENCE: Final = "the row of {referrer} that named the ledger is lost; repair the catalog by hand"
_UNEXPLAINED: Final = "the ledger lives in tiered storage, and no deletion of its primary copy is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOwner:
    """Owner of a ledger id, as one row of the catalog states it."""

    digest: str  # of `LedgerOwner`
    topic: str  # encoded
    created_us: int  # of the ledger; 0: the row does not say
    row: str  # which row, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """A row of `ledger_copy`."""

    kind: str
    uuid: str | None  # of a tiered copy; None: its context cannot be read, and may name any
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSums:
    """Number of the segments of a ledger, and what they hold together."""

    segments: int = 0
    entries: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRows:
    """Rows of the catalog that name one ledger id."""

    has_row: bool = False  # in `ledger`
    component: str = ""  # of its list; empty: the list is lost, or the ledger's row is
    counted: SegmentSums = SegmentSums()  # by the ledger's row
    summed: SegmentSums = SegmentSums()  # of its rows in `segment`, at the same moment
    successor: LedgerId | None = None  # a newer ledger in the row that would name this one
    copies: Sequence[CopyRow] = ()
    owners: Sequence[KnownOwner] = ()  # stated by the ledger's row and by its deletions, finished ones too
    tables: Sequence[str] = ()  # others whose rows name it
    is_primary_deleted: bool = False  # a deletion of its primary copy ended


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogDoubt:
    """Why the catalog's rows forbid to take a stored copy for an orphan."""

    kind: FindingKind | None  # what a plan reports in its place; None: nothing, because a row names this very copy
    reason: str


def doubt_orphan(statement: LedgerStatement, copy: CopyKind, uuid: str, rows: LedgerRows) -> CatalogDoubt | None:
    """Return why a stored copy is no orphan by the catalog's own rows, or None if nothing there forbids it.

    Args:
        statement: What storage states of the copy.
        copy: Its kind.
        uuid: Of a tiered copy.
        rows: The rows that name the ledger.
    """
    if rows.has_row and any(_is_same(copy, uuid, row) for row in rows.copies):
        return CatalogDoubt(kind=None, reason=f"its row names this {copy.value} copy")
    if other := doubt_owner(statement, rows):
        return other
    if not rows.has_row:
        reason = describe_lost_ledger(rows)
        return CatalogDoubt(kind=FindingKind.MISSING_DATA, reason=reason) if reason else None
    if not any(row.is_live for row in rows.copies):
        return CatalogDoubt(kind=FindingKind.MISSING_DATA, reason=_LOST_COPY)
    if copy is CopyKind.LEDGER and not rows.is_primary_deleted:
        return CatalogDoubt(kind=FindingKind.MISMATCH, reason=_UNEXPLAINED)
    return None


def doubt_owner(statement: LedgerStatement, rows: LedgerRows) -> CatalogDoubt | None:
    """Return which row states another owner of the ledger id than storage does, or None."""
    for owner in rows.owners:
        if owner.digest != statement.owner.digest:
            reason = f"{owner.row}: it is of {owner.topic}, and storage states a ledger of {statement.owner.topic}"
            return CatalogDoubt(kind=FindingKind.MISMATCH, reason=reason)
        if owner.created_us and owner.created_us != statement.created_us:
            reason = f"{owner.row}: it is of a ledger of another creation time than storage states"
            return CatalogDoubt(kind=FindingKind.MISMATCH, reason=reason)
    return None


def doubt_segment(statement: LedgerStatement, rows: LedgerRows) -> CatalogDoubt | None:
    """Return why an object of a living ledger is no orphan although no row of `segment` names it, or None."""
    if other := doubt_owner(statement, rows):
        return other
    reason = describe_lost_segments(rows.counted, rows.summed)
    return (
        CatalogDoubt(kind=FindingKind.MISSING_DATA, reason=f"{reason}; the object may be one of them")
        if reason
        else None
    )


def doubt_unreferenced(rows: LedgerRows) -> CatalogDoubt | None:
    """Return why a published ledger that nothing names must stay, or None if rows prove that nobody needs it."""
    if rows.successor is not None:
        return None
    if rows.component == Component.MANAGED_LEDGER and rows.counted == rows.summed == SegmentSums():
        return None
    referrer = _REFERRERS.get(rows.component, "a table")
    return CatalogDoubt(kind=FindingKind.MISSING_DATA, reason=_LOST_REFERENCE.format(referrer=referrer))


def describe_lost_ledger(rows: LedgerRows) -> str | None:
    """Return which tables name a ledger that has no row of its own, or None if none does, or it has one."""
    tables = [*(["ledger_copy"] if rows.copies else []), *rows.tables]
    return _LOST_LEDGER.format(tables=" and ".join(tables)) if tables and not rows.has_row else None


def describe_lost_segments(counted: SegmentSums, summed: SegmentSums) -> str | None:
    """Return how a ledger's row and its rows of segments disagree, or None if they agree."""
    if counted == summed:
        return None
    return (
        f"rows of segments are lost: expected {counted.segments} segments with {counted.entries} entries in"
        f" {counted.size_bytes} bytes, found {summed.segments} with {summed.entries} in {summed.size_bytes}"
    )


_REFERRERS: Final = {
    Component.MANAGED_LEDGER.value: "ledger_list",
    Component.MANAGED_CURSOR.value: "cursor",
    Component.SCHEMA_STORAGE.value: "schema_version",
    Component.TXN_SNAPSHOT.value: "transaction_snapshot",
    Component.DELAYED_INDEX.value: "delayed_bucket",
}
"""Table whose row names a ledger, by the ledger's component; a data ledger is named by its place in the list."""


def _is_same(copy: CopyKind, uuid: str, row: CopyRow) -> bool:
    if row.kind != copy.value:
        return False
    return copy is CopyKind.LEDGER or row.uuid is None or row.uuid == uuid
