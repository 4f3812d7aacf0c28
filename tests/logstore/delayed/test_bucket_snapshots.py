"""Snapshots of buckets in storage: written as ledgers, read by ranges, never taken for what they are not."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket
from logstore.delayed.services.bucket_snapshots import IndexBucketSnapshots
from logstore.delayed.snapshot_file import IndexSnapshotFooter, IndexSnapshotWriter
from logstore.delayed.tracker import IndexSnapshotGone
from logstore.errors import CorruptData, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.log.ledgers import Component, LedgerState, LedgerStatement
from logstore.log.services.segment_reader import row_group_byte_range
from logstore.ports.catalog.delayed import NewIndexBucket
from logstore.positions import LedgerId, Position
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.component_world import World, at

_FIRST, _LAST = at(3, 0), at(4, 99)
_ROWS = DelayedRows.from_messages((1_000 + 7 * number, at(3 + number % 2, number)) for number in range(100))
_SEGMENT = 30  # rows


@pytest.fixture
def world() -> Iterator[World]:
    """An empty topic."""
    with World() as found:
        yield found
    disarm_all_and_take_hits()


@pytest.fixture
def snapshots(world: World) -> IndexBucketSnapshots:
    """Of a process that has read none yet."""
    return _process(world)


def _process(world: World, **more: int) -> IndexBucketSnapshots:
    return IndexBucketSnapshots(ledgers=world.catalog.ledgers, contents=world.contents(), objects=world.objects, **more)


def _file(world: World, path: Path, rows: DelayedRows = _ROWS) -> IndexSnapshotFooter:
    writer = IndexSnapshotWriter(path, world.topic.topic_id, _FIRST, _LAST, segment_rows=(_SEGMENT, _SEGMENT))
    writer.add_rows(rows)
    return writer.close()


def _listed(world: World, born: NewIndexBucket) -> IndexBucket:
    """List it, as the catalog's switch does."""
    row = world.catalog.ledger_rows[born.bucket.bucket_id]
    world.catalog.components._publish(row, born.size_bytes, born.sha256)
    return born.bucket


def _written(world: World, folder: Path, rows: DelayedRows = _ROWS) -> IndexBucket:
    footer = _file(world, folder / "snapshot", rows)
    found: list[IndexBucket] = []

    def publish(born: NewIndexBucket) -> bool:
        found[:] = [_listed(world, born)]
        return True

    with (folder / "snapshot").open("rb") as file:
        assert _process(world).store_and_publish(file, footer, publish)
    return found[0]


def test_snapshot_is_a_ledger_whose_bucket_says_what_its_footer_says(world: World, tmp_path: Path) -> None:
    """Its one segment is the file; the range stands in its metadata too, for a reader without the catalog."""
    bucket = _written(world, tmp_path)
    expected = IndexBucket(
        bucket_id=bucket.bucket_id, first=_FIRST, last=_LAST, messages=100, segments=4, first_ms=1_000, last_ms=1_693
    )
    assert bucket == expected
    stored = world.objects.get(segment_key(bucket.bucket_id, 0))
    assert stored
    assert stored.body == (tmp_path / "snapshot").read_bytes()
    assert {"first": "3:0", "last": "4:99", "messages": "100"}.items() <= stored.metadata.items()
    assert LedgerStatement.from_metadata(stored.metadata) == world.catalog.statements[bucket.bucket_id]
    assert [one.ledger_id for one in world.listed(Component.DELAYED_INDEX)] == [bucket.bucket_id]


def test_snapshot_that_is_stored_and_not_published_is_in_no_list(
    world: World, snapshots: IndexBucketSnapshots, tmp_path: Path
) -> None:
    """For a switch that publishes several; until then there is nothing to read."""
    footer = _file(world, tmp_path / "snapshot")
    with (tmp_path / "snapshot").open("rb") as file:
        born = snapshots.store_snapshot(file, footer)
    assert world.listed(Component.DELAYED_INDEX) == []
    with pytest.raises(IndexSnapshotGone, match="the catalog has no such ledger"):
        snapshots.read_footer(born.bucket)
    assert snapshots.read_footer(_listed(world, born)) == replace(footer, name=segment_key(born.bucket.bucket_id, 0))


