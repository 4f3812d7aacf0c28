"""Facts about a group of shards as numpy arrays, and candidates as Arrow tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.catalog.reconciliation.bulk_queries import NUMBER_MODULUS, SIZE_MODULUS
from logstore.log.ledgers import CopyKind
from logstore.reconciliation.finding_files import FINDING_SCHEMA
from logstore.reconciliation.findings import FindingKind
from spark.reconciliation.fact_files import LEDGERS

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PRIMARY: Final = CopyKind.LEDGER.value
TIERED: Final = CopyKind.OFFLOADED_LEDGER.value

ReadSegments = Callable[[Ids], pa.Table]
"""Function that reads `ledger_id, number, size_bytes` of the segments that the catalog has now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroup:
    """Facts about a group of shards, in any order, in the schemas of `fact_files`."""

    objects: pa.Table
    tiered: pa.Table
    ledgers: pa.Table
    copies: pa.Table
    intents: pa.Table
    read_segments: ReadSegments


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonLimits:
    """Bounds of a comparison. Objects and rows beyond these bounds are left out."""

    before_us: int  # younger objects, by the object store's clock, are left out
    rows_before_us: int  # younger rows, by the catalog's clock, are left out
    next_ledger_id: int  # no ledger has this id or a higher one
    bucket: str  # primary bucket
    tiered_buckets: frozenset[str]  # tiered buckets that were listed
    endpoints: frozenset[str] = frozenset({""})  # endpoints by which offload contexts name the listed store


@dataclass(frozen=True, slots=True)
class StoredLedgerObjects:
    """Objects of the primary bucket, ascending by ledger and number, with sums by ledger."""

    ledger: Ids  # ledger id of each object
    number: npt.NDArray[np.int32]
    digest: npt.NDArray[np.uint64]
    size: Ids
    modified: Ids
    ids: Ids  # id of each ledger
    start: npt.NDArray[np.intp]  # index of the ledger's first object
    newest: Ids
    objects: Ids
    total: Ids  # bytes

    @staticmethod
    def from_table(table: pa.Table) -> "StoredLedgerObjects":
        """Convert a table in the schema `OBJECTS`, in any order. An object that an inventory repeats is used once."""
        names = ("ledger_id", "number", "digest", "size_bytes", "modified_us")
        ledger, number, digest, size, modified = _sort_and_deduplicate_objects(
            *(table[name].to_numpy() for name in names)
        )
        ids, start, objects = np.unique(ledger, return_index=True, return_counts=True)
        if not len(ids):
            empty = np.empty(0, np.int64)
            return StoredLedgerObjects(ledger, number, digest, size, modified, ids, start, empty, empty, empty)
        newest, total = np.maximum.reduceat(modified, start), np.add.reduceat(size, start)
        return StoredLedgerObjects(
            ledger, number, digest, size, modified, ids, start, newest, objects.astype(np.int64), total
        )


def _sort_and_deduplicate_objects(ledger: Ids, number: Any, digest: Any, size: Ids, modified: Ids) -> tuple[Any, ...]:  # noqa: ANN401
    """Sort objects. If several objects have the same key, keep only the newest one."""
    order = np.lexsort((number, ledger))
    if ((np.diff(ledger[order]) == 0) & (np.diff(number[order]) == 0)).any():  # rare, so the cheap order comes first
        order = np.lexsort((modified, digest, number, ledger))
        key = [column[order] for column in (ledger, number, digest)]
        is_repeated = np.logical_and.reduce([column[1:] == column[:-1] for column in key])
        order = order[np.append(~is_repeated, True)]
    return tuple(column[order] for column in (ledger, number, digest, size, modified))


@dataclass(frozen=True, slots=True)
class LedgerRowColumns:
    """Columns of the rows of ledgers, ascending by id. The fields are in the order of `LEDGERS`."""

    ids: Ids
    digest: npt.NDArray[np.uint64]
    creating: Mask
    primary: npt.NDArray[np.int8]
    referenced: Mask
    segments: Ids
    last_segment: Ids
    size: Ids
    created_us: Ids
    differs_from_segments: Mask
    moment: Ids

    @staticmethod
    def from_table(table: pa.Table) -> "LedgerRowColumns":
        columns = [table[name].to_numpy() for name in LEDGERS.names if name != "list_id"]
        order = np.argsort(columns[0])
        return LedgerRowColumns(*(column[order] for column in columns))


@dataclass(frozen=True, slots=True)
class IntentIds:
    pending: Ids  # ledgers with an intent for the primary copy
    dead: Ids  # ledgers with a dead letter for the primary copy
    tiered_pending: frozenset[str]  # uuids of tiered copies with an unfinished intent
    tiered_dead: frozenset[str]
    unreadable: frozenset[int]  # ledgers with an intent for a tiered copy of unknown uuid

    @staticmethod
    def from_table(table: pa.Table) -> "IntentIds":
        is_pending, is_primary = pc.equal(table["state"], "PENDING"), pc.equal(table["copy"], PRIMARY)
        is_dead, is_tiered = pc.invert(is_pending), pc.invert(is_primary)
        is_unreadable = pc.and_(is_tiered, pc.equal(table["uuid"], ""))
        ledger_ids, uuids = table["ledger_id"], table["uuid"]
        return IntentIds(
            pending=ledger_ids.filter(pc.and_(is_primary, is_pending)).to_numpy(),
            dead=ledger_ids.filter(pc.and_(is_primary, is_dead)).to_numpy(),
            tiered_pending=frozenset(uuids.filter(pc.and_(is_tiered, is_pending)).to_pylist()),
            tiered_dead=frozenset(uuids.filter(pc.and_(is_tiered, is_dead)).to_pylist()),
            unreadable=frozenset(ledger_ids.filter(is_unreadable).to_pylist()),
        )


def weighted_segment_terms(number: Ids, size: Ids) -> Ids:
    """Return the term of each segment in the sum of `bulk_queries.select_weighted_segment_sums`."""
    place = number % NUMBER_MODULUS + 1
    terms: Ids = place * place * (size % SIZE_MODULUS)
    return terms


def find_positions(ascending: Ids, values: Ids) -> tuple[npt.NDArray[np.intp], Mask]:
    """Return the index of each value in `ascending`, and whether `ascending` contains the value."""
    if not len(ascending):
        return np.zeros(len(values), np.intp), np.zeros(len(values), np.bool_)
    positions = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return positions, ascending[positions] == values


def make_finding_rows(kind: FindingKind, rows: int, **columns: Any) -> pa.Table:  # noqa: ANN401 - arrays, lists or one value
    """Return rows of `FINDING_SCHEMA`. A single value fills the whole column. A missing column is empty."""
    empty: dict[str, Any] = {"ledger_id": None, "row_id": None, "newest_us": None, "objects": 0, "size_bytes": 0}
    arrays = []
    for field in FINDING_SCHEMA:
        value = kind.value if field.name == "kind" else columns.get(field.name, empty.get(field.name, ""))
        if isinstance(value, (str, int)) or value is None:
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
        else:
            array = value if isinstance(value, (pa.Array, pa.ChunkedArray)) else pa.array(value, field.type)
            arrays.append(array.cast(field.type))
    return pa.table(arrays, schema=FINDING_SCHEMA)
