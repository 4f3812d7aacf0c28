"""Merging sorted rows window by window."""

from hypothesis import given
from hypothesis import strategies as st

from logstore.delayed.delayed_rows import DelayedRows, merge_sorted_sources
from logstore.positions import LedgerId, Position
from tests.logstore.delayed.rows import START_MS, made, windows

_SIZES = st.integers(1, 7)


@given(
    times=st.lists(st.lists(st.integers(0, 6), max_size=30), min_size=1, max_size=5),
    sizes=st.lists(_SIZES, min_size=5, max_size=5),
    from_ms=st.none() | st.integers(0, 7),
)
def test_a_merge_yields_the_rows_of_all_sources_sorted_and_none_is_lost(
    times: list[list[int]], sizes: list[int], from_ms: int | None
) -> None:
    """Field case 57: the multiset of messages is unchanged by a merge, but for those whose time had passed."""
    sources = [
        DelayedRows.from_messages([(time, Position(LedgerId(ledger), entry)) for entry, time in enumerate(each)])
        for ledger, each in enumerate(times)
    ]
    merged = list(
        merge_sorted_sources([windows(rows, size) for rows, size in zip(sources, sizes, strict=False)], from_ms=from_ms)
    )
    assert all(len(part) for part in merged)
    whole = DelayedRows.merge(sources)
    assert DelayedRows.concatenate(merged) == whole.slice(whole.count_due(from_ms - 1) if from_ms is not None else 0)


def test_a_merge_holds_one_window_of_each_source_though_all_is_due_at_once() -> None:
    """Only the next window is asked for, and no window that is yielded has more rows than those of all sources."""
    drawn = [0, 0]

    def counted(number: int, rows: DelayedRows) -> "object":
        for window in windows(rows, 50):
            drawn[number] += 1
            yield window

    same = [made(1_000, [ledger]) for ledger in (1, 2)]
    same = [DelayedRows(rows.deliver_at_ms * 0 + START_MS, *rows.columns()[1:]) for rows in same]
    same = [DelayedRows.from_columns(*rows.columns()) for rows in same]
    seen = 0
    for part in merge_sorted_sources([counted(number, rows) for number, rows in enumerate(same)]):  # type: ignore[misc]
        seen += len(part)
        assert len(part) <= 100
        assert sum(drawn) * 50 <= seen + 100
    assert seen == 2_000
