"""The tracker: what waits, what is due, and what it does when buckets change or cannot be read."""

from typing import Final

import pytest

from logstore.cursors.cursor_state import pack_acknowledged
from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket, IndexBucketList
from logstore.delayed.tracker import Tracker, open_index_buckets
from logstore.errors import CorruptData, StoreUnavailable
from logstore.positions import EARLIEST, LedgerId, Position
from tests.logstore.delayed.rows import START_MS, Snapshots, made, take_due

_ONE: Final = LedgerId(101)
_TWO: Final = LedgerId(102)
_HOUR_MS: Final = 3_600_000
_END_MS: Final = START_MS + _HOUR_MS


def _at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), entry)


class _Topic:
    """Buckets of one ledger each, and a tracker of them."""

    def __init__(self, *parts: DelayedRows) -> None:
        self.snapshots = Snapshots(segment_rows=(10, 50), step_ms=60_000)
        self.buckets = [self.stored(101 + number, rows) for number, rows in enumerate(parts)]
        self.tracker = Tracker(self.snapshots)
        assert self.tracker.load_list_and_pop_rewinds(self.get_bucket_list()) == []

    def stored(self, bucket_id: int, rows: DelayedRows) -> IndexBucket:
        ledger_ids = rows.ledger_id.tolist()
        return self.snapshots.put(bucket_id, rows, _at(min(ledger_ids), 0), _at(max(ledger_ids), 9_999))

    def get_bucket_list(self, *buckets: IndexBucket) -> IndexBucketList:
        found = buckets or tuple(self.buckets)
        return IndexBucketList(version=1, sealed_to=found[-1].last if found else EARLIEST, buckets=found)

    def drained(self, now_ms: int = _END_MS, limit: int = 1_000) -> DelayedRows:
        parts = []
        while len(part := take_due(self.tracker, now_ms, limit)):
            parts.append(part)
        return DelayedRows.concatenate(parts)


def test_messages_of_buckets_and_of_the_log_come_out_in_order_when_they_are_due() -> None:
    """By delivery time, then ledger, then entry, whatever holds them."""
    one, two, three = (made(300, [ledger], kind="minute", seed=ledger) for ledger in (1, 2, 3))
    topic = _Topic(one, two)
    for time, position in zip(three.deliver_at_ms.tolist(), three.positions(), strict=True):
        assert topic.tracker.track_unless_due(position, time)
    expected = DelayedRows.merge([one, two, three])
    assert topic.tracker.messages == len(expected)
    found: list[DelayedRows] = []
    for minute in range(60):
        now_ms = START_MS + minute * 60_000
        while len(part := take_due(topic.tracker, now_ms, 7)):
            assert len(part) <= 7
            found.append(part)
        assert sum(len(part) for part in found) == expected.count_due(now_ms)
    assert DelayedRows.concatenate(found) == expected
    tracker = topic.tracker
    assert (tracker.messages, tracker.next_ms(), tracker.tracked_entries(), tracker.lost_buckets) == (0, None, {}, ())


def test_the_first_message_after_a_restart_needs_footers_and_one_segment() -> None:
    """Recovery reads neither the log that buckets cover nor segments whose time has not come."""
    rows = [made(500, [ledger], seed=ledger) for ledger in (1, 2, 3)]
    topic = _Topic(*rows)
    assert sorted(topic.snapshots.reads) == [(bucket.bucket_id, None) for bucket in topic.buckets]
    topic.snapshots.reads.clear()
    first = DelayedRows.merge(rows).slice(0, 1)
    assert take_due(topic.tracker, int(first.deliver_at_ms[0]), 1) == first
    assert len(topic.snapshots.reads) <= len(topic.buckets)
    assert {number for _, number in topic.snapshots.reads} == {0}
    assert take_due(topic.tracker, START_MS - 1, 1) == DelayedRows.empty()


def test_adding_a_message_again_changes_nothing() -> None:
    """Field case 65: the count never exceeds distinct entries, whichever part of the index has the entry."""
    rows = made(100, [1])
    topic = _Topic(rows)
    for time, position in zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True):
        assert topic.tracker.track_unless_due(position, time)
    for _ in range(3):
        assert topic.tracker.track_unless_due(_at(9, 9), START_MS + 5)
    assert topic.tracker.messages == 101
    assert len(topic.drained()) == 101


