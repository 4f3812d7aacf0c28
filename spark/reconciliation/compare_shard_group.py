"""Comparison of one group of shards, by pure functions of Arrow tables that compute with numpy.

The results are candidates, in the schema of findings. `verify-findings` checks each candidate again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.positions import LedgerId
from logstore.reconciliation.findings import FindingKind
from logstore.reconciliation.plausibility_guards import CopyOverlap
from spark.reconciliation.compare_tiered_copies import (
    compare_tiered_copies,
    count_copies_in_unlisted_buckets,
    count_copies_without_lengths,
    count_tiered_overlap,
)
from spark.reconciliation.shard_group import (
    PRIMARY,
    ComparisonLimits,
    Ids,
    IntentIds,
    LedgerRowColumns,
    Mask,
    ReadSegments,
    ShardGroup,
    StoredLedgerObjects,
    find_positions,
    make_finding_rows,
    weighted_segment_terms,
)
from spark.sources.object_key_parser import META

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
