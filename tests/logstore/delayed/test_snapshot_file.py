"""The file of a bucket's snapshot."""

import io
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.snapshot_file import (
    IndexSnapshotFooter,
    IndexSnapshotSegment,
    IndexSnapshotWriter,
    parse_snapshot_footer,
    read_segment,
)
from logstore.errors import CorruptData, InvalidInput
from logstore.positions import LedgerId, Position
from tests.logstore.delayed.rows import START_MS, TOPIC, Kind, made, windows, written

_FIRST, _LAST = Position(LedgerId(0), 0), Position(LedgerId(99), 0)


def _read(content: bytes) -> tuple[IndexSnapshotFooter, list[DelayedRows]]:
    metadata = pq.read_metadata(io.BytesIO(content))
    footer = parse_snapshot_footer(metadata, "it")
    numbers = range(len(footer.segments))
    file = io.BytesIO(content)
    return footer, [read_segment(file, one, footer=footer, metadata=metadata, name="it") for one in numbers]


@given(
    times=st.lists(st.integers(0, 60), min_size=1, max_size=80),
    window=st.integers(1, 30),
    least=st.integers(1, 9),
    more=st.integers(0, 9),
    step_ms=st.integers(1, 20),
)
def test_a_snapshot_reads_back_and_its_segments_are_cut_by_time_and_length(
    times: list[int], window: int, least: int, more: int, step_ms: int
) -> None:
    """However it was added: a segment has at most so many rows, and not more time than a step unless it had too few."""
    rows = DelayedRows.from_messages([(time, Position(LedgerId(1), entry)) for entry, time in enumerate(times)])
    file = io.BytesIO()
    writer = IndexSnapshotWriter(file, TOPIC, _FIRST, _LAST, segment_rows=(least, least + more), step_ms=step_ms)
    for part in windows(rows, window):
        writer.add_rows(part)
    closed = writer.close()
    footer, segments = _read(file.getvalue())
    assert (footer.segments, footer.compressed_bitmaps, footer.messages) == (
        closed.segments,
        closed.compressed_bitmaps,
        len(rows),
    )
    assert (footer.topic_id, footer.first, footer.last) == (TOPIC, _FIRST, _LAST)
    assert (footer.first_ms, footer.last_ms) == (min(times), max(times))
    assert footer.bitmaps == rows.to_bitmaps()
    assert DelayedRows.concatenate(segments) == rows
    for number, part in enumerate(segments):
        assert 1 <= len(part) <= least + more
        assert len(part) >= least or number == len(segments) - 1
        spanned = int(part.deliver_at_ms[-1] - part.deliver_at_ms[0])
        assert spanned < step_ms or len(part) <= least