def test_a_message_that_is_due_is_let_through_and_not_added() -> None:
    """Field case 58: what is tracked is schedulable; what is due by the tracker's clock its reader delivers."""
    topic = _Topic()
    take_due(topic.tracker, START_MS, 1)
    assert not topic.tracker.track_unless_due(_at(1, 0), START_MS)
    assert topic.tracker.track_unless_due(_at(1, 1), START_MS + 1)
    assert [position.entry_id for position in topic.drained().positions()] == [1]


def test_a_clock_that_went_back_makes_nothing_early_and_loses_nothing() -> None:
    """A message that was handed out by a wrong clock, and that a late reader meets, waits for its time again."""
    topic = _Topic(made(50, [1]))
    handed = topic.drained()
    assert len(handed) == 50
    assert not len(take_due(topic.tracker, START_MS - 1, 10))
    for time, position in zip(handed.deliver_at_ms.tolist(), handed.positions(), strict=True):
        assert topic.tracker.track_unless_due(position, time)
    topic.tracker.load_list_and_pop_rewinds(topic.get_bucket_list())
    assert topic.tracker.messages == 50
    assert not len(take_due(topic.tracker, START_MS - 1, 10))
    assert topic.drained() == handed


def test_what_was_handed_out_does_not_come_again_with_a_merged_bucket() -> None:
    """Field case 57: the merged bucket holds messages that this tracker took already, and all the others."""
    one, two = made(200, [1]), made(200, [2], seed=1)
    topic, both = _Topic(one, two), DelayedRows.merge([one, two])
    taken = topic.drained(START_MS + _HOUR_MS // 3)
    assert 0 < len(taken) < len(both)
    merged = topic.stored(103, both)
    assert topic.tracker.load_list_and_pop_rewinds(topic.get_bucket_list(merged)) == []
    assert topic.tracker.messages == len(both) - len(taken)
    assert DelayedRows.concatenate([taken, topic.drained()]) == both


def test_what_a_merge_left_out_is_read_in_the_log() -> None:
    """Field case 58: it was due, so it is tracked no longer, and readers go back to where it stands."""
    one, two = made(200, [1]), made(200, [2], seed=1)
    topic, both = _Topic(one, two), DelayedRows.merge([one, two])
    left_out, kept = both.slice(0, 30), both.slice(30)
    merged = topic.stored(103, kept)
    assert topic.tracker.load_list_and_pop_rewinds(topic.get_bucket_list(merged)) == [min(left_out.positions())]
    assert topic.drained() == kept


def test_a_message_that_was_sealed_is_tracked_once_by_the_bucket() -> None:
    """What readers added before, and what was taken before by a clock ahead of the sealer's."""
    rows = made(100, [1])
    topic = _Topic()
    for time, position in zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True):
        topic.tracker.track_unless_due(position, time)
    taken = take_due(topic.tracker, _END_MS, 10)
    topic.tracker.load_list_and_pop_rewinds(IndexBucketList(version=1))
    assert topic.tracker.load_list_and_pop_rewinds(topic.get_bucket_list(topic.stored(101, rows))) == []
    assert topic.tracker.messages == 90
    assert DelayedRows.concatenate([taken, topic.drained()]) == rows


def test_a_snapshot_that_is_gone_or_damaged_is_told_of_and_its_messages_come_from_the_log() -> None:
    """Field case 62: nothing fails and nothing waits for it; the other buckets go on."""
    rows = [made(100, [ledger], seed=ledger) for ledger in (1, 2, 3)]
    topic = _Topic(*rows)
    del topic.snapshots.files[_ONE]
    topic.snapshots.errors[_TWO] = CorruptData("damaged")
    fresh = Tracker(topic.snapshots)
    assert fresh.load_list_and_pop_rewinds(topic.get_bucket_list()) == []
    assert [bucket.bucket_id for bucket in fresh.lost_buckets] == [_ONE, _TWO]
    assert list(fresh.tracked_entries()) == [3]
    assert take_due(fresh, _END_MS, 1_000) == rows[2]
    topic.snapshots.errors.clear()
    fresh.load_list_and_pop_rewinds(topic.get_bucket_list())
    assert [bucket.bucket_id for bucket in fresh.lost_buckets] == [_ONE]
    assert take_due(fresh, _END_MS, 1_000) == rows[1]