def test_snapshot_reads_back_segment_by_segment(world: World, snapshots: IndexBucketSnapshots, tmp_path: Path) -> None:
    """A footer costs a HEAD and a range, each segment one range, and the whole object is never fetched."""
    bucket = _written(world, tmp_path)
    begun = len(world.objects.calls)
    footer = snapshots.read_footer(bucket)
    assert footer.bitmaps == _ROWS.to_bitmaps()
    assert [operation for operation, _ in world.objects.calls[begun:]] == [
        StoreOperation.HEAD,
        StoreOperation.GET_RANGE,
    ]
    begun = len(world.objects.calls)
    assert snapshots.read_segment(bucket, 2) == _ROWS.slice(2 * _SEGMENT, 3 * _SEGMENT)
    assert DelayedRows.concatenate(list(snapshots.iterate_rows(bucket))) == _ROWS
    assert [operation for operation, _ in world.objects.calls[begun:]] == [StoreOperation.GET_RANGE] * 5


def test_footers_are_kept_up_to_a_size(world: World, tmp_path: Path) -> None:
    """The one that was used longest ago goes first; the one just read stays, however large it is."""
    first, second = _written(world, tmp_path), _written(world, tmp_path)
    snapshots, begun = _process(world, cache_bytes=1), len(world.objects.calls)
    for bucket in (first, second, second, first):
        snapshots.read_segment(bucket, 0)
    heads = [key for operation, key in world.objects.calls[begun:] if operation is StoreOperation.HEAD]
    assert heads == [segment_key(one.bucket_id, 0) for one in (first, second, first)]
    whole = _process(world)
    for bucket in (first, second):
        whole.read_segment(bucket, 0)
    assert 0 < snapshots.memory_bytes < whole.memory_bytes < 100_000


@pytest.mark.parametrize("reading", ["footer", "segment"])
def test_missing_snapshot_is_gone(world: World, snapshots: IndexBucketSnapshots, tmp_path: Path, reading: str) -> None:
    """A reader then looks at the list again: a merge or a clear may have retired it."""
    bucket = _written(world, tmp_path)
    if reading == "segment":
        snapshots.read_footer(bucket)
    world.objects.delete([segment_key(bucket.bucket_id, 0)])
    with pytest.raises(IndexSnapshotGone, match="storage has no such object"):
        snapshots.read_segment(bucket, 0)


@pytest.mark.parametrize("part", ["page", "footer"])
def test_snapshot_with_a_flipped_bit_is_corrupt(
    world: World, snapshots: IndexBucketSnapshots, tmp_path: Path, part: str
) -> None:
    """In a page its checksum tells, in the footer its digest: never is another row read, or the process ended."""
    bucket = _written(world, tmp_path)
    key = segment_key(bucket.bucket_id, 0)
    held = world.objects._held[key]
    body = bytearray(held.body)
    start, length = row_group_byte_range(pq.read_metadata(tmp_path / "snapshot"), 3)
    body[start + length - 2 if part == "page" else -40] ^= 1
    world.objects._held[key] = replace(held, body=bytes(body))
    with pytest.raises(CorruptData):
        list(snapshots.iterate_rows(bucket))


def test_snapshot_of_another_bucket_is_corrupt(world: World, snapshots: IndexBucketSnapshots, tmp_path: Path) -> None:
    """What stands under the key must be what was registered; and what it says must be what the list says."""
    first, second = _written(world, tmp_path), _written(world, tmp_path, _ROWS.slice(0, 99))
    keys = [segment_key(one.bucket_id, 0) for one in (first, second)]
    with pytest.raises(CorruptData, match=r"messages=5.*messages=100"):
        snapshots.read_footer(replace(first, messages=5))
    world.objects._held[keys[0]] = world.objects._held[keys[1]]
    with pytest.raises(CorruptData):
        snapshots.read_footer(first)


