"""The tracker: what waits, and what is due."""

from logstore.delayed.buckets import BucketList
from logstore.delayed.rows import DelayedRows
from logstore.delayed.tracker import Tracker
from logstore.positions import LedgerId, Position
from tests.logstore.delayed.rows import START_MS, Snapshots, made

_FAR = Position(LedgerId(9), 0)


def test_messages_of_buckets_and_of_the_log_come_out_in_order_when_they_are_due() -> None:
    """By delivery time, then ledger, then entry, whatever holds them."""
    snapshots = Snapshots(segment_rows=(10, 50), step_ms=60_000)
    one, two, three = (made(300, [ledger], kind="minute", seed=ledger) for ledger in (1, 2, 3))
    buckets = tuple(
        snapshots.put(10 + number, rows, Position(LedgerId(number), 0), Position(LedgerId(number), 999))
        for number, rows in ((1, one), (2, two))
    )
    tracker = Tracker(snapshots)
    assert tracker.load(BucketList(version=1, sealed_to=buckets[-1].last, buckets=buckets)) == []
    for time, position in zip(three.deliver_at_ms.tolist(), three.positions(), strict=True):
        assert tracker.add(position, time)
    expected = DelayedRows.united([one, two, three])
    assert tracker.messages == len(expected)
    found = []
    for minute in range(60):
        now_ms = START_MS + minute * 60_000
        while len(part := tracker.take_due(now_ms, 7)):
            assert len(part) <= 7
            found.append(part)
        assert sum(len(part) for part in found) == expected.due(now_ms)
    assert DelayedRows.joined(found) == expected
    assert (tracker.messages, tracker.next_ms(), tracker.tracked(), tracker.lost) == (0, None, {}, ())
