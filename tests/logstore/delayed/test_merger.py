"""Merges of stored buckets: what is pending is the same before and after, wherever a merge dies."""

import io
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket, SealAndMergeLimits, find_pair_to_merge
from logstore.delayed.services.bucket_merger import IndexMergeResult, Merger
from logstore.delayed.snapshot_file import IndexSnapshotWriter
from logstore.errors import StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.delayed import IndexBucketSwitch
from logstore.positions import LedgerId, Position
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.stored import HOUR_MS, Stored, processed, stored
from tests.logstore.delayed.test_sealer import EFFECTS


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Stored]:
    """With three buckets, whose times lie between each other."""
    found = stored(tmp_path)
    found.sealed([1, 9, 5], [4, 8], [2, 7, 3])
    yield found
    disarm_all_and_take_hits()
    assert list((tmp_path / "tmp").glob("*")) == []
    found.world.opened.close()


def _ids(*buckets: IndexBucket) -> tuple[LedgerId, LedgerId]:
    first, second = (one.bucket_id for one in buckets)
    return first, second


def test_merge_puts_one_bucket_in_the_place_of_two(topic: Stored) -> None:
    """It covers the range of both, its times are sorted across them, and the sources are retired by the switch."""
    before, pending, sealed_to = topic.buckets, topic.held(), topic.index.get_bucket_list(topic.topic_id).sealed_to
    assert topic.merger.merge_pair(topic.topic_id, _ids(*before[1:])) == IndexMergeResult(switched=True, messages=5)
    first, merged = topic.buckets
    assert first == before[0]
    assert (merged.first, merged.last, merged.messages) == (before[1].first, before[2].last, 5)
    assert topic.held() == pending
    assert [due for due, _ in topic.held_by(merged)] == sorted(due for due, _ in topic.held_by(merged))
    assert topic.retired() == [one.bucket_id for one in before[1:]]
    assert topic.ledgers() == [one.bucket_id for one in (first, merged)]
    assert topic.index.get_bucket_list(topic.topic_id).sealed_to == sealed_to


def test_merge_leaves_out_what_has_been_due_for_a_minute(topic: Stored) -> None:
    """The log hands it out. By the catalog's clock, less a minute: by no process's own is it still to come."""
    later = _at(topic, minutes=4 * 60 + 1)
    assert later.merge_pair(topic.topic_id, _ids(*topic.buckets[:2])) == IndexMergeResult(
        switched=True, messages=4, passed=1
    )
    assert [due for due, _ in topic.held_by(topic.buckets[0])] == [topic.now_ms + at * HOUR_MS for at in (4, 5, 8, 9)]


def _at(topic: Stored, *, minutes: int) -> Merger:
    """A merger whose catalog has a later clock."""

    class Later:
        def __getattr__(self, name: str) -> object:
            return getattr(topic.index, name)

        def now_ms(self) -> int:
            return topic.now_ms + minutes * 60_000

    scratch = topic.merger._scratch
    return Merger(index=Later(), snapshots=topic.snapshots, scratch=scratch)  # type: ignore[arg-type]  # by delegation


def test_merge_of_buckets_that_have_passed_leaves_none(topic: Stored) -> None:
    """A snapshot has at least one message."""
    later = _at(topic, minutes=10 * 60)
    assert later.merge_pair(topic.topic_id, _ids(*topic.buckets[:2])) == IndexMergeResult(switched=True, passed=5)
    assert (len(topic.buckets), len(topic.retired())) == (1, 2)


def test_merge_of_what_is_not_a_pair_of_neighbours_does_nothing(topic: Stored) -> None:
    """They were merged or dropped by another one, or a bucket stands between them."""
    first, second, third = topic.buckets
    calls = len(topic.world.objects.calls)
    for pair in ((first, third), (second, first), (third, replace(third, bucket_id=LedgerId(99)))):
        assert topic.merger.merge_pair(topic.topic_id, _ids(*pair)) == IndexMergeResult()
    assert len(topic.world.objects.calls) == calls
    assert topic.buckets == (first, second, third)


def test_merge_that_is_done_already_does_nothing(topic: Stored) -> None:
    """An attempt whose answer was lost is repeated."""
    pair, pending = _ids(*topic.buckets[:2]), topic.held()
    assert topic.merger.merge_pair(topic.topic_id, pair).switched
    assert topic.merger.merge_pair(topic.topic_id, pair) == IndexMergeResult()
    assert (topic.held(), len(topic.ledgers())) == (pending, 2)


