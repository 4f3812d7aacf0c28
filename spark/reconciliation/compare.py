"""The comparison of one group of shards: pure functions of Arrow tables, in numpy, set-wise.

Every ledger of the group is whole in both sides. What a function answers are candidates, as rows of the schema of
findings; storage and catalog are asked once more before a candidate becomes a finding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.log.ledgers import ledger_prefix, segment_key
from logstore.positions import LedgerId
from logstore.reconciliation.findings import FindingKind
from logstore.reconciliation.rules import Overlap
from spark.reconciliation.compare_tiered import compare_tiered, count_elsewhere, count_unmeasured, overlap
from spark.reconciliation.sides import (
    PRIMARY,
    Group,
    Ids,
    Intents,
    Limits,
    Mask,
    Rows,
    SegmentsOf,
    Stored,
    find,
    findings,
    moments,
)

_META: Final = -1
_LIVE: Final = 2
_LOST_COPIES: Final = "the rows of all of the ledger's copies are lost; repair the catalog by hand"
_LOST_SEGMENTS: Final = "rows of the ledger's segments are lost; repair the catalog by hand"
_NUMBERS: Final = 100_000_000  # of segments in a ledger


@dataclass(frozen=True, slots=True)
class Compared:
    """Candidates of a group, how its sides overlap, and how much of it was not compared."""

    candidates: pa.Table
    primary: Overlap
    tiered: Overlap
    elsewhere: int  # tiered copies that stand where nothing was listed
    unmeasured: int  # tiered copies that were listed, and whose offload context states no lengths
    young: int  # ledgers whose rows are too young
    expected: int  # ledgers of which a listing must show objects


def compare(group: Group, limits: Limits) -> Compared:
    """Candidates of one group."""
    intents = Intents.of(group.intents)
    stored, rows = Stored.of(group.objects), Rows.of(group.ledgers)
    at, known = find(rows.ids, stored.ids)
    has_copy = known & (rows.primary[at] > 0) if len(rows.ids) else known
    unreferenced = ~rows.referenced & ~rows.creating & (rows.created_us < limits.rows_before_us)
    without_copy = (rows.primary == 0) & ~np.isin(rows.ids, group.copies["ledger_id"].to_numpy())
    damaged = known & without_copy[at] if len(rows.ids) else known
    left = _left_over(stored, ~has_copy, damaged, intents, limits)
    held = _Held(stored=stored, rows=rows, at=at, which=has_copy, limits=limits)
    candidates = [
        left,
        *held.statements(),
        *held.segments(group.segments_of, skipped=unreferenced),
        _absent(stored, rows, limits, skipped=unreferenced),
        _without_rows(stored, rows, limits, without_copy & ~unreferenced, _LOST_COPIES),
        _without_rows(stored, rows, limits, rows.differs_from_segments & ~without_copy & ~unreferenced, _LOST_SEGMENTS),
        _unreferenced(rows, unreferenced),
        _stalled(group.intents, limits),
        *compare_tiered(group, intents, limits),
    ]
    return Compared(
        candidates=pa.concat_tables(candidates),
        primary=Overlap(stored=len(stored.ids), named=int((rows.primary > 0).sum()), matched=int(known.sum())),
        tiered=overlap(group, limits),
        elsewhere=count_elsewhere(group.copies, limits),
        unmeasured=count_unmeasured(group.copies, limits),
        young=int((rows.created_us >= limits.rows_before_us).sum()),
        expected=int(((rows.primary == _LIVE) & ~rows.creating & (rows.created_us < limits.rows_before_us)).sum()),
    )


def strange(table: pa.Table, limits: Limits) -> pa.Table:
    """Objects whose keys are none of ours: foreign, once they are old."""
    old = table.filter(pc.less(table["modified_us"], limits.before_us))
    columns = {"bucket": old["bucket"], "key": old["key"], "size_bytes": old["size_bytes"]}
    return findings(
        FindingKind.FOREIGN,
        len(old),
        **columns,
        newest_us=old["modified_us"],
        objects=1,
        detail="no ledger's object has such a key",
    )


def _left_over(stored: Stored, which: Mask, damaged: Mask, intents: Intents, limits: Limits) -> pa.Table:
    """Objects of ledgers that have no primary copy in the catalog; no orphans are those of `damaged` ledgers."""
    old = which & (stored.newest < limits.before_us) & ~np.isin(stored.ids, intents.work)
    dead = old & np.isin(stored.ids, intents.dead)
    future = old & ~dead & (stored.ids >= limits.next_ledger_id)
    return pa.concat_tables(
        [
            _ledgers(
                FindingKind.ORPHAN_LEDGER, stored, old & ~dead & ~future & ~damaged, limits, "no row names this copy"
            ),
            _ledgers(FindingKind.MISMATCH, stored, dead, limits, "its deletion is a dead letter"),
            _ledgers(FindingKind.MISMATCH, stored, future, limits, "this catalog never gave out such an id"),
        ]
    )


def _primary(
    kind: FindingKind, ledgers: Ids, keys: Sequence[str], limits: Limits, detail: str, **columns: Ids
) -> pa.Table:
    """Findings of the primary bucket, one for each ledger and key; `columns` are more of them, as arrays."""
    return findings(
        kind,
        len(keys),
        ledger_id=pa.array(ledgers),
        copy=PRIMARY,
        bucket=limits.bucket,
        key=list(keys),
        detail=detail,
        **{name: pa.array(values) for name, values in columns.items()},
    )


def _prefixes(ledgers: Ids) -> list[str]:
    return [ledger_prefix(LedgerId(one)) for one in ledgers.tolist()]


def _meta_keys(ledgers: Ids, digests: npt.NDArray[np.uint64]) -> list[str]:
    pairs = zip(_prefixes(ledgers), digests.tolist(), strict=True)
    return [f"{prefix}{digest:016x}.meta.json" for prefix, digest in pairs]


def _segment_keys(ledgers: Ids, numbers: Any) -> list[str]:  # noqa: ANN401 - of numpy
    return [segment_key(LedgerId(one), n) for one, n in zip(ledgers.tolist(), numbers.tolist(), strict=True)]


def _ledgers(kind: FindingKind, stored: Stored, which: Mask, limits: Limits, detail: str) -> pa.Table:
    ids, newest = stored.ids[which], stored.newest[which]
    sums = {"objects": stored.objects[which], "size_bytes": stored.total[which], "newest_us": newest}
    return _primary(kind, ids, _prefixes(ids), limits, detail, **sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Ledgers that have a primary copy, with its objects."""

    stored: Stored
    rows: Rows
    at: npt.NDArray[np.intp]  # of each stored ledger its row
    which: Mask  # of stored ledgers
    limits: Limits

    def statements(self) -> list[pa.Table]:
        """Statements that name another owner than the row, and ledgers that have lost theirs."""
        s, rows, limits = self.stored, self.rows, self.limits
        if not self.which.any():
            return []
        of_object = np.repeat(self.at, s.objects)
        # of a ledger whose owner the catalog cannot tell no statement is another's, and none is lost
        held = np.repeat(self.which & (rows.digest[self.at] != 0), s.objects)
        other = held & (s.number == _META) & (s.digest != rows.digest[of_object]) & (s.modified < limits.before_us)
        ours = held & (s.number == _META) & (s.digest == rows.digest[of_object])
        has_own = np.logical_or.reduceat(ours, s.start)
        lost = self.which & ~has_own & ~rows.creating[self.at] & (rows.created_us[self.at] < limits.rows_before_us)
        lost &= (rows.primary[self.at] == _LIVE) & (rows.digest[self.at] != 0)
        keys = _meta_keys(s.ledger[other], s.digest[other])
        mine = _meta_keys(s.ids[lost], rows.digest[self.at[lost]])
        return [
            self._objects(FindingKind.MISMATCH, other, keys, "the statement names another owner than the row"),
            _primary(FindingKind.MISSING_DATA, s.ids[lost], mine, limits, "the ledger's own statement is absent"),
        ]

    def _objects(self, kind: FindingKind, which: Mask, keys: Sequence[str], detail: str) -> pa.Table:
        s, one = self.stored, np.ones(len(keys), np.int64)
        facts = {"objects": one, "size_bytes": s.size[which], "newest_us": s.modified[which]}
        return _primary(kind, s.ledger[which], keys, self.limits, detail, **facts)

    def segments(self, segments_of: SegmentsOf, *, skipped: Mask) -> list[pa.Table]:
        """Segments compared one by one, of those ledgers alone whose sums differ from the rows'."""
        s, rows = self.stored, self.rows
        if not self.which.any():
            return []
        is_segment = s.number != _META
        count = np.add.reduceat(is_segment.astype(np.int64), s.start)
        size = np.add.reduceat(np.where(is_segment, s.size, 0), s.start)
        last = np.maximum.reduceat(s.number.astype(np.int64), s.start)
        row = self.at
        same = (count == rows.segments[row]) & (rows.segments[row] == rows.last_segment[row] + 1)
        same &= (size == rows.size[row]) & (last == rows.last_segment[row])
        moment = np.add.reduceat(np.where(is_segment, moments(s.number.astype(np.int64), s.size), 0), s.start)
        same &= ((rows.moment[row] < 0) | (moment == rows.moment[row])) & ~rows.differs_from_segments[row]
        closer = self.which & ~same & ~skipped[row]
        return self._compare_closer(np.flatnonzero(closer), segments_of) if closer.any() else []

    def _compare_closer(self, ledgers: Any, segments_of: SegmentsOf) -> list[pa.Table]:  # noqa: ANN401 - of numpy
        s, limits = self.stored, self.limits
        ids = s.ids[ledgers]
        named = segments_of(ids)
        mine = np.isin(s.ledger, ids) & (s.number != _META)
        objects = np.searchsorted(ids, s.ledger[mine]) * _NUMBERS + s.number[mine]
        wanted_ledger = named["ledger_id"].to_numpy()
        wanted = np.searchsorted(ids, wanted_ledger) * _NUMBERS + named["number"].to_numpy()
        order = np.argsort(wanted)
        wanted, wanted_size = wanted[order], named["size_bytes"].to_numpy()[order]
        at, known = find(wanted, objects)
        orphan = np.zeros(len(s.ledger), np.bool_)
        orphan[np.flatnonzero(mine)[~known & (s.modified[mine] < limits.before_us)]] = True
        keys = _segment_keys(s.ledger[orphan], s.number[orphan])
        found = [self._objects(FindingKind.ORPHAN_SEGMENT, orphan, keys, "no segment's row names this object")]
        sizes = wanted_size[at] if len(wanted) else np.zeros(len(objects), np.int64)
        old = self.rows.created_us[self.at[ledgers]] < limits.rows_before_us
        shorter = known & (s.size[mine] < sizes) & old[objects // _NUMBERS]
        longer = known & (s.size[mine] > sizes) & (s.modified[mine] < limits.before_us)
        for kind, odd, detail in (
            (FindingKind.MISSING_DATA, shorter, "the object is shorter than its row says"),
            (FindingKind.MISMATCH, longer, "the object is longer than its row says"),
        ):
            which = np.zeros(len(s.ledger), np.bool_)
            which[np.flatnonzero(mine)[odd]] = True
            found.append(self._objects(kind, which, _segment_keys(s.ledger[which], s.number[which]), detail))
        _, there = find(np.sort(objects), wanted)
        lost = ~there & old[wanted // _NUMBERS] if len(wanted) else ~there
        absent, detail = ids[wanted[lost] // _NUMBERS], "the segment's row names an object that is absent"
        keys = _segment_keys(absent, wanted[lost] % _NUMBERS)
        return [
            *found,
            _primary(FindingKind.MISSING_DATA, absent, keys, limits, detail, size_bytes=wanted_size[lost]),
        ]


def _absent(stored: Stored, rows: Rows, limits: Limits, *, skipped: Mask) -> pa.Table:
    """Live ledgers of which the listing shows nothing."""
    _, there = find(stored.ids, rows.ids)
    lost = ~there & ~rows.creating & (rows.primary == _LIVE) & (rows.created_us < limits.rows_before_us) & ~skipped
    ids, detail = rows.ids[lost], "nothing of the ledger is in storage"
    return _primary(FindingKind.MISSING_DATA, ids, _prefixes(ids), limits, detail, size_bytes=rows.size[lost])


def _without_rows(stored: Stored, rows: Rows, limits: Limits, which: Mask, detail: str) -> pa.Table:
    """Ledgers in use of which the catalog has lost rows of copies or of segments, with what storage holds of them."""
    lost = which & ~rows.creating & (rows.created_us < limits.rows_before_us)
    ids = rows.ids[lost]
    at, there = find(stored.ids, ids)
    objects = np.where(there, stored.objects[at], 0) if len(stored.ids) else np.zeros(len(ids), np.int64)
    return findings(
        FindingKind.MISSING_DATA,
        len(ids),
        ledger_id=pa.array(ids),
        objects=pa.array(objects),
        size_bytes=pa.array(rows.size[lost]),
        detail=detail,
    )


def _unreferenced(rows: Rows, which: Mask) -> pa.Table:
    return findings(
        FindingKind.UNREFERENCED_LEDGER,
        int(which.sum()),
        ledger_id=pa.array(rows.ids[which]),
        size_bytes=pa.array(rows.size[which]),
        detail="no list, cursor or schema names the row",
    )


def _stalled(intents: pa.Table, limits: Limits) -> pa.Table:
    old = intents.filter(pc.and_(intents["stalled"], pc.less(intents["created_us"], limits.rows_before_us)))
    return findings(
        FindingKind.STALLED_DELETION,
        len(old),
        ledger_id=old["ledger_id"],
        row_id=old["row_id"],
        topic=old["topic"],
        uuid=old["uuid"],
        size_bytes=old["size_bytes"],
        detail="no workflow works on the deletion",
    )
