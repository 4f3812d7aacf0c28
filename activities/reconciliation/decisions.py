"""What was decided about a page, written down before the first effect that would change the answer.

A repeated attempt must do the same, though nothing may be left in storage by then. The first decision that is written
counts for all attempts: one that overlaps with it reads and follows that decision.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logstore.errors import CorruptData
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.ports.catalog import OrphanCopy
from logstore.whole_files import create_or_read

Looked = Mapping[int, OrphanCopy | str]
"""Finding's number → the copy as storage stated it, or why it must be kept."""

Kept = Mapping[int, str]
"""Finding's number → why its object must be kept; what is not named is to be deleted."""


def looked_at(folder: Path, page: int) -> Looked | None:
    """Return what storage said of the copies of a page at the first look of the apply, or None."""
    found = _read(_copies(folder, page))
    return None if found is None else _looked(found)


def keep_looked(folder: Path, page: int, looked: Looked) -> Looked:
    """Store the look unless one is stored. Return the stored look."""
    told = {str(at): one if isinstance(one, str) else _fields(one) for at, one in looked.items()}
    return _looked(_put(_copies(folder, page), told))


def objects_kept(folder: Path, page: int) -> Kept | None:
    """Return which single objects of a page must be kept, or None if that is not decided yet."""
    found = _read(_objects(folder, page))
    return None if found is None else _kept(found)


def keep_objects(folder: Path, page: int, kept: Kept) -> Kept:
    """Store the decision unless one is stored. Return the stored decision."""
    return _kept(_put(_objects(folder, page), {str(at): why for at, why in kept.items()}))


def _copies(folder: Path, page: int) -> Path:
    return folder / "looked" / f"page-{page:08d}.json"


def _objects(folder: Path, page: int) -> Path:
    return folder / "decided" / f"page-{page:08d}.json"


def _put(path: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    return _parsed(path, create_or_read(path, json.dumps(told, sort_keys=True)))


def _read(path: Path) -> dict[str, Any] | None:
    return _parsed(path, path.read_text(encoding="utf-8")) if path.exists() else None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise CorruptData(f"{path}: expected what an apply decided ({error})") from error
    return found


def _kept(found: Mapping[str, str]) -> Kept:
    return {int(at): why for at, why in found.items()}


def _looked(found: Mapping[str, Any]) -> Looked:
    return {int(at): one if isinstance(one, str) else _copy(int(at), one) for at, one in found.items()}


def _fields(copy: OrphanCopy) -> dict[str, Any]:
    return {
        "copy": copy.copy.value,
        "statement": copy.statement.to_metadata(),
        "context": dict(copy.context),
        "size_bytes": copy.size_bytes,
    }


def _copy(number: int, fields: Mapping[str, Any]) -> OrphanCopy:
    return OrphanCopy(
        number=number,
        copy=CopyKind(fields["copy"]),
        statement=LedgerStatement.from_metadata(fields["statement"]),
        context=fields["context"],
        size_bytes=fields["size_bytes"],
    )