def test_merge_whose_list_changes_meanwhile_retires_what_it_wrote(topic: Stored) -> None:
    """A clear in the middle leaves index and storage empty but for what deletion takes (field case 69)."""
    pair = _ids(*topic.buckets[:2])

    def clear() -> None:
        topic.index.retire_all_buckets(topic.topic_id, reason="tests")

    topic.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=clear))
    assert topic.merger.merge_pair(topic.topic_id, pair) == IndexMergeResult()
    assert (topic.buckets, topic.ledgers(), len(topic.retired())) == ((), [], 4)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("effect", EFFECTS)
def test_merge_that_dies_at_an_effect_changes_nothing_that_is_pending(topic: Stored, effect: str, moment: str) -> None:
    """Right after it, and once another one has settled the rest (field case 57)."""
    pending = topic.held()
    arm(f"{effect}.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        topic.merger.merge_pair(topic.topic_id, _ids(*topic.buckets[:2]))
    assert topic.held() == pending
    done = (effect, moment) == ("catalog.switch_buckets", "after")
    assert (len(topic.buckets), len(topic.retired())) == ((2, 2) if done else (3, 0))
    _settle(topic, SealAndMergeLimits(buckets=1))
    assert topic.held() == pending
    assert topic.ledgers() == [one.bucket_id for one in topic.buckets]


@pytest.mark.parametrize("effect", EFFECTS)
def test_merge_whose_effect_is_reported_failed_is_done_once(topic: Stored, effect: str) -> None:
    """Its outcome is asked for, or it is repeated."""
    pending = topic.held()
    arm(f"{effect}.reported_failed", "fail")
    assert topic.merger.merge_pair(topic.topic_id, _ids(*topic.buckets[:2])).switched
    assert (topic.held(), len(topic.buckets), len(topic.retired())) == (pending, 2, 2)


def _settle(topic: Stored, limits: SealAndMergeLimits) -> None:
    """As `merge-buckets` does."""
    while len(topic.buckets) > limits.buckets:
        pair = find_pair_to_merge(topic.buckets)
        assert pair
        assert topic.merger.merge_pair(topic.topic_id, _ids(*pair)).switched


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7])
def test_any_positive_limit_is_reached_and_nothing_pending_changes(tmp_path: Path, most: int) -> None:
    """With few buckets there is a pair to merge, too (field case 59; apache/pulsar#26241)."""
    topic = stored(tmp_path)
    topic.sealed(*([1 + at % 4, 9 - at] for at in range(6)))
    pending = topic.held()
    _settle(topic, SealAndMergeLimits(buckets=most))
    assert (topic.held(), len(topic.buckets)) == (pending, min(most, 6))
    topic.world.opened.close()