def test_a_segment_has_a_step_of_time_but_10000_to_100000_rows() -> None:
    """As the settings of the format are."""
    even = made(60_000)  # in an hour
    footer, _ = _read(written(even))
    assert {one.messages for one in footer.segments[:-1]} == {10_000}
    dense = DelayedRows.from_columns(even.deliver_at_ms // 60 + START_MS, even.ledger_id, even.entry_id)
    assert [one.messages for one in _read(written(dense))[0].segments] == [60_000]
    many = DelayedRows.concatenate(
        [DelayedRows(dense.deliver_at_ms + n, dense.ledger_id + n, dense.entry_id) for n in (0, 1)]
    )
    same = DelayedRows.from_columns(many.deliver_at_ms * 0, many.ledger_id, many.entry_id)
    assert [one.messages for one in _read(written(same))[0].segments] == [100_000, 20_000]


def test_a_writer_takes_a_path_and_refuses_what_is_no_snapshot(tmp_path: Path) -> None:
    """No rows, rows that go back in time, a position twice or outside the range: none of it becomes a bucket."""
    target = tmp_path / "snapshot"
    writer = IndexSnapshotWriter(target, TOPIC, _FIRST, _LAST)
    writer.add_rows(made(10))
    writer.close()
    assert _read(target.read_bytes())[1] == [made(10)]

    with pytest.raises(InvalidInput, match="1 or more"):
        IndexSnapshotWriter(io.BytesIO(), TOPIC, _FIRST, _LAST).close()
    back = IndexSnapshotWriter(io.BytesIO(), TOPIC, _FIRST, _LAST)
    back.add_rows(made(10))
    with pytest.raises(InvalidInput, match="a time from"):
        back.add_rows(made(10, [2], seed=1))
    twice = IndexSnapshotWriter(io.BytesIO(), TOPIC, _FIRST, _LAST)
    twice.add_rows(DelayedRows.from_messages([(1, _FIRST)]))
    twice.add_rows(DelayedRows.from_messages([(2, _FIRST)]))
    with pytest.raises(InvalidInput, match="none twice"):
        twice.close()
    outside = IndexSnapshotWriter(io.BytesIO(), TOPIC, _FIRST, _FIRST)
    outside.add_rows(DelayedRows.from_messages([(1, _LAST)]))
    with pytest.raises(InvalidInput, match="of the bucket's range"):
        outside.close()
    for one in (back, twice, outside):
        one.close_without_footer()


def test_a_footer_of_another_format_is_refused() -> None:
    """Another version, a missing part, and segments that contradict the file or each other."""
    content = written(made(30_000))
    metadata = pq.read_metadata(io.BytesIO(content))
    told = dict(metadata.metadata or {})
    facts = told[b"sexton.delayed"]
    odd = [
        {},
        told | {b"sexton.delayed": facts.replace(b'"version": 1', b'"version": 2')},
        told | {b"sexton.delayed": facts.replace(b"[[10000, ", b"[[9999, ")},
        told | {b"sexton.delayed": facts.replace(b"[[10000, ", b"[[10000, 9")},
        told | {b"sexton.delayed": b"["},
        {b"sexton.delayed": facts},
    ]
    for one in odd:
        with pytest.raises(CorruptData, match="it: "):
            parse_snapshot_footer(_Told(metadata, one), "it")


class _Told:
    """A footer with other key-value metadata."""

    def __init__(self, real: pq.FileMetaData, metadata: dict[bytes, bytes]) -> None:
        self.metadata, self.num_row_groups, self.row_group = metadata, real.num_row_groups, real.row_group


def test_bitmaps_that_contradict_the_facts_are_refused() -> None:
    """Fewer entries than messages would hide none; more would hide some for ever; so does another range."""
    footer, _ = _read(written(made(100, [1, 2])))
    one = replace(footer, compressed_bitmaps=_read(written(made(50, [1])))[0].compressed_bitmaps)
    with pytest.raises(CorruptData, match="expected bitmaps of 100 messages, found 50"):
        _ = one.bitmaps
    with pytest.raises(CorruptData, match="expected 1:1 to"):
        _ = replace(footer, first=Position(LedgerId(1), 1)).bitmaps
    with pytest.raises(CorruptData, match="expected bitmaps, found 0 bytes"):
        _ = replace(footer, compressed_bitmaps=b"").bitmaps
    for odd in (footer.compressed_bitmaps[:-1], footer.compressed_bitmaps[:4] + footer.compressed_bitmaps):
        with pytest.raises(CorruptData, match="it: the bitmaps cannot be read"):
            _ = replace(footer, compressed_bitmaps=odd).bitmaps


def test_a_damaged_segment_is_refused() -> None:
    """Pages have checksums; a segment that is not what the footer says is another one's."""
    rows = made(30_000)
    content = bytearray(written(rows))
    metadata = pq.read_metadata(io.BytesIO(bytes(content)))
    footer = parse_snapshot_footer(metadata, "it")
    column = metadata.row_group(1).column(2)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    file = io.BytesIO(bytes(content))
    assert len(read_segment(file, 0, footer=footer, metadata=metadata, name="it")) == 10_000
    with pytest.raises(CorruptData, match="it, segment 1"):
        read_segment(file, 1, footer=footer, metadata=metadata, name="it")
    others = replace(footer, segments=(IndexSnapshotSegment(10_000, 1, 2), *footer.segments[1:]))
    with pytest.raises(CorruptData, match="it, segment 0: expected"):
        read_segment(file, 0, footer=others, metadata=metadata, name="it")


@pytest.mark.parametrize(("kind", "most"), [("random", 6.0), ("minute", 4.0), ("delay", 1.0)])
def test_a_message_takes_few_bytes_in_a_snapshot(kind: Kind, most: float) -> None:
    """With bitmaps, columns, checksums and the footer."""
    rows = made(100_000, [1, 2, 3, 4], kind=kind)
    assert len(written(rows)) / len(rows) <= most


def test_a_snapshot_is_an_ordinary_parquet_file() -> None:
    """Any reader of Parquet reads its rows."""
    rows = made(1_000, [1, 2])
    table: pa.Table = pq.read_table(io.BytesIO(written(rows)))
    assert DelayedRows.from_table(table, name="it") == rows
