"""Reasons to doubt that a stored object is an orphan, from the catalog's rows that name its ledger id.

1. An orphan is a copy that no row explains. A row of any table that names the ledger explains its objects. If only the
   row of the copy is lost, the catalog is damaged, and deleting the objects would lose data.
2. The row of a finished deletion states the ledger owner. Objects of another ledger owner belong to another store.
3. The ledger's row counts its segments. If fewer rows of segments exist, rows are lost. An object without a row may
   then be one of these segments.
4. The SQL transaction that publishes a ledger also writes the row that names the ledger. The SQL transaction that
   removes this row also files the ledger's intents. So if no row names a published ledger, this row is lost. There are
   two exceptions: a newer ledger has replaced this ledger, or no segment was ever registered in this ledger.

A plan and an apply call the same functions with the same rows. Source: ADR 30.
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
class OwnerInRow:
    """Ledger owner that one row of the catalog states for a ledger id."""

    digest: str  # of `LedgerOwner`
    topic: str  # encoded
    created_us: int  # of the ledger; 0: the row does not state it
    row: str  # name of the row in messages


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    kind: str
    uuid: str | None  # of a tiered copy; None: unknown, because the offload context is unreadable
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSums:
    segments: int = 0
    entries: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRows:
    """Rows of the catalog that name one ledger id."""

    has_row: bool = False  # in `ledger`
    component: str = ""  # of the ledger's list; empty: the row of the list or of the ledger is lost
    counted: SegmentSums = SegmentSums()  # sums in the ledger's row
    summed: SegmentSums = SegmentSums()  # of the ledger's rows in `segment`, at the same moment
    successor: LedgerId | None = None  # newer ledger, named by the row that would name this ledger
    copies: Sequence[CopyRow] = ()
    owners: Sequence[OwnerInRow] = ()  # stated by the ledger's row and by its deletions, even finished deletions
    tables: Sequence[str] = ()  # other tables with rows that name the ledger
    is_primary_deleted: bool = False  # a deletion of the primary copy is finished


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanDoubtFromRows:
    kind: FindingKind | None  # kind to report instead; None: no finding, because a row names this very copy
    reason: str


def doubt_orphan(statement: LedgerStatement, copy: CopyKind, uuid: str, rows: LedgerRows) -> OrphanDoubtFromRows | None:
    """Return why a stored copy is not an orphan, judged by the catalog's rows. Return `None` if the copy is an orphan.

    `statement` is the copy's statement in storage. `uuid` is empty for a primary copy.
    """
    if rows.has_row and any(_is_same(copy, uuid, row) for row in rows.copies):
        return OrphanDoubtFromRows(kind=None, reason=f"its row names this {copy.value} copy")
    if doubt := doubt_owner(statement, rows):
        return doubt
    if not rows.has_row:
        reason = describe_lost_ledger(rows)
        return OrphanDoubtFromRows(kind=FindingKind.MISSING_DATA, reason=reason) if reason else None
    if not any(row.is_live for row in rows.copies):
        return OrphanDoubtFromRows(kind=FindingKind.MISSING_DATA, reason=_LOST_COPY)
    if copy is CopyKind.LEDGER and not rows.is_primary_deleted:
        return OrphanDoubtFromRows(kind=FindingKind.MISMATCH, reason=_UNEXPLAINED)
    return None


def doubt_owner(statement: LedgerStatement, rows: LedgerRows) -> OrphanDoubtFromRows | None:
    for owner in rows.owners:
        if owner.digest != statement.owner.digest:
            reason = f"{owner.row}: it is of {owner.topic}, and storage states a ledger of {statement.owner.topic}"
            return OrphanDoubtFromRows(kind=FindingKind.MISMATCH, reason=reason)
        if owner.created_us and owner.created_us != statement.created_us:
            reason = f"{owner.row}: it is of a ledger of another creation time than storage states"
            return OrphanDoubtFromRows(kind=FindingKind.MISMATCH, reason=reason)
    return None


def doubt_segment(statement: LedgerStatement, rows: LedgerRows) -> OrphanDoubtFromRows | None:
    if doubt := doubt_owner(statement, rows):
        return doubt
    reason = describe_lost_segments(rows.counted, rows.summed)
    return (
        OrphanDoubtFromRows(kind=FindingKind.MISSING_DATA, reason=f"{reason}; the object may be one of them")
        if reason
        else None
    )


def doubt_removal_of_unreferenced(rows: LedgerRows) -> OrphanDoubtFromRows | None:
    """Return why a published ledger that no row names must stay, or `None` if rows prove that nothing needs it."""
    if rows.successor is not None:
        return None
    if rows.component == Component.MANAGED_LEDGER and rows.counted == rows.summed == SegmentSums():
        return None
    referrer = _TABLE_BY_COMPONENT.get(rows.component, "a table")
    return OrphanDoubtFromRows(kind=FindingKind.MISSING_DATA, reason=_LOST_REFERENCE.format(referrer=referrer))


def describe_lost_ledger(rows: LedgerRows) -> str | None:
    tables = [*(["ledger_copy"] if rows.copies else []), *rows.tables]
    return _LOST_LEDGER.format(tables=" and ".join(tables)) if tables and not rows.has_row else None


def describe_lost_segments(counted: SegmentSums, summed: SegmentSums) -> str | None:
    if counted == summed:
        return None
    return (
        f"rows of segments are lost: expected {counted.segments} segments with {counted.entries} entries in"
        f" {counted.size_bytes} bytes, found {summed.segments} with {summed.entries} in {summed.size_bytes}"
    )


_TABLE_BY_COMPONENT: Final = {
    Component.MANAGED_LEDGER.value: "ledger_list",
    Component.MANAGED_CURSOR.value: "cursor",
    Component.SCHEMA_STORAGE.value: "schema_version",
    Component.TXN_SNAPSHOT.value: "transaction_snapshot",
    Component.DELAYED_INDEX.value: "delayed_bucket",
}
"""Table with the row that names a ledger, by the ledger's component."""


def _is_same(copy: CopyKind, uuid: str, row: CopyRow) -> bool:
    if row.kind != copy.value:
        return False
    return copy is CopyKind.LEDGER or row.uuid is None or row.uuid == uuid