@pytest.mark.parametrize("damage", ["gone", "corrupt"])
def test_bucket_that_cannot_be_read_is_named_and_kept(
    topic: Stored, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its messages are read in the log; a merge without them would lose track of them without a word."""
    before = topic.buckets
    key = segment_key(before[1].bucket_id, 0)
    held = topic.world.objects._held.pop(key)
    if damage == "corrupt":
        topic.world.objects._held[key] = replace(held, body=b"x" * len(held.body))
    with caplog.at_level(logging.ERROR):
        found = Merger(index=topic.index, snapshots=processed(topic.world), scratch=topic.merger._scratch).merge_pair(
            topic.topic_id, _ids(*before[:2])
        )
    assert found == IndexMergeResult(damaged=before[1].bucket_id)
    assert f"bucket {before[1].bucket_id} cannot be read" in caplog.text
    assert (topic.buckets, topic.retired()) == (before, [])


def test_bucket_that_is_dropped_while_it_is_read_is_no_damage(topic: Stored) -> None:
    """Its object may be deleted before the merge comes to it."""
    first, second, _ = topic.buckets

    def drop() -> None:
        version = topic.index.get_bucket_list(topic.topic_id).version
        assert topic.index.switch_buckets(
            IndexBucketSwitch(topic_id=topic.topic_id, expected=version, removed=(second.bucket_id,))
        )
        topic.world.objects.delete([segment_key(second.bucket_id, 0)])

    topic.world.objects.plan(Fault(operation=StoreOperation.GET_RANGE, kind=FaultKind.CALL, action=drop))
    merger = Merger(index=topic.index, snapshots=processed(topic.world), scratch=topic.merger._scratch)
    assert merger.merge_pair(topic.topic_id, _ids(first, second)) == IndexMergeResult()
    assert len(topic.buckets) == 2


@pytest.mark.parametrize("second", [False, True])
def test_bucket_whose_bitmaps_lack_a_row_is_damaged_and_no_merge_fails_of_it(topic: Stored, second: bool) -> None:
    """Field case 58: it is named, so that the others are merged. What is left out is looked for in the bitmaps."""
    at = topic.append(1, 2, 3)
    rows = DelayedRows.from_messages([(topic.now_ms + HOUR_MS, at[0]), (topic.now_ms + 2 * HOUR_MS, at[1])])
    odd = _put(topic, rows, at, known={at[0].ledger_id: BitMap([at[1].entry_id, at[2].entry_id])})
    topic.sealed([7])
    pair = topic.buckets[2:4] if second else topic.buckets[3:5]
    assert odd in pair
    found = _at(topic, minutes=62).merge_pair(topic.topic_id, _ids(*pair))
    assert found == IndexMergeResult(damaged=odd.bucket_id)
    assert (topic.buckets[3], len(topic.buckets), topic.retired()) == (odd, 5, [])


@pytest.mark.parametrize("operation", [StoreOperation.HEAD, StoreOperation.GET_RANGE, StoreOperation.PUT])
def test_store_that_always_fails_ends_a_merge_and_changes_nothing(topic: Stored, operation: StoreOperation) -> None:
    """The next attempt, on a store that is back, does all of it."""
    pair, pending = _ids(*topic.buckets[:2]), topic.held()
    topic.world.objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE, times=1_000))
    merger = Merger(index=topic.index, snapshots=processed(topic.world), scratch=topic.merger._scratch)
    with pytest.raises(StoreUnavailable):
        merger.merge_pair(topic.topic_id, pair)
    topic.world.objects._faults.clear()
    assert (topic.held(), len(topic.buckets)) == (pending, 3)
    assert merger.merge_pair(topic.topic_id, pair).switched


def test_merge_holds_one_segment_of_each_source_at_a_time(topic: Stored) -> None:
    """However large the buckets are; and it tells how far it is after each."""
    buckets = [_of_many_segments(topic, number) for number in range(2)]
    told: list[tuple[int, int]] = []
    begun = len(topic.world.objects.calls)

    def progress(written: int) -> None:
        reads = [one for one, _ in topic.world.objects.calls[begun:] if one is StoreOperation.GET_RANGE]
        told.append((written, len(reads)))

    merger = Merger(index=topic.index, snapshots=topic.snapshots, scratch=topic.merger._scratch)
    done = merger.merge_pair(topic.topic_id, _ids(*buckets), progress=progress)
    assert done == IndexMergeResult(switched=True, messages=200)
    footers = 2
    for written, reads in told[:-1]:
        assert reads - footers <= written // 10 + 2
    assert (told[0][1], told[-1]) == (footers + 2, (200, footers + 20))


def _of_many_segments(topic: Stored, number: int) -> IndexBucket:
    """A bucket of ten segments of ten messages, at the end of the log."""
    first = topic.append(*[None] * 100)
    rows = DelayedRows.from_messages((topic.now_ms + HOUR_MS + 2 * at + number, one) for at, one in enumerate(first))
    return _put(topic, rows, first)


def _put(
    topic: Stored, rows: DelayedRows, covered: list[Position], *, known: dict[LedgerId, BitMap] | None = None
) -> IndexBucket:
    """A bucket of these rows at the end of the log, whose segments have ten rows; its bitmaps may be others."""
    listed, file = topic.index.get_bucket_list(topic.topic_id), io.BytesIO()
    writer = IndexSnapshotWriter(file, topic.topic_id, covered[0], covered[-1], segment_rows=(10, 10), entries=known)
    writer.add_rows(rows)
    footer = writer.close()
    file.seek(0)
    born = topic.snapshots.store_snapshot(file, footer)
    switch = IndexBucketSwitch(topic_id=topic.topic_id, expected=listed.version, added=(born,), sealed_to=covered[-1])
    assert topic.index.switch_buckets(switch)
    return born.bucket
