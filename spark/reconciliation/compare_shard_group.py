"""Comparison of one group of shards, by pure functions of Arrow tables that compute with numpy.

The results are candidates, in the schema of findings. `verify-findings` checks each candidate again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.catalog.reconciliation.bulk_queries import NUMBER_MODULUS, SIZE_MODULUS
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId
from logstore.reconciliation.finding_files import FINDING_SCHEMA
from logstore.reconciliation.findings import FindingKind
from logstore.reconciliation.plausibility_guards import CopyOverlap
from spark.reconciliation.fact_files import LEDGERS, YOUNG
from spark.sources.bucket_listings import META

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


_PARTS: Final = ("data", "index")
_UNREADABLE: Final = "an offload context of its ledger cannot be read, and may name it"
_REFUSED: Final = "its deletion is a dead letter, or this catalog never gave out its id"
_LOST_LEDGER: Final = "the ledger's row is lost; repair the catalog by hand"

Row = Mapping[str, Any]


def compare_tiered_copies(group: ShardGroup, intents: IntentIds, limits: ComparisonLimits) -> list[pa.Table]:
    """Find tiered objects without an offload context, and contexts whose objects are absent or have another length.

    An unreadable context of a ledger may name any tiered object of the ledger. None of them is then an orphan.
    """
    copies = group.copies
    unreadable = intents.unreadable | set(copies.filter(pc.equal(copies["uuid"], ""))["ledger_id"].to_pylist())
    named_copies = set(zip(copies["ledger_id"].to_pylist(), copies["uuid"].to_pylist(), strict=True))
    aggregates = [
        ("size_bytes", "sum"),
        ("modified_us", "max"),
        ("part", "list"),
        ("size_bytes", "list"),
        ("modified_us", "list"),
    ]
    pairs = group.tiered.group_by(["ledger_id", "bucket", "uuid"]).aggregate(aggregates).to_pylist()
    unnamed = [
        pair
        for pair in pairs
        if (pair["ledger_id"], pair["uuid"]) not in named_copies
        and pair["modified_us_max"] < limits.before_us
        and pair["uuid"] not in intents.tiered_pending
    ]
    doubtful = [pair for pair in unnamed if pair["ledger_id"] in unreadable]
    readable = [pair for pair in unnamed if pair["ledger_id"] not in unreadable]
    is_refused = [
        pair["uuid"] in intents.tiered_dead or pair["ledger_id"] >= limits.next_ledger_id for pair in readable
    ]
    orphans = [pair for pair, refused in zip(readable, is_refused, strict=True) if not refused]
    refused_pairs = [pair for pair, refused in zip(readable, is_refused, strict=True) if refused]
    parts_by_copy = {(pair["ledger_id"], pair["uuid"]): set(pair["part_list"]) for pair in pairs}
    lost_ledgers = pc.unique(copies.filter(pc.is_null(copies["created_us"]))["ledger_id"])
    return [
        _make_copy_findings(orphans, FindingKind.ORPHAN_OFFLOAD, "no context names it"),
        _make_copy_findings(refused_pairs, FindingKind.MISMATCH, _REFUSED),
        _make_copy_findings(doubtful, FindingKind.MISMATCH, _UNREADABLE),
        make_finding_rows(FindingKind.MISSING_DATA, len(lost_ledgers), ledger_id=lost_ledgers, detail=_LOST_LEDGER),
        _find_absent_objects(copies, parts_by_copy, limits),
        *_find_changed_lengths(copies, pairs, limits),
    ]


def _make_copy_findings(pairs: Sequence[Row], kind: FindingKind, detail: str) -> pa.Table:
    """Return one finding for each attempt to offload. Its column `objects` does not count unfinished uploads."""
    return make_finding_rows(
        kind,
        len(pairs),
        ledger_id=[pair["ledger_id"] for pair in pairs],
        copy=TIERED,
        bucket=[pair["bucket"] for pair in pairs],
        key=[f"{pair['uuid']}-ledger-{pair['ledger_id']}" for pair in pairs],
        uuid=[pair["uuid"] for pair in pairs],
        objects=[sum(part != "upload" for part in pair["part_list"]) for pair in pairs],
        size_bytes=[pair["size_bytes_sum"] for pair in pairs],
        newest_us=[pair["modified_us_max"] for pair in pairs],
        detail=[
            f"an unfinished upload: {detail}" if set(pair["part_list"]) == {"upload"} else detail for pair in pairs
        ],
    )


def _find_absent_objects(
    copies: pa.Table, parts_by_copy: Mapping[tuple[int, str], set[str]], limits: ComparisonLimits
) -> pa.Table:
    lost = [
        (copy, part)
        for copy in _select_comparable_copies(copies, limits)
        for part in _PARTS
        if part not in parts_by_copy.get((copy["ledger_id"], copy["uuid"]), ())
    ]
    return make_finding_rows(
        FindingKind.MISSING_DATA,
        len(lost),
        ledger_id=[copy["ledger_id"] for copy, _ in lost],
        copy=TIERED,
        bucket=[copy["bucket"] for copy, _ in lost],
        key=[_object_key(copy, part) for copy, part in lost],
        uuid=[copy["uuid"] for copy, _ in lost],
        size_bytes=[copy["size_bytes"] or 0 for copy, _ in lost],
        detail="the offload context names an object that is absent",
    )


def _find_changed_lengths(copies: pa.Table, pairs: Sequence[Row], limits: ComparisonLimits) -> Iterator[pa.Table]:
    """Find objects of LIVE copies with another length than the offload context states. Skip contexts without lengths.

    A longer object is reported only if it is old.
    """
    stored = {
        (pair["ledger_id"], pair["bucket"], pair["uuid"], part): (size, modified_us)
        for pair in pairs
        for part, size, modified_us in zip(
            pair["part_list"], pair["size_bytes_list"], pair["modified_us_list"], strict=True
        )
    }
    shorter: list[tuple[Row, str, int, int]] = []
    longer: list[tuple[Row, str, int, int]] = []
    for copy in _select_comparable_copies(copies, limits):
        for part in _PARTS:
            stated_length = copy[f"{part}_bytes"]
            stored_object = stored.get((copy["ledger_id"], copy["bucket"], copy["uuid"], part))
            if stated_length is None or stored_object is None:
                continue
            size, modified_us = stored_object
            if size < stated_length:
                shorter.append((copy, part, size, stated_length))
            elif size > stated_length and modified_us < limits.before_us:
                longer.append((copy, part, size, stated_length))
    for kind, word, changed in (
        (FindingKind.MISSING_DATA, "shorter", shorter),
        (FindingKind.MISMATCH, "longer", longer),
    ):
        yield make_finding_rows(
            kind,
            len(changed),
            ledger_id=[copy["ledger_id"] for copy, *_ in changed],
            copy=TIERED,
            bucket=[copy["bucket"] for copy, *_ in changed],
            key=[_object_key(copy, part) for copy, part, *_ in changed],
            uuid=[copy["uuid"] for copy, *_ in changed],
            objects=1,
            size_bytes=[size for _, _, size, _ in changed],
            detail=[
                f"the object is {word} than its offload context says: expected {stated_length:,} bytes, found {size:,}"
                for _, _, size, stated_length in changed
            ],
        )


def _select_comparable_copies(copies: pa.Table, limits: ComparisonLimits) -> list[dict[str, Any]]:
    return [
        copy
        for copy in copies.filter(pc.equal(copies["state"], "LIVE")).to_pylist()
        if _is_listed(copy, limits) and copy["uuid"] and (copy["created_us"] or YOUNG) < limits.rows_before_us
    ]


def _object_key(copy: Row, part: str) -> str:
    return f"{copy['uuid']}-ledger-{copy['ledger_id']}{'-index' if part == 'index' else ''}"


def count_copies_without_lengths(copies: pa.Table, limits: ComparisonLimits) -> int:
    """Count listed copies whose contexts state no lengths. Only the existence of such a copy is compared."""
    return sum(copy["data_bytes"] is None for copy in _select_comparable_copies(copies, limits))


def count_tiered_overlap(group: ShardGroup, limits: ComparisonLimits) -> CopyOverlap:
    """Count tiered copies in storage, in the catalog, and in both. Unfinished uploads do not count as copies."""
    objects = group.tiered.filter(pc.not_equal(group.tiered["part"], "upload"))
    stored = set(zip(objects["ledger_id"].to_pylist(), objects["uuid"].to_pylist(), strict=True))
    copies = [copy for copy in group.copies.to_pylist() if copy["uuid"]]
    named_count = sum(copy["state"] == "LIVE" and _is_listed(copy, limits) for copy in copies)
    matched = stored & {(copy["ledger_id"], copy["uuid"]) for copy in copies}
    return CopyOverlap(stored=len(stored), named=named_count, matched=len(matched))


def count_copies_in_unlisted_buckets(copies: pa.Table, limits: ComparisonLimits) -> int:
    return sum(not _is_listed(copy, limits) for copy in copies.select(["bucket", "endpoint"]).to_pylist())


def _is_listed(copy: Row, limits: ComparisonLimits) -> bool:
    return copy["bucket"] in limits.tiered_buckets and copy["endpoint"].rstrip("/") in limits.endpoints


_LIVE: Final = 2  # in the column `primary`
_LOST_COPIES: Final = "the rows of all of the ledger's copies are lost; repair the catalog by hand"
_LOST_SEGMENTS: Final = "rows of the ledger's segments are lost; repair the catalog by hand"
_MAX_SEGMENTS_PER_LEDGER: Final = 100_000_000  # a segment's number has eight digits


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """Result of the comparison of one group of shards: candidates for findings, and counts of copies and ledgers.

    `primary` and `tiered` count the copies in storage, in the catalog, and in both.
    """

    candidates: pa.Table
    primary: CopyOverlap
    tiered: CopyOverlap
    elsewhere: int  # tiered copies in buckets that were not listed
    unmeasured: int  # tiered copies in listed buckets whose offload context states no lengths
    young: int  # ledgers whose rows are too young
    expected: int  # ledgers of which a listing must show objects


def compare_shard_group(group: ShardGroup, limits: ComparisonLimits) -> GroupComparison:
    intents = IntentIds.from_table(group.intents)
    stored, rows = StoredLedgerObjects.from_table(group.objects), LedgerRowColumns.from_table(group.ledgers)
    row_index, has_row = find_positions(rows.ids, stored.ids)
    has_copy = has_row & (rows.primary[row_index] > 0) if len(rows.ids) else has_row
    is_old = rows.created_us < limits.rows_before_us
    unreferenced = ~rows.referenced & ~rows.creating & is_old
    without_copy = (rows.primary == 0) & ~np.isin(rows.ids, group.copies["ledger_id"].to_numpy())
    is_damaged = has_row & without_copy[row_index] if len(rows.ids) else has_row
    copies = _StoredPrimaryCopies(stored=stored, rows=rows, row_index=row_index, has_copy=has_copy, limits=limits)
    candidates = [
        _find_leftover_ledgers(stored, ~has_copy, is_damaged, intents, limits),
        *copies.compare_statements(),
        *copies.compare_segments(group.read_segments, skipped=unreferenced),
        _find_absent_ledgers(stored, rows, limits, skipped=unreferenced),
        _make_lost_row_findings(stored, rows, limits, without_copy & ~unreferenced, _LOST_COPIES),
        _make_lost_row_findings(
            stored, rows, limits, rows.differs_from_segments & ~without_copy & ~unreferenced, _LOST_SEGMENTS
        ),
        make_finding_rows(
            FindingKind.UNREFERENCED_LEDGER,
            int(unreferenced.sum()),
            ledger_id=pa.array(rows.ids[unreferenced]),
            size_bytes=pa.array(rows.size[unreferenced]),
            detail="no list, cursor or schema names the row",
        ),
        _find_stalled_deletions(group.intents, limits),
        *compare_tiered_copies(group, intents, limits),
    ]
    return GroupComparison(
        candidates=pa.concat_tables(candidates),
        primary=CopyOverlap(stored=len(stored.ids), named=int((rows.primary > 0).sum()), matched=int(has_row.sum())),
        tiered=count_tiered_overlap(group, limits),
        elsewhere=count_copies_in_unlisted_buckets(group.copies, limits),
        unmeasured=count_copies_without_lengths(group.copies, limits),
        young=int((~is_old).sum()),
        expected=int(((rows.primary == _LIVE) & ~rows.creating & is_old).sum()),
    )


def find_foreign_objects(table: pa.Table, limits: ComparisonLimits) -> pa.Table:
    """Return a FOREIGN finding for each old object of `table`. No key in `table` can be a key of a ledger."""
    old = table.filter(pc.less(table["modified_us"], limits.before_us))
    columns = {"bucket": old["bucket"], "key": old["key"], "size_bytes": old["size_bytes"]}
    return make_finding_rows(
        FindingKind.FOREIGN,
        len(old),
        **columns,
        newest_us=old["modified_us"],
        objects=1,
        detail="no ledger's object has such a key",
    )


def _find_leftover_ledgers(
    stored: StoredLedgerObjects, without_copy: Mask, is_damaged: Mask, intents: IntentIds, limits: ComparisonLimits
) -> pa.Table:
    """Find ledgers that have objects but no primary copy in the catalog. Ledgers in `is_damaged` are not orphans."""
    old = without_copy & (stored.newest < limits.before_us) & ~np.isin(stored.ids, intents.pending)
    dead = old & np.isin(stored.ids, intents.dead)
    future = old & ~dead & (stored.ids >= limits.next_ledger_id)
    orphans = old & ~dead & ~future & ~is_damaged
    return pa.concat_tables(
        [
            _make_ledger_findings(FindingKind.ORPHAN_LEDGER, stored, orphans, limits, "no row names this copy"),
            _make_ledger_findings(FindingKind.MISMATCH, stored, dead, limits, "its deletion is a dead letter"),
            _make_ledger_findings(
                FindingKind.MISMATCH, stored, future, limits, "this catalog never gave out such an id"
            ),
        ]
    )


def _make_primary_findings(
    kind: FindingKind, ledgers: Ids, keys: Sequence[str], limits: ComparisonLimits, detail: str, **columns: Ids
) -> pa.Table:
    return make_finding_rows(
        kind,
        len(keys),
        ledger_id=pa.array(ledgers),
        copy=PRIMARY,
        bucket=limits.bucket,
        key=list(keys),
        detail=detail,
        **{name: pa.array(values) for name, values in columns.items()},
    )


def _make_ledger_findings(
    kind: FindingKind, stored: StoredLedgerObjects, selected: Mask, limits: ComparisonLimits, detail: str
) -> pa.Table:
    ids = stored.ids[selected]
    sums = {
        "objects": stored.objects[selected],
        "size_bytes": stored.total[selected],
        "newest_us": stored.newest[selected],
    }
    return _make_primary_findings(kind, ids, _ledger_prefixes(ids), limits, detail, **sums)


def _ledger_prefixes(ledgers: Ids) -> list[str]:
    return [ledger_prefix(LedgerId(ledger_id)) for ledger_id in ledgers.tolist()]


def _meta_keys(ledgers: Ids, digests: npt.NDArray[np.uint64]) -> list[str]:
    pairs = zip(_ledger_prefixes(ledgers), digests.tolist(), strict=True)
    return [f"{prefix}{digest:016x}.meta.json" for prefix, digest in pairs]


def _segment_keys(ledgers: Ids, numbers: Any) -> list[str]:  # noqa: ANN401 - of numpy
    pairs = zip(ledgers.tolist(), numbers.tolist(), strict=True)
    return [segment_key(LedgerId(ledger_id), number) for ledger_id, number in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredPrimaryCopies:
    stored: StoredLedgerObjects
    rows: LedgerRowColumns
    row_index: npt.NDArray[np.intp]  # row of each stored ledger
    has_copy: Mask  # by stored ledger
    limits: ComparisonLimits

    def compare_statements(self) -> list[pa.Table]:
        stored, rows, row_index, limits = self.stored, self.rows, self.row_index, self.limits
        if not self.has_copy.any():
            return []
        object_row = np.repeat(row_index, stored.objects)
        # If the catalog does not know the ledger owner, the statements of the ledger cannot be checked.
        is_checked = np.repeat(self.has_copy & (rows.digest[row_index] != 0), stored.objects)
        is_meta = is_checked & (stored.number == META)
        is_own = is_meta & (stored.digest == rows.digest[object_row])
        is_other = is_meta & ~is_own & (stored.modified < limits.before_us)
        has_own = np.logical_or.reduceat(is_own, stored.start)
        is_comparable = ~rows.creating[row_index] & (rows.created_us[row_index] < limits.rows_before_us)
        lost = self.has_copy & ~has_own & is_comparable
        lost &= (rows.primary[row_index] == _LIVE) & (rows.digest[row_index] != 0)
        other_keys = _meta_keys(stored.ledger[is_other], stored.digest[is_other])
        own_keys = _meta_keys(stored.ids[lost], rows.digest[row_index[lost]])
        absent = "the ledger's own statement is absent"
        return [
            self._make_object_findings(
                FindingKind.MISMATCH, is_other, other_keys, "the statement names another owner than the row"
            ),
            _make_primary_findings(FindingKind.MISSING_DATA, stored.ids[lost], own_keys, limits, absent),
        ]

    def _make_object_findings(self, kind: FindingKind, selected: Mask, keys: Sequence[str], detail: str) -> pa.Table:
        stored = self.stored
        columns = {
            "objects": np.ones(len(keys), np.int64),
            "size_bytes": stored.size[selected],
            "newest_us": stored.modified[selected],
        }
        return _make_primary_findings(kind, stored.ledger[selected], keys, self.limits, detail, **columns)

    def compare_segments(self, read_segments: ReadSegments, *, skipped: Mask) -> list[pa.Table]:
        """Compare the sums over each ledger's segments. If the sums differ, compare the segments one by one.

        Only lengths are compared, because a listing shows no digest (ADR 29).
        """
        stored, rows, row = self.stored, self.rows, self.row_index
        if not self.has_copy.any():
            return []
        is_segment = stored.number != META
        numbers = stored.number.astype(np.int64)
        count = np.add.reduceat(is_segment.astype(np.int64), stored.start)
        size = np.add.reduceat(np.where(is_segment, stored.size, 0), stored.start)
        last = np.maximum.reduceat(numbers, stored.start)
        moment = np.add.reduceat(np.where(is_segment, weighted_segment_terms(numbers, stored.size), 0), stored.start)
        is_same = (count == rows.segments[row]) & (rows.segments[row] == rows.last_segment[row] + 1)
        is_same &= (size == rows.size[row]) & (last == rows.last_segment[row])
        is_same &= ((rows.moment[row] < 0) | (moment == rows.moment[row])) & ~rows.differs_from_segments[row]
        different = np.flatnonzero(self.has_copy & ~is_same & ~skipped[row])
        return self._compare_each_segment(different, read_segments) if len(different) else []

    def _compare_each_segment(self, ledgers: Any, read_segments: ReadSegments) -> list[pa.Table]:  # noqa: ANN401 - of numpy
        stored, limits = self.stored, self.limits
        ids = stored.ids[ledgers]
        named = read_segments(ids)
        objects = np.flatnonzero(np.isin(stored.ledger, ids) & (stored.number != META))
        # One number stands for each segment. Numbers ascend by the ledger's index in `ids`, then by segment number.
        stored_numbers = self._combine_place_and_number(
            np.searchsorted(ids, stored.ledger[objects]), stored.number[objects]
        )
        named_numbers = self._combine_place_and_number(
            np.searchsorted(ids, named["ledger_id"].to_numpy()), named["number"].to_numpy()
        )
        order = np.argsort(named_numbers)
        named_numbers, named_sizes = named_numbers[order], named["size_bytes"].to_numpy()[order]
        named_index, is_named = find_positions(named_numbers, stored_numbers)
        expected_sizes = named_sizes[named_index] if len(named_numbers) else np.zeros(len(objects), np.int64)
        sizes, is_old_object = stored.size[objects], stored.modified[objects] < limits.before_us
        is_old_row = self.rows.created_us[self.row_index[ledgers]] < limits.rows_before_us
        shorter = is_named & (sizes < expected_sizes) & is_old_row[stored_numbers // _MAX_SEGMENTS_PER_LEDGER]
        longer = is_named & (sizes > expected_sizes) & is_old_object
        tables = []
        for kind, is_odd, detail in (
            (FindingKind.ORPHAN_SEGMENT, ~is_named & is_old_object, "no segment's row names this object"),
            (FindingKind.MISSING_DATA, shorter, "the object is shorter than its row says"),
            (FindingKind.MISMATCH, longer, "the object is longer than its row says"),
        ):
            selected = np.zeros(len(stored.ledger), np.bool_)
            selected[objects[is_odd]] = True
            keys = _segment_keys(stored.ledger[selected], stored.number[selected])
            tables.append(self._make_object_findings(kind, selected, keys, detail))
        _, is_stored = find_positions(np.sort(stored_numbers), named_numbers)
        lost = ~is_stored & is_old_row[named_numbers // _MAX_SEGMENTS_PER_LEDGER] if len(named_numbers) else ~is_stored
        lost_ledgers = ids[named_numbers[lost] // _MAX_SEGMENTS_PER_LEDGER]
        keys = _segment_keys(lost_ledgers, named_numbers[lost] % _MAX_SEGMENTS_PER_LEDGER)
        detail = "the segment's row names an object that is absent"
        lost_findings = _make_primary_findings(
            FindingKind.MISSING_DATA, lost_ledgers, keys, limits, detail, size_bytes=named_sizes[lost]
        )
        return [*tables, lost_findings]

    @staticmethod
    def _combine_place_and_number(places: Any, numbers: Any) -> Any:  # noqa: ANN401 - of numpy
        return places * _MAX_SEGMENTS_PER_LEDGER + numbers


def _find_absent_ledgers(
    stored: StoredLedgerObjects, rows: LedgerRowColumns, limits: ComparisonLimits, *, skipped: Mask
) -> pa.Table:
    _, is_stored = find_positions(stored.ids, rows.ids)
    is_comparable = ~rows.creating & (rows.created_us < limits.rows_before_us)
    lost = ~is_stored & is_comparable & (rows.primary == _LIVE) & ~skipped
    ids, detail = rows.ids[lost], "nothing of the ledger is in storage"
    return _make_primary_findings(
        FindingKind.MISSING_DATA, ids, _ledger_prefixes(ids), limits, detail, size_bytes=rows.size[lost]
    )


def _make_lost_row_findings(
    stored: StoredLedgerObjects, rows: LedgerRowColumns, limits: ComparisonLimits, is_damaged: Mask, detail: str
) -> pa.Table:
    lost = is_damaged & ~rows.creating & (rows.created_us < limits.rows_before_us)
    ids = rows.ids[lost]
    stored_index, is_stored = find_positions(stored.ids, ids)
    none = np.zeros(len(ids), np.int64)
    objects = np.where(is_stored, stored.objects[stored_index], 0) if len(stored.ids) else none
    return make_finding_rows(
        FindingKind.MISSING_DATA,
        len(ids),
        ledger_id=pa.array(ids),
        objects=pa.array(objects),
        size_bytes=pa.array(rows.size[lost]),
        detail=detail,
    )


def _find_stalled_deletions(intents: pa.Table, limits: ComparisonLimits) -> pa.Table:
    old = intents.filter(pc.and_(intents["stalled"], pc.less(intents["created_us"], limits.rows_before_us)))
    return make_finding_rows(
        FindingKind.STALLED_DELETION,
        len(old),
        ledger_id=old["ledger_id"],
        row_id=old["row_id"],
        topic=old["topic"],
        uuid=old["uuid"],
        size_bytes=old["size_bytes"],
        detail="no workflow works on the deletion",
    )
