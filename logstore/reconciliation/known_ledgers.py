"""What the catalog's rows say of a ledger id, and whether objects under that id can be an orphan.

An orphan is a copy that no row explains. A row of any table that names the ledger explains its objects, even if the row
of the copy is lost: then the catalog is damaged, and deleting the objects would turn that into lost data. A row of a
deletion that ended states whose ledger had the id: objects of another owner under it are another store's.

Plan and apply judge by the same function, over the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.reconciliation.findings import FindingKind

_LOST_COPY: Final = "a row names the ledger, and the row of this copy is lost; repair the catalog by hand"
_LOST_LEDGER: Final = "the ledger's row is lost, and {tables} still names it; repair the catalog by hand"
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
class LedgerRows:
    """Rows of the catalog that name one ledger id."""

    has_row: bool = False  # in `ledger`
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
    if any(_is_same(copy, uuid, row) for row in rows.copies):
        return CatalogDoubt(kind=None, reason=f"its row names this {copy.value} copy")
    if other := doubt_owner(statement, rows):
        return other
    if not rows.has_row:
        tables = [*(["ledger_copy"] if rows.copies else []), *rows.tables]
        reason = _LOST_LEDGER.format(tables=" and ".join(tables))
        return CatalogDoubt(kind=FindingKind.MISSING_DATA, reason=reason) if tables else None
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


def _is_same(copy: CopyKind, uuid: str, row: CopyRow) -> bool:
    if row.kind != copy.value:
        return False
    return copy is CopyKind.LEDGER or row.uuid is None or row.uuid == uuid
