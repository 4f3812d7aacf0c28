"""The newest version of each record, compared with a dict of Python."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.records.manifest import Block
from logstore.records.newest_versions import (
    KEY_COLUMNS,
    VersionsRankedByRecord,
    mask_ids_with_content,
    overlapping_blocks,
    read_versions_by_id_range,
    select_newest_versions,
    split_into_id_ranges,
)
from logstore.records.record_kinds import RecordKind
from tests.logstore.records.versions import table, version

_IDS = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 7, 2**40, 2**63 - 1]) | st.integers(0, 12)
_NUMBERS = st.integers(0, 6) | st.sampled_from([2**62, 2**63 - 1])
_ROWS = st.lists(
    st.builds(
        version,
        _IDS,
        _NUMBERS,
        sub=st.sampled_from(["", "0", "10", "9", "ü"]),
        epoch=st.sampled_from([1, 2, 3, 2**60]),
        tombstone=st.booleans(),
    ),
    max_size=40,
    unique_by=lambda row: (row["id"], row["sub"], row["epoch"], row["version"]),
)


def _expected(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    best: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        key = row["id"], row["sub"]
        if key not in best or (row["epoch"], row["version"]) > (best[key]["epoch"], best[key]["version"]):
            best[key] = row
    return [{name: best[key][name] for name in KEY_COLUMNS} for key in sorted(best)]


def _parts(rows: Sequence[dict[str, Any]], cuts: Sequence[int]) -> list[pa.Table]:
    edges = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    pairs = pairwise(edges)
    return [table(RecordKind.SEGMENT, rows[start:end]) for start, end in pairs]


@settings(max_examples=300, deadline=None)
@given(_ROWS, st.lists(st.integers(0, 40), max_size=3))
def test_winners_are_the_newest_by_epoch_and_version(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    """However the versions are spread over tables, and whatever the clocks of those that wrote them said."""
    found = select_newest_versions([part.select(KEY_COLUMNS) for part in _parts(rows, cuts)])
    assert found.to_pylist() == _expected(rows)


@settings(max_examples=100, deadline=None)
@given(_ROWS)
def test_rows_are_numbered_by_record(rows: list[dict[str, Any]]) -> None:
    """Equal numbers mean one record, and numbers ascend by id and sub."""
    whole = table(RecordKind.SEGMENT, rows)
    keys = list(zip(whole.column("id").to_pylist(), whole.column("sub").to_pylist(), strict=True))
    numbers = {key: at for at, key in enumerate(sorted(set(keys)))}
    assert VersionsRankedByRecord(whole).record_numbers.tolist() == [numbers[key] for key in keys]


def test_equal_versions_count_once() -> None:
    """A flush that died behind its manifest is flushed again: such versions are equal."""
    whole = pa.concat_tables([table(RecordKind.LEDGER, [version(1, 4), version(2, 4)])] * 2)
    assert select_newest_versions(whole).column("id").to_pylist() == [1, 2]


def test_a_tombstone_wins_and_is_kept() -> None:
    """A cold start keeps it even where it covers nothing: objects of its ledger may still be in storage."""
    rows = [version(1, 4), version(1, 5, tombstone=True), version(2, 9, tombstone=True)]
    assert select_newest_versions(table(RecordKind.LEDGER, rows)).column("tombstone").to_pylist() == [True, True]


@settings(max_examples=100, deadline=None)
@given(_ROWS, st.sets(_IDS))
def test_a_tombstone_covers_what_has_a_version_with_content(rows: list[dict[str, Any]], asked: set[int]) -> None:
    """Versions that are tombstones themselves are nothing to be covered."""
    ids = np.array(sorted(asked), dtype=np.int64)
    alive = {row["id"] for row in rows if not row["tombstone"]}
    assert mask_ids_with_content(ids, table(RecordKind.LEDGER, rows)).tolist() == [
        one in alive for one in sorted(asked)
    ]


def _block(name: int, first: int, last: int, records: int) -> Block:
    return Block(
        block_id=str(name),
        kind=RecordKind.LEDGER,
        records=records,
        tombstones=0,
        size_bytes=1,
        sha256="",
        first_id=first,
        last_id=last,
    )


_BLOCKS = st.lists(
    st.tuples(st.integers(-50, 200), st.integers(0, 100), st.integers(1, 500)).map(
        lambda of: (of[0], of[0] + of[1], of[2])
    ),
    max_size=12,
).map(lambda of: [_block(at, *facts) for at, facts in enumerate(of)])


@settings(max_examples=300, deadline=None)
@given(_BLOCKS, st.integers(1, 400))
def test_ranges_cover_all_ids_once(blocks: list[Block], versions: int) -> None:
    """So no record is in two of them, and none is left out."""
    found = split_into_id_ranges(blocks, versions_per_range=versions)
    covered_ids = [one for first, last in found for one in range(first, last + 1)]
    assert covered_ids == sorted(set(covered_ids))
    assert {one for block in blocks for one in range(block.first_id, block.last_id + 1)} <= set(covered_ids)
    densest = sum(one.records / (one.last_id - one.first_id + 1) for one in blocks)
    for ids in found:
        held = sum(
            one.records * (min(one.last_id, ids[1]) - max(one.first_id, ids[0]) + 1) / (one.last_id - one.first_id + 1)
            for one in overlapping_blocks(blocks, ids)
        )
        assert held < versions + densest + 1e-6, "a range has more than asked for, and more than one id brings"


@settings(max_examples=100, deadline=None)
@given(_ROWS, st.lists(st.integers(0, 40), max_size=3), st.integers(1, 10))
def test_work_by_ranges_finds_the_same_winners(rows: list[dict[str, Any]], cuts: list[int], versions: int) -> None:
    """And never looks at a version of another range."""
    few = [row for row in rows if 0 <= row["id"] <= 12]
    tables = {str(at): part.select(KEY_COLUMNS) for at, part in enumerate(_parts(few, cuts)) if part.num_rows}
    blocks = [
        _block(int(name), part.column("id")[0].as_py(), part.column("id")[-1].as_py(), part.num_rows)
        for name, part in tables.items()
    ]

    def read(block: Block, ids: tuple[int, int]) -> pa.Table:
        rows = tables[block.block_id].to_pylist()
        return pa.Table.from_pylist(
            [row for row in rows if ids[0] <= row["id"] <= ids[1]], schema=tables[block.block_id].schema
        )

    parts = [
        select_newest_versions(part) for part in read_versions_by_id_range(blocks, read, versions_per_range=versions)
    ]
    assert [row for part in parts for row in part.to_pylist()] == _expected(few)


def test_many_blocks_of_the_same_ids_are_divided_at_once() -> None:
    """The work grows with the number of blocks, not with its square; the sums of so many parts are exact."""
    blocks = [_block(at, at, at + 2**40, 100_000) for at in range(2_000)]
    found = split_into_id_ranges(blocks, versions_per_range=2_000_000)
    assert 100 <= len(found) <= 102
    assert (found[0][0], found[-1][1]) == (0, 1_999 + 2**40)