def test_taken_message_of_a_lost_bucket_is_not_tracked_again_when_the_bucket_can_be_read() -> None:
    """Readers found it in the log while the bucket was lost."""
    topic = _Topic()
    rows = made(20, [1])
    bucket = topic.stored(_ONE, rows)
    topic.snapshots.errors[_ONE] = CorruptData("damaged")
    topic.tracker.load_list_and_pop_rewinds(topic.get_bucket_list(bucket))
    (position, *_) = rows.positions()
    assert topic.tracker.track_unless_due(position, START_MS)
    assert take_due(topic.tracker, START_MS, 1).positions() == [position]
    topic.tracker.load_list_and_pop_rewinds(topic.get_bucket_list(bucket))
    topic.snapshots.errors.clear()
    topic.tracker.load_list_and_pop_rewinds(topic.get_bucket_list(bucket))
    assert (topic.tracker.messages, topic.tracker.contains(position)) == (19, False)


@pytest.mark.parametrize("number", [0, 2])
def test_a_segment_that_cannot_be_read_makes_readers_go_back_to_its_messages(number: int) -> None:
    """Field case 62: what was taken of the bucket before stays taken; what is left is tracked no longer."""
    rows, other = made(200, [1], kind="minute"), made(100, [2], seed=1)
    topic = _Topic(rows, other)
    topic.snapshots.damaged[(_ONE, number)] = CorruptData("damaged")
    found = topic.drained()
    mine = [position for position in found.positions() if position.ledger_id == 1]
    left = set(rows.positions()) - set(mine)
    assert topic.tracker.pop_rewinds() == [min(left)]
    assert topic.tracker.pop_rewinds() == []
    assert [bucket.bucket_id for bucket in topic.tracker.lost_buckets] == [_ONE]
    assert len(found) == len(mine) + len(other)
    assert (len(mine) > 0) == (number > 0)
    assert topic.tracker.messages == 0


def test_a_bucket_whose_segments_lack_a_message_of_its_bitmaps_is_lost_and_not_the_message() -> None:
    """Field case 58: a bit without a row would hide the message for ever."""
    rows = made(40, [1])
    topic = _Topic(rows)
    whole = Snapshots.read_segment
    hidden = rows.position(7)

    def lacking(self: Snapshots, bucket: IndexBucket, number: int) -> DelayedRows:
        return whole(self, bucket, number).drop_entries(DelayedRows.from_messages([(0, hidden)]).to_bitmaps())

    topic.snapshots.read_segment = lacking.__get__(topic.snapshots)  # type: ignore[method-assign]
    assert len(topic.drained()) == 39
    assert topic.tracker.pop_rewinds() == [hidden]
    assert not topic.tracker.contains(hidden)
    assert [bucket.bucket_id for bucket in topic.tracker.lost_buckets] == [_ONE]


def test_a_store_that_does_not_answer_takes_nothing_and_changes_nothing() -> None:
    """Once, and for ever: the caller asks again, and gets what it would have got."""
    rows = [made(100, [ledger], seed=ledger) for ledger in (1, 2)]
    topic = _Topic(*rows)
    topic.snapshots.damaged = {(_ONE, 0): StoreUnavailable("silent"), (_TWO, 0): StoreUnavailable("silent")}
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            take_due(topic.tracker, _END_MS, 5)
    topic.snapshots.errors[LedgerId(103)] = StoreUnavailable("silent")
    third = topic.stored(103, made(100, [3], seed=3))
    with pytest.raises(StoreUnavailable):
        topic.tracker.load_list_and_pop_rewinds(topic.get_bucket_list(*topic.buckets, third))
    assert topic.tracker.bucket_list == topic.get_bucket_list()
    assert (topic.tracker.messages, topic.tracker.lost_buckets, topic.tracker.pop_rewinds()) == (200, (), [])
    topic.snapshots.damaged.clear()
    assert topic.drained() == DelayedRows.merge(rows)


