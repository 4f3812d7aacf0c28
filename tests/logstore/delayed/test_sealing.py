"""What of the log goes into a bucket, and where a bucket ends."""

import pyarrow as pa
import pytest
from pyroaring import BitMap

from logstore.delayed.delayed_rows import DelayedRows, select_delayed_rows
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.delayed.services.log_sealer import IndexBucketDraft, should_seal
from logstore.positions import LedgerId, Position
from tests.logstore.delayed.rows import made

_LEDGER = LedgerId(4)


def _found(times: list[int | None], *, wanted: range, hidden: BitMap | None = None) -> list[tuple[int, int]]:
    table = pa.table(
        {"deliver_at_ms": pa.chunked_array([pa.array(part, pa.int64()) for part in (times[:2], times[2:])])}
    )
    rows = select_delayed_rows(_LEDGER, 10, table, wanted=wanted, hidden=hidden, now_ms=100)
    assert set(rows.ledger_id.tolist()) <= {_LEDGER}
    return list(zip(rows.deliver_at_ms.tolist(), rows.entry_id.tolist(), strict=True))


def test_entries_whose_time_has_not_come_are_taken_and_others_are_not() -> None:
    """No delivery time, one that is past, and one that is now: these are delivered by readers."""
    times = [None, 500, 100, 101, 99, 400]
    assert _found(times, wanted=range(10, 16)) == [(101, 13), (400, 15), (500, 11)]
    assert _found(times, wanted=range(12, 15)) == [(101, 13)]
    assert _found(times, wanted=range(2**40)) == _found(times, wanted=range(10, 16))
    assert _found(times, wanted=range(16, 99)) == _found(times, wanted=range(10)) == []
    assert _found([None, None, None], wanted=range(10, 13)) == []


def test_entries_that_no_consumer_sees_are_left_out() -> None:
    """Markers and messages of aborted transactions."""
    assert _found([200, 300, 400], wanted=range(10, 13), hidden=BitMap([10, 12, 99])) == [(300, 11)]


@pytest.mark.parametrize(
    ("entries", "ledgers", "idle_s", "expected"),
    [
        (0, 9, 99.0, False),
        (1, 1, 1.0, False),
        (3, 1, 0.0, True),
        (1, 2, 0.0, True),
        (1, 1, 5.0, True),
        (1, 1, None, False),
    ],
)
def test_it_is_time_to_seal_by_messages_ledgers_or_idleness(
    entries: int, ledgers: int, idle_s: float | None, expected: bool
) -> None:
    """Each limit alone is enough, and nothing delayed is nothing to seal."""
    limits = SealAndMergeLimits(messages=3, ledgers=2, idle_s=5.0)
    assert should_seal(limits, entries=entries, ledgers=ledgers, idle_s=idle_s) is expected


def test_a_bucket_is_full_by_messages_or_by_ledgers_with_a_message() -> None:
    """Ledgers without one are covered by the bucket that comes."""
    limits = SealAndMergeLimits(messages=3, ledgers=2)
    one, two = made(1, [5]), made(2, [3])
    found = IndexBucketDraft(first=Position(LedgerId(0), 0))
    found.add_segment(DelayedRows.empty(), last=Position(LedgerId(0), 9))
    found.add_segment(DelayedRows.empty(), last=Position(LedgerId(1), 9))
    assert not found.is_full(limits)
    found.add_segment(one, last=Position(LedgerId(2), 9))
    assert found.is_full(limits)
    many = IndexBucketDraft(first=Position(LedgerId(0), 0))
    many.add_segment(two, last=Position(LedgerId(3), 4))
    assert not many.is_full(limits)
    many.add_segment(one, last=Position(LedgerId(3), 5))
    assert many.is_full(limits)
    assert (many.messages, many.last, many.merge_rows()) == (3, Position(LedgerId(3), 5), DelayedRows.merge([one, two]))
