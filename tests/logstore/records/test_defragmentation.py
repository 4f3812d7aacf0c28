"""Which blocks are rewritten and what stays of them, compared with plain Python."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.records.manifest import Block
from logstore.records.newest_versions import (
    SMALL_BLOCK_BYTES,
    BlockUsage,
    IdRangeSurvey,
    select_blocks_to_rewrite,
)
from logstore.records.record_kinds import RecordKind
from tests.logstore.records.versions import table, version


def _block(name: str, *, records: int = 100, size_bytes: int = SMALL_BLOCK_BYTES) -> Block:
    return Block(
        block_id=name,
        kind=RecordKind.LEDGER,
        records=records,
        tombstones=0,
        size_bytes=size_bytes,
        sha256="",
        first_id=0,
        last_id=9,
    )


def _names(*usages: BlockUsage) -> list[str]:
    return [one.block_id for one in select_blocks_to_rewrite(usages)]


def test_blocks_under_half_live_are_rewritten() -> None:
    """Half is enough to stay."""
    assert _names(BlockUsage(_block("half"), 50), BlockUsage(_block("less"), 49)) == ["less"]


def test_small_blocks_are_joined_where_there_are_several() -> None:
    """One alone would be written again and again, as it is; so would many versions that take little room."""
    small, other = _block("a", size_bytes=SMALL_BLOCK_BYTES - 1), _block("b", size_bytes=1)
    full = _block("c", size_bytes=1, records=50_000)
    assert _names(BlockUsage(small, 100)) == []
    assert _names(BlockUsage(small, 100), BlockUsage(full, 50_000)) == []
    assert _names(BlockUsage(small, 100), BlockUsage(other, 100), BlockUsage(_block("d"), 100)) == ["a", "b"]
    assert _names(BlockUsage(small, 100), BlockUsage(_block("e"), 0)) == ["e", "a"]


_ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["", "1"]), st.integers(1, 6), st.integers(0, 3)),
    max_size=25,
    unique_by=lambda row: row[:3],
)


@settings(max_examples=300, deadline=None)
@given(_ROWS, st.sets(st.integers(0, 5)), st.lists(st.booleans(), min_size=4, max_size=4))
def test_what_stays_never_lets_an_older_version_return(
    rows: list[tuple[int, str, int, int]], standing: set[int], rewritten: list[bool]
) -> None:
    """Of records that stand the newest version is kept; those that are gone stay gone, or vanish whole."""
    ordered = sorted(rows, key=lambda row: (row[0], row[1]))
    keys = table(RecordKind.SEGMENT, [version(id_, number, sub=sub) for id_, sub, number, _ in ordered])
    survey = IdRangeSurvey(keys, np.array([row[3] for row in ordered], dtype=np.intp))
    newest = [ordered[at] for at in survey.newest_rows.tolist()]
    stands = np.array([row[0] in standing for row in newest], dtype=bool)
    kept = survey.needed_row_mask(stands, np.array(rewritten))
    after = [row for row, keep in zip(ordered, kept.tolist(), strict=True) if keep or not rewritten[row[3]]]
    before, left = _newest(ordered), _newest(after)
    for record, row in before.items():
        if record[0] in standing or record in left:
            assert left[record] == row
    assert not any(rewritten[row[3]] and row != before[row[:2]] for row in after), "what is superseded goes"
    for record, row in left.items():
        if record[0] not in standing and rewritten[row[3]]:
            assert any(not rewritten[other[3]] for other in ordered if other[:2] == record), "kept for no reason"


@settings(max_examples=200, deadline=None)
@given(_ROWS, st.sets(st.integers(0, 5)))
def test_rewriting_what_is_worth_it_never_has_to_keep_more_than_was_counted(
    rows: list[tuple[int, str, int, int]], standing: set[int]
) -> None:
    """Else a block would be rewritten at every pass, and stay as it is."""
    ordered = sorted(rows, key=lambda row: (row[0], row[1]))
    keys = table(RecordKind.SEGMENT, [version(id_, number, sub=sub) for id_, sub, number, _ in ordered])
    part = np.array([row[3] for row in ordered], dtype=np.intp)
    survey = IdRangeSurvey(keys, part)
    stands = np.array([ordered[at][0] in standing for at in survey.newest_rows.tolist()], dtype=bool)
    used = survey.count_needed_rows(stands, 4)
    for chosen in range(4):
        kept = survey.needed_row_mask(stands, np.arange(4) == chosen)
        assert kept.sum() <= used[chosen] <= (part == chosen).sum()


def _newest(rows: list[tuple[int, str, int, int]]) -> dict[tuple[int, str], Any]:
    best: dict[tuple[int, str], tuple[int, str, int, int]] = {}
    for row in rows:
        if row[:2] not in best or row[2] > best[row[:2]][2]:
            best[row[:2]] = row
    return best
