"""Segments as Parquet."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptData
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.segment_format import COLUMNS, decode_segment, encode_segment

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_ENTRY = st.builds(
    NewEntry,
    payload=st.binary(max_size=20),
    key=st.none() | _TEXT,
    deliver_at_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
    sequence_id=st.none() | st.integers(0, 2**63 - 1),
    properties=st.dictionaries(_TEXT, _TEXT, max_size=2),
)
_PART = st.builds(ProducedEntries, entries=st.lists(_ENTRY, max_size=4), producer=st.none() | _TEXT)


@settings(max_examples=50, deadline=None)  # the first call loads much of pyarrow
@given(st.lists(_PART, min_size=1, max_size=3), st.integers(0, 2**62))
def test_segment_any_entries_come_back_in_order(parts: list[ProducedEntries], publish_ms: int) -> None:
    """Every column of every entry survives, one part behind the other."""
    found = decode_segment(
        io.BytesIO(encode_segment(parts, publish_ms=publish_ms)), columns=list(COLUMNS), name="x"
    ).to_pylist()
    wanted = [(part.producer, entry) for part in parts for entry in part.entries]
    assert [(row["producer"], row["payload"], row["key"]) for row in found] == [
        (producer, entry.payload, entry.key) for producer, entry in wanted
    ]
    assert [(row["deliver_at_ms"], row["sequence_id"]) for row in found] == [
        (entry.deliver_at_ms, entry.sequence_id) for _, entry in wanted
    ]
    assert [dict(row["properties"]) for row in found] == [entry.properties for _, entry in wanted]
    assert {row["publish_ms"] for row in found} <= {publish_ms}
    assert {row["marker"] for row in found} <= {None}


def _segment(rows: int) -> bytes:
    entries = [NewEntry(payload=b"%d" % number) for number in range(rows)]
    return encode_segment([ProducedEntries(entries=entries)], publish_ms=1)


def test_segment_is_zstd_with_the_schema_in_order() -> None:
    """The stored format is what any Parquet reader sees, not only ours."""
    file = pq.ParquetFile(io.BytesIO(_segment(3)))
    assert file.schema_arrow.names == list(COLUMNS)
    group = file.metadata.row_group(0)
    assert {group.column(at).compression for at in range(group.num_columns)} == {"ZSTD"}
    by_path = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert by_path["producer"].has_dictionary_page
    assert not by_path["payload"].has_dictionary_page


class _Counting(io.BytesIO):
    """Counts bytes read."""

    total = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.total += len(found)
        return found


def test_segment_reader_of_few_columns_reads_no_payloads() -> None:
    """Readers project columns: what a recovery reads does not grow with payloads."""
    noise = random.Random(1)
    entries = [NewEntry(payload=noise.randbytes(1 << 16)) for _ in range(20)]
    source = _Counting(encode_segment([ProducedEntries(entries=entries)], publish_ms=1))
    assert decode_segment(source, columns=["publish_ms", "deliver_at_ms"], name="x").num_rows == 20
    assert source.total < len(source.getvalue()) / 10


@pytest.mark.parametrize("cut", [0, 3, 100, -1])
def test_segment_cut_short_is_corrupt_and_named(cut: int) -> None:
    """A half object is never half an answer."""
    with pytest.raises(CorruptData, match=r"^ledgers/x"):
        decode_segment(io.BytesIO(_segment(3)[:cut]), columns=["publish_ms"], name="ledgers/x")


def test_segment_without_a_column_is_corrupt() -> None:
    """A Parquet file of another kind is no segment."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"publish_ms": [1]}), sink)
    with pytest.raises(CorruptData, match="without columns \\['payload'\\]"):
        decode_segment(sink, columns=["publish_ms", "payload"], name="x")


def test_segment_holds_a_payload_once() -> None:
    """A file's statistics would repeat the least and the greatest value of a column, whole payloads among them."""
    payload = random.Random(1).randbytes(50_000)
    body = encode_segment([ProducedEntries(entries=[NewEntry(payload=payload)])], publish_ms=0)
    assert len(body) < len(payload) + 5_000
