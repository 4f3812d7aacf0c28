"""Both sides of one group of shards as arrays of numpy, and candidates as rows of the schema of findings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from infra.catalog.reconciliation import facts as sql
from logstore.log.ledgers import CopyKind
from logstore.reconciliation.files import SCHEMA
from logstore.reconciliation.findings import FindingKind
from spark.reconciliation.facts import LEDGERS

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PRIMARY: Final = CopyKind.LEDGER.value
TIERED: Final = CopyKind.OFFLOADED_LEDGER.value

SegmentsOf = Callable[[Ids], pa.Table]
"""Rows `ledger_id, number, size_bytes` of the segments that the catalog registered of these ledgers, now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Both sides of a group of shards, each in any order, in the schemas of `facts`."""

    objects: pa.Table
    tiered: pa.Table
    ledgers: pa.Table
    copies: pa.Table
    intents: pa.Table
    segments_of: SegmentsOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a comparison: objects and rows that are left out, and ids that no ledger can have."""

    before_us: int  # an object counts if it is older, by the store's clock
    rows_before_us: int  # a row counts if it is older, by the catalog's clock
    next_ledger_id: int  # no ledger has this id or a higher one
    bucket: str  # the primary one
    listed: frozenset[str]  # tiered buckets that were listed
    endpoints: frozenset[str] = frozenset({""})  # by which offload contexts name their store


@dataclass(frozen=True, slots=True)
class Stored:
    """Objects of the primary bucket, ascending by ledger and number, and what each ledger of them sums up to."""

    ledger: Ids  # of each object
    number: npt.NDArray[np.int32]
    digest: npt.NDArray[np.uint64]
    size: Ids
    modified: Ids
    ids: Ids  # of each ledger
    start: npt.NDArray[np.intp]  # its first object
    newest: Ids
    objects: Ids
    total: Ids  # bytes

    @staticmethod
    def of(table: pa.Table) -> "Stored":
        """Objects in the schema `OBJECTS`, in any order; one that an inventory names twice counts once."""
        columns = [table[name].to_numpy() for name in ("ledger_id", "number", "digest", "size_bytes", "modified_us")]
        ledger, number, digest, size, modified = _once(*columns)
        ids, start, objects = np.unique(ledger, return_index=True, return_counts=True)
        if not len(ids):
            none = np.empty(0, np.int64)
            return Stored(ledger, number, digest, size, modified, ids, start, none, none, none)
        newest, total = np.maximum.reduceat(modified, start), np.add.reduceat(size, start)
        return Stored(ledger, number, digest, size, modified, ids, start, newest, objects.astype(np.int64), total)


def _once(ledger: Ids, number: Any, digest: Any, size: Ids, modified: Ids) -> tuple[Any, ...]:  # noqa: ANN401
    """Objects in order; of those with one key the newest, which is the careful choice."""
    order = np.lexsort((number, ledger))
    if ((np.diff(ledger[order]) == 0) & (np.diff(number[order]) == 0)).any():  # rare: hence the cheaper order first
        order = np.lexsort((modified, digest, number, ledger))
        key = [column[order] for column in (ledger, number, digest)]
        again = np.logical_and.reduce([column[1:] == column[:-1] for column in key])
        order = order[np.append(~again, True)]
    return tuple(column[order] for column in (ledger, number, digest, size, modified))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of ledgers, ascending; in the order of `LEDGERS`."""

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
    def of(table: pa.Table) -> "Rows":
        """Rows in the schema `LEDGERS`, in any order."""
        names = [name for name in LEDGERS.names if name != "list_id"]
        columns = [table[name].to_numpy() for name in names]
        order = np.argsort(columns[0])
        return Rows(*(column[order] for column in columns))


@dataclass(frozen=True, slots=True)
class Intents:
    """Intents that are not over: at work, or dead letters."""

    work: Ids  # ledgers whose primary copy is being deleted
    dead: Ids  # ledgers the deletion of whose primary copy is a dead letter
    tiered_work: frozenset[str]  # uuids
    tiered_dead: frozenset[str]
    unreadable: frozenset[int]  # ledgers with an intent for a tiered copy that does not say which

    @staticmethod
    def of(table: pa.Table) -> "Intents":
        """Rows in the schema `INTENTS`, in any order."""
        pending, primary = pc.equal(table["state"], "PENDING"), pc.equal(table["copy"], PRIMARY)
        mine = {
            (kind, state): table.filter(pc.and_(one, other))
            for kind, one in (("primary", primary), ("tiered", pc.invert(primary)))
            for state, other in (("work", pending), ("dead", pc.invert(pending)))
        }
        return Intents(
            mine["primary", "work"]["ledger_id"].to_numpy(),
            mine["primary", "dead"]["ledger_id"].to_numpy(),
            frozenset(mine["tiered", "work"]["uuid"].to_pylist()),
            frozenset(mine["tiered", "dead"]["uuid"].to_pylist()),
            frozenset(table.filter(pc.and_(pc.invert(primary), pc.equal(table["uuid"], "")))["ledger_id"].to_pylist()),
        )


def moments(number: Ids, size: Ids) -> Ids:
    """Terms of `facts.segment_moments` of objects, by their numbers and sizes."""
    place = number % sql.NUMBER_MODULUS + 1
    terms: Ids = place * place * (size % sql.SIZE_MODULUS)
    return terms


def find(among: Ids, wanted: Ids) -> tuple[npt.NDArray[np.intp], Mask]:
    """Where each of `wanted` is in the ascending `among`, and whether it is there."""
    if not len(among):
        return np.zeros(len(wanted), np.intp), np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return at, among[at] == wanted


def findings(kind: FindingKind, rows: int, **columns: Any) -> pa.Table:  # noqa: ANN401 - arrays, lists or one value
    """Rows of `SCHEMA`; a column that is one value is repeated, one that is not given is empty."""
    empty: dict[str, Any] = {"ledger_id": None, "row_id": None, "newest_us": None, "objects": 0, "size_bytes": 0}
    arrays = []
    for field in SCHEMA:
        value = kind.value if field.name == "kind" else columns.get(field.name, empty.get(field.name, ""))
        if isinstance(value, (str, int)) or value is None:
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
        else:
            arrays.append(
                (value if isinstance(value, (pa.Array, pa.ChunkedArray)) else pa.array(value, field.type)).cast(
                    field.type
                )
            )
    return pa.table(arrays, schema=SCHEMA)
