"""Index buckets of delayed messages from bytes as a broker writes them, and topics as a person writes them."""

import pytest

from logstore.errors import InvalidInput
from logstore.pulsar.delayed_buckets import (
    IndexBucketSegment,
    find_next_due_ms,
    name_topic_and_subscription,
    parse_index_bucket,
    parse_topic_argument,
)
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from tests.logstore.pulsar import wire


def test_messages_of_all_ledgers_of_a_segment_are_counted() -> None:
    entry = wire.index_bucket(({1: [0, 7, 65_535], 2: [4]}, 1_000, 2_000), ({2: [5]}, 3_000, 3_000))
    assert parse_index_bucket(entry) == [IndexBucketSegment(4, 1_000, 2_000), IndexBucketSegment(1, 3_000, 3_000)]
    assert parse_index_bucket(b"") == []


@pytest.mark.parametrize("bitmap", [b"", b"x", wire.entry_bitmap([1, 2])[:-1]])
def test_a_damaged_bitmap_is_unreadable(bitmap: bytes) -> None:
    segment = wire.encode_message((1, wire.encode_message((1, 7), (2, bitmap))), (2, 5), (3, 4))
    with pytest.raises(UnreadableMetadata, match="bitmap"):
        parse_index_bucket(wire.encode_message((1, segment)))


@pytest.mark.parametrize("entry", [b"\xff", wire.encode_message((9, 1))])
def test_a_damaged_or_unknown_entry_is_unreadable(entry: bytes) -> None:
    with pytest.raises(UnreadableMetadata):
        parse_index_bucket(entry)


@pytest.mark.parametrize(("now_ms", "next_ms"), [(500, 1_000), (1_500, 1_000), (2_000, 3_000), (4_000, None)])
def test_a_segment_that_is_due_as_a_whole_has_no_next_time(now_ms: int, next_ms: int | None) -> None:
    segments = [IndexBucketSegment(4, 1_000, 2_000), IndexBucketSegment(1, 3_000, 4_000)]
    assert find_next_due_ms(segments, now_ms) == next_ms


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("persistent://t/ns/a", "t/ns/persistent/a"),
        ("t/ns/a b~", "t/ns/persistent/a+b%7E"),
        ("t/east/ns/a", "t/east/ns/persistent/a"),
    ],
)
def test_a_topic_may_be_written_with_and_without_its_domain(text: str, name: str) -> None:
    assert parse_topic_argument(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "ns/a",
        "t/ns/",
        "/ns/a",
        "t//a",
        "t/../a",
        "t/ns/..",
        "non-persistent://t/ns/a",
        "a/b/c/d/e",
        "://t/ns/a",
    ],
)
def test_any_other_text_is_no_topic(text: str) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        parse_topic_argument(text)


def test_names_of_a_path_are_as_a_person_writes_them() -> None:
    path = "managed-ledgers/t/ns/persistent/a%2Fb/my+sub"
    assert name_topic_and_subscription(path) == ("persistent://t/ns/a/b", "my sub")
    assert name_topic_and_subscription("managed-ledgers/t/ns/persistent/a~/b") == (
        "managed-ledgers/t/ns/persistent/a~/b",
        "",
    )
    assert name_topic_and_subscription("managed-ledgers/t/ns") == ("managed-ledgers/t/ns", "")
