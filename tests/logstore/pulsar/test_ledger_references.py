"""What each kind of value refers to, and refusal of values that are damaged or have unknown fields."""

import zlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from logstore.pulsar.ledger_references import (
    CursorReferences,
    IndexBucketReference,
    OffloadAttempt,
    find_cursor_ledger_references,
    find_cursor_references,
    find_log_allocation_reference,
    find_log_segment_reference,
    find_managed_ledger_references,
    find_schema_references,
)
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from tests.logstore.pulsar.wire import (
    cursor,
    cursor_position,
    encode_message,
    encode_varint,
    frame,
    managed_ledger,
    offload_context,
    pair,
    schema_locator,
)

_UUID = UUID("f0000000-0000-4000-8000-00000000000f")


def test_a_managed_ledger_refers_to_its_ledgers() -> None:
    references = find_managed_ledger_references(managed_ledger([7, 9, 1 << 40]))
    assert references.ledger_ids == (7, 9, 1 << 40)
    assert not references.shadow_source
    assert not references.offloads


def test_a_topic_that_was_never_loaded_refers_to_nothing() -> None:
    assert find_managed_ledger_references(b"").ledger_ids == ()


def test_a_shadow_topic_lists_ledgers_of_its_source() -> None:
    references = find_managed_ledger_references(managed_ledger([7], shadow="persistent://public/default/source"))
    assert references.shadow_source == "persistent://public/default/source"


@pytest.mark.parametrize("complete", [False, True])
def test_an_offload_is_named_complete_or_not(complete: bool) -> None:
    data = managed_ledger([7, 8], offloads={7: offload_context(_UUID, complete=complete)})
    references = find_managed_ledger_references(data)
    assert references.offloads == (OffloadAttempt(7, _UUID, complete, bookkeeper_deleted=False, bucket="tiered"),)
    assert not references.ledgers_given_up


def test_a_ledger_that_was_given_up_after_its_offload_need_not_exist() -> None:
    context = offload_context(_UUID, complete=True, bookkeeper_deleted=True)
    assert find_managed_ledger_references(managed_ledger([7, 8], offloads={7: context})).ledgers_given_up == {7}


def test_segments_of_a_streaming_offload_are_named_too() -> None:
    segment = encode_message((1, 1), (2, 2), (3, 1))
    data = managed_ledger([7], offloads={7: encode_message((7, segment))})
    (attempt,) = find_managed_ledger_references(data).offloads
    assert attempt.uuid == UUID(int=1 << 64 | 2)


def test_a_ledger_of_pulsar_4_2_may_have_properties() -> None:
    data = encode_message((1, encode_message((1, 7), (6, pair("a", "b")))))
    assert find_managed_ledger_references(data).ledger_ids == (7,)


def test_a_cursor_refers_to_its_ledger_and_its_buckets() -> None:
    data = cursor(12, buckets={"10_12": "9", "2_5": "8"})
    buckets = (IndexBucketReference(2, 5, 8), IndexBucketReference(10, 12, 9))
    assert find_cursor_references(data) == CursorReferences(12, buckets)


def test_a_cursor_without_a_ledger_may_refer_to_a_compacted_ledger() -> None:
    assert find_cursor_references(cursor(-1, compacted=30)) == CursorReferences(None, (), 30)
    assert find_cursor_references(cursor(-1, compacted=-1)) == CursorReferences(None)


def test_the_last_entry_of_a_cursor_ledger_names_the_compacted_ledger() -> None:
    assert find_cursor_ledger_references(cursor_position(compacted=31)) == 31
    assert find_cursor_ledger_references(cursor_position()) is None


def test_a_schema_refers_to_the_ledgers_of_all_versions() -> None:
    assert find_schema_references(schema_locator([5, 3, 8])) == (3, 5, 8)


def test_segments_and_allocations_of_a_log_refer_to_one_ledger() -> None:
    assert find_log_segment_reference(b"5;42;1;100;12") == 42
    assert find_log_segment_reference(b"281474976710661;43") == 43, "the low byte is the version"
    assert find_log_allocation_reference(b"44") == 44
    assert find_log_allocation_reference(b"") is None