def test_snapshot_that_is_overwritten_after_its_footer_was_read_is_corrupt(
    world: World, snapshots: IndexBucketSnapshots, tmp_path: Path
) -> None:
    """A range has no digest: the object that answers must state that of the one whose footer is known."""
    first, second = _written(world, tmp_path), _written(world, tmp_path, _ROWS.slice(0, 99))
    snapshots.read_footer(first)
    keys = [segment_key(one.bucket_id, 0) for one in (first, second)]
    world.objects._held[keys[0]] = world.objects._held[keys[1]]
    with pytest.raises(CorruptData):
        snapshots.read_segment(first, 0)


def test_answer_that_was_cut_off_once_is_asked_for_again(world: World, tmp_path: Path) -> None:
    """Of the footer, and of a segment."""
    bucket = _written(world, tmp_path)
    for skipped in range(2):
        snapshots = _process(world)
        if skipped:
            snapshots.read_footer(bucket)
        world.objects.plan(Fault(operation=StoreOperation.GET_RANGE, kind=FaultKind.CUT))
        assert snapshots.read_segment(bucket, 0) == _ROWS.slice(0, _SEGMENT)


def test_segment_of_another_snapshot_of_equal_layout_is_not_ours(
    world: World, snapshots: IndexBucketSnapshots, tmp_path: Path
) -> None:
    """The checksums of its pages came with it: the digest in the footer tells."""
    first = _written(world, tmp_path)
    start, length = row_group_byte_range(pq.read_metadata(tmp_path / "snapshot"), 0)
    others = DelayedRows.from_messages(
        (1_000 + 7 * number, at(3 + number % 2, (number + 5) % 100)) for number in range(100)
    )
    second = _written(world, tmp_path, others)
    assert row_group_byte_range(pq.read_metadata(tmp_path / "snapshot"), 0) == (start, length)
    key = segment_key(first.bucket_id, 0)
    own, other = (world.objects._held[segment_key(one.bucket_id, 0)].body for one in (first, second))
    mixed_up = own[:start] + other[start : start + length] + own[start + length :]
    assert mixed_up != own
    world.objects._held[key] = replace(world.objects._held[key], body=mixed_up)
    with pytest.raises(CorruptData, match="segment 0: expected digest"):
        snapshots.read_segment(first, 0)
    assert snapshots.read_segment(first, 1) == _ROWS.slice(_SEGMENT, 2 * _SEGMENT)


def test_store_that_does_not_answer_changes_nothing(
    world: World, snapshots: IndexBucketSnapshots, tmp_path: Path
) -> None:
    """What was not read is not kept: the next call asks again."""
    bucket = _written(world, tmp_path)
    for operation in (StoreOperation.HEAD, StoreOperation.GET_RANGE, StoreOperation.GET_RANGE):
        world.objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE))
        with pytest.raises(StoreUnavailable):
            snapshots.read_segment(bucket, 0)
    assert snapshots.read_segment(bucket, 0) == _ROWS.slice(0, _SEGMENT)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("effect", ["component.put_meta", "component.put_segment"])
def test_writer_that_dies_leaves_a_newborn_and_its_file(world: World, tmp_path: Path, effect: str, moment: str) -> None:
    """The row names whatever is stored; a sweep takes it away."""
    arm(f"{effect}.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        _written(world, tmp_path)
    assert world.listed(Component.DELAYED_INDEX) == []
    (row,) = world.catalog.ledger_rows.values()
    stored = [key for key in world.objects.keys if key.startswith(ledger_prefix(row.ledger_id))]
    assert (row.state, stored) == (LedgerState.CREATING, world.objects.keys)


def test_position_of_a_message_reads_back_as_it_was_written(world: World) -> None:
    """Ledger and entry ids as large as they can be."""
    big = Position(LedgerId(2**62), 2**31)
    rows = DelayedRows.from_messages([(5, big)])
    file = io.BytesIO()
    writer = IndexSnapshotWriter(file, world.topic.topic_id, big, big)
    writer.add_rows(rows)
    footer = writer.close()
    found: list[IndexBucket] = []

    def publish(born: NewIndexBucket) -> bool:
        found.append(_listed(world, born))
        return True

    assert _process(world).store_and_publish(file, footer, publish)
    assert _process(world).read_segment(found[0], 0).positions() == [big]
