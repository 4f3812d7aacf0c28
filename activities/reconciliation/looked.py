"""What storage said of the copies of a page when apply first looked at them: kept before anything is filed.

A repeated attempt must file the same, though nothing may be left in storage by then. The first attempt that wrote its
file has said it for all: one that overlaps with it takes that one's word.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.ports.catalog import OrphanCopy

Looked = Mapping[int, OrphanCopy | str]
"""Finding's number → the copy, or why it must be kept."""


def looked_at(folder: Path, page: int) -> Looked | None:
    """What was kept of the page, or None."""
    path = _path(folder, page)
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {int(at): one if isinstance(one, str) else _copy(int(at), one) for at, one in found.items()}


def keep(folder: Path, page: int, looked: Looked) -> Looked:
    """Keep it as a whole, unless another attempt came first; what counts."""
    path = _path(folder, page)
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {str(at): one if isinstance(one, str) else _fields(one) for at, one in looked.items()}
    new = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    new.write_text(json.dumps(told, sort_keys=True), encoding="utf-8")
    try:
        os.link(new, path)
    except FileExistsError:
        return looked_at(folder, page) or looked
    finally:
        new.unlink()
    return looked


def _path(folder: Path, page: int) -> Path:
    return folder / "looked" / f"page-{page:08d}.json"


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