def test_what_is_in_memory_is_taken_though_the_store_is_silent() -> None:
    """Rows of a loaded segment wait for no other segment that begins later."""
    one = made(100, [1])
    later = DelayedRows.from_columns(one.deliver_at_ms + 2 * _HOUR_MS, one.ledger_id + 1, one.entry_id)
    topic = _Topic(one, later)
    topic.snapshots.damaged = {(_TWO, 0): StoreUnavailable("silent")}
    assert take_due(topic.tracker, _END_MS + 2 * _HOUR_MS, 1_000) == one
    with pytest.raises(StoreUnavailable):
        topic.drained(_END_MS + 2 * _HOUR_MS)
    topic.snapshots.damaged.clear()
    assert topic.drained(_END_MS + 2 * _HOUR_MS) == later


def test_what_was_read_beside_the_tracker_is_taken_over_as_the_tracker_is_then() -> None:
    """The list has lost one of the buckets meanwhile, and a message of the new one was found in the log."""
    rows = [made(100, [ledger], seed=ledger) for ledger in (1, 2, 3)]
    topic = _Topic(*rows[:2])
    gone = topic.tracker.bucket_to_read(_END_MS)
    assert gone is not None
    segment = gone.read_next_segment()
    kept = [bucket for bucket in topic.buckets if bucket != gone.bucket]
    third = topic.stored(103, rows[2])
    listed = topic.get_bucket_list(*kept, third)
    opened = open_index_buckets(topic.tracker.find_unopened_buckets(listed), topic.snapshots)
    assert topic.tracker.track_unless_due(rows[2].position(0), int(rows[2].deliver_at_ms[0]))
    topic.snapshots.files.pop(third.bucket_id)
    assert topic.tracker.load_list_and_pop_rewinds(listed, opened) == [
        _at(1 if gone.bucket.bucket_id == _ONE else 2, 0)
    ]
    topic.tracker.load_bucket_segment(gone, segment)
    topic.tracker.load_bucket_segment(gone, None)
    assert (topic.tracker.messages, topic.tracker.lost_buckets) == (200, ())


def test_a_cleared_list_leaves_everything_to_the_log() -> None:
    """Readers go back to the first message that was tracked for the sake of a bucket."""
    rows = made(100, [1])
    topic = _Topic(rows)
    topic.tracker.track_unless_due(_at(5, 5), _END_MS)
    assert topic.tracker.load_list_and_pop_rewinds(IndexBucketList(version=2)) == [min(rows.positions())]
    assert topic.tracker.contains(_at(5, 5))
    assert topic.tracker.messages == 1


def test_memory_follows_what_lives_and_grows_in_runs() -> None:
    """Field cases 64 and 71: no array holds all messages, and what was taken frees its bits and its rows."""
    topic = _Topic()
    before = topic.tracker.memory_bytes
    rows = made(30_000, [1, 2, 3])
    for time, position in zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True):
        topic.tracker.track_unless_due(position, time)
    full = topic.tracker.memory_bytes
    assert full - before <= 12 * len(rows)
    while len(take_due(topic.tracker, _END_MS, 999)):
        pass
    assert topic.tracker.messages == 0
    topic.tracker.load_list_and_pop_rewinds(IndexBucketList(version=2, sealed_to=_at(3, 99_999)))
    assert topic.tracker.memory_bytes <= before + 1_000


def test_packing_the_bitmaps_does_not_change_what_is_tracked() -> None:
    """Field case 71: whoever writes them reads them only."""
    rows = made(300, [1, 2])
    topic = _Topic(rows)
    copies = {ledger_id: bits.copy() for ledger_id, bits in topic.tracker.tracked_entries().items()}
    packed = pack_acknowledged(topic.tracker.tracked_entries())
    assert dict(topic.tracker.tracked_entries()) == copies
    assert packed == pack_acknowledged(rows.to_bitmaps())
    assert len(topic.drained()) == 300


def test_readers_coming_and_going_do_not_change_what_is_durable() -> None:
    """Field case 61: trackers are caches; as many as there are, each tracks what the list says."""
    rows = made(100, [1])
    topic = _Topic(rows)
    assert topic.drained() == rows
    again = Tracker(topic.snapshots)
    again.load_list_and_pop_rewinds(topic.get_bucket_list())
    assert take_due(again, _END_MS, 1_000) == rows
