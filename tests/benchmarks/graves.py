"""Versions of ledgers as blocks have them, with their keys alone: most of them tombstones."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.records.record_kinds import RecordKind, block_schema

Numbers = npt.NDArray[np.int64]
START_US: Final = 1_750_000_000_000_000


def versions(ids: Numbers, *, version: int, tombstone: bool = True, at_us: Numbers | None = None) -> pa.Table:
    """Versions of ledgers with their keys alone."""
    count = len(ids)
    fixed = {
        "id": ids,
        "sub": [""] * count,
        "epoch": np.ones(count, np.int64),
        "version": np.full(count, version),
        "generation": np.ones(count, np.int64),
        "at_us": np.full(count, START_US) if at_us is None else at_us,
        "tombstone": np.full(count, tombstone),
    }
    fields = block_schema(RecordKind.LEDGER)
    nothing = {one.name: pa.nulls(count, one.type) for one in fields if one.name not in fixed}
    arrays = [nothing[one.name] if one.name in nothing else pa.array(fixed[one.name], one.type) for one in fields]
    return pa.Table.from_arrays(arrays, schema=fields)
