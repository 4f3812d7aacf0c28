"""Versions of records as tests write them."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from logstore.records.record_kinds import RecordKind, block_schema


def version(
    id_: int, number: int, *, sub: str = "", epoch: int = 1, tombstone: bool = False, **fields: Any
) -> dict[str, Any]:
    """One version; columns that are not named are null, or what a record that is new has."""
    fixed = {"generation": 0, "at_us": number}
    return {"id": id_, "sub": sub, "epoch": epoch, "version": number, "tombstone": tombstone, **fixed, **fields}


def table(kind: RecordKind, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """They as a block has them, ascending by id and sub."""
    ordered = sorted(rows, key=lambda row: (row["id"], row["sub"]))
    return pa.Table.from_pylist(ordered, schema=block_schema(kind))