def compress_without_end(data: bytes) -> bytes:
    """Compress as Pulsar does with zlib: the stream is flushed, and has neither a last block nor a checksum."""
    compressor = zlib.compressobj()
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize(
    ("kind", "compress"),
    [
        (0, bytes),
        (1, lambda data: pa.compress(data, "lz4_raw", asbytes=True)),
        (2, compress_without_end),
        (3, lambda data: pa.compress(data, "zstd", asbytes=True)),
        (4, lambda data: pa.compress(data, "snappy", asbytes=True)),
    ],
)
def test_values_are_read_from_each_type_of_frame(kind: int, compress: Callable[[bytes], bytes]) -> None:
    data = managed_ledger(range(1, 200))
    framed = frame(kind, len(data), compress(data))
    assert find_managed_ledger_references(framed).ledger_ids == tuple(range(1, 200))
    with pytest.raises(UnreadableMetadata):
        find_managed_ledger_references(frame(kind, len(data) + 1, compress(data)))
    with pytest.raises(UnreadableMetadata):
        find_managed_ledger_references(framed[: len(framed) // 2])


@pytest.mark.parametrize(
    "data",
    [
        frame(5, 10, b"x" * 10),
        frame(2, 1 << 30, zlib.compress(b"x")),
        frame(2, -1, zlib.compress(b"x")),
        b"\x47\x78",
        b"\x47\x78\x00\x00\x00\xff\x08",
    ],
)
def test_damaged_frames_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableMetadata):
        find_managed_ledger_references(data)


_UNREADABLE: list[Any] = [
    pytest.param(find_managed_ledger_references, managed_ledger([7])[:-1], id="managed ledger, cut"),
    pytest.param(
        find_managed_ledger_references, encode_message((1, encode_message((2, 3)))), id="ledger without an id"
    ),
    pytest.param(find_managed_ledger_references, encode_message((9, 1)), id="managed ledger, unknown field"),
    pytest.param(
        find_managed_ledger_references, encode_message((1, encode_message((1, 7), (7, 8)))), id="nested field"
    ),
    pytest.param(find_managed_ledger_references, managed_ledger([-2]), id="ledger id below zero"),
    pytest.param(find_managed_ledger_references, b"\xff" * 20, id="no message"),
    pytest.param(find_cursor_references, b"", id="cursor, empty"),
    pytest.param(find_cursor_references, managed_ledger([7]), id="a managed ledger where a cursor should be"),
    pytest.param(find_cursor_references, cursor(-2), id="cursor ledger -2"),
    *(
        pytest.param(find_cursor_references, cursor(1, buckets={name: "9"}), id=f"bucket {name!r}")
        for name in ("1", "1_2_3", "_2", "1_", "a_b", "1_-2", "1_2 ")
    ),
    pytest.param(find_cursor_references, cursor(1, buckets={"1_2": "0x20"}), id="bucket, no decimal id"),
    pytest.param(find_cursor_references, cursor(1, buckets={"1_2": ""}), id="bucket without an id"),
    pytest.param(find_cursor_references, cursor(1, buckets={"1_2": "\u0663"}), id="bucket, digits of another script"),
    pytest.param(find_cursor_references, cursor(1, buckets={"1_2": str(1 << 63)}), id="bucket id beyond 63 bits"),
    pytest.param(
        find_cursor_references,
        cursor(-1, compacted=1) + encode_message((5, pair("CompactedTopicLedger", 2))),
        id="two compacted ledgers",
    ),
    pytest.param(
        find_cursor_references,
        cursor(-1) + encode_message((8, pair("#pulsar.internal.delayed.index2_1", "5"))),
        id="unknown internal property",
    ),
    pytest.param(find_cursor_ledger_references, b"", id="position, empty"),
    pytest.param(find_cursor_ledger_references, cursor_position(compacted=4)[:-1], id="position, cut"),
    pytest.param(find_schema_references, b"", id="schema, empty"),
    pytest.param(find_schema_references, schema_locator([-1]), id="schema, placeholder"),
    pytest.param(find_log_segment_reference, b"", id="log segment, empty"),
    pytest.param(find_log_segment_reference, b"6;42;1", id="log segment, version 6"),
    pytest.param(find_log_segment_reference, b"5", id="log segment without a ledger"),
    pytest.param(find_log_segment_reference, b"5;x;1", id="log segment, no number"),
    pytest.param(find_log_allocation_reference, b"L44", id="allocation, no number"),
    pytest.param(find_log_allocation_reference, b"\xff\xfe", id="allocation, no text"),
]


@pytest.mark.parametrize(("find", "data"), _UNREADABLE)
def test_what_cannot_be_read_is_refused(find: Callable[[bytes], object], data: bytes) -> None:
    """A guess would turn a live ledger into an orphan."""
    with pytest.raises(UnreadableMetadata):
        find(data)


def test_every_cut_of_a_value_is_refused_or_loses_whole_fields() -> None:
    """A message has no length of its own: only a cut between two fields cannot be seen."""
    data = managed_ledger([7, 8, 9])
    sizes = {0, *(len(managed_ledger(ids)) for ids in ([7], [7, 8]))}
    for end in range(len(data)):
        if end in sizes:
            continue
        with pytest.raises(UnreadableMetadata):
            find_managed_ledger_references(data[:end])


def test_the_tests_encode_numbers_as_protobuf_does() -> None:
    assert encode_varint(300) == b"\xac\x02"
    assert encode_varint(-1) == b"\xff" * 9 + b"\x01"
