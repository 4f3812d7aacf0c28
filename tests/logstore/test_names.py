"""Topic and subscription names."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidInput
from logstore.validated_names import (
    MAX_ENCODED_CHARACTERS,
    TopicName,
    check_audit_reason,
    check_producer_or_actor_name,
    check_subscription_name,
    encode_topic_prefix,
)

_PART = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(_PART, _PART, _PART.filter(lambda part: "-partition-" not in part))
def test_topic_name_any_text_round_trips_through_its_encoded_form(tenant: str, namespace: str, local: str) -> None:
    """What a person wrote comes back, and ids and metadata carry ASCII only (delta-rs#4646)."""
    text = f"persistent://{tenant}/{namespace}/{local}"
    name = TopicName.parse_existing(text)
    assert unquote(name.encoded) == text
    assert name.encoded.isascii()
    assert " " not in name.encoded
    assert TopicName.from_encoded(name.encoded) == name
    assert TopicName.parse_existing(unquote(name.encoded)) == name


@given(_PART, st.text("ab/ %é", max_size=3), st.integers(0, 40))
def test_encoded_beginning_is_that_of_the_same_names(part: str, other: str, length: int) -> None:
    """A prefix as a person writes it selects as many names as its encoded form, cut wherever it was."""
    name = TopicName.parse_existing(f"persistent://{part}/%b/é a")
    written = unquote(name.encoded)
    for prefix in (written[:length], written[:length] + other):
        if not prefix.startswith("persistent://"):
            prefix = "persistent://"[:length]  # noqa: PLW2901 - others are refused before
        assert name.encoded.startswith(encode_topic_prefix(prefix)) == written.startswith(prefix)


@pytest.mark.parametrize(
    "part", ["\x1b[2J", "a\nb", "a\x7f", "\x9b31m", "a\u202eb", "\u2066a", "\u200f", "\u2028", ".", ".."]
)
def test_topic_name_that_steers_a_terminal_or_means_a_folder_is_no_name_of_a_new_topic(part: str) -> None:
    """Such a name reads another way than it is written; one from before is still found, trimmed and deleted."""
    for text in (f"persistent://{part}/b/c", f"persistent://a/b/{part}"):
        with pytest.raises(InvalidInput, match=r"^topic: expected "):
            TopicName.parse(text)
        assert unquote(TopicName.from_encoded(TopicName.parse_existing(text).encoded).encoded) == text


@pytest.mark.parametrize("part", ["a b", "...", "a.", "é", "日本語", "👩\u200d🚀", "क्\u200dष"])
def test_topic_name_in_any_script_is_taken(part: str) -> None:
    """What joins letters steers nothing."""
    assert unquote(TopicName.parse(f"persistent://a/b/{part}").encoded).endswith(part)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "persistent://a/b",
        "persistent://a/b/c/d",
        "persistent:///b/c",
        "persistent://a/b/",
        "non-persistent://a/b/c",
        "a/b/c",
        "Persistent://a/b/c",
        "persistent://a/b/c-partition-01",
        "persistent://a/b/\ud800",
    ],
)
def test_topic_name_of_another_form_is_refused(text: str) -> None:
    """Exactly three parts, one scheme, canonical partition numbers, text that UTF-8 holds."""
    with pytest.raises(InvalidInput, match=r"^topic: expected "):
        TopicName.parse(text)


def test_topic_name_longest_is_taken_and_one_more_refused() -> None:
    """The limit counts encoded characters and is inclusive."""
    head = "persistent://a/b/"
    assert len(TopicName.parse(head + "c" * (MAX_ENCODED_CHARACTERS - len(head))).encoded) == MAX_ENCODED_CHARACTERS
    with pytest.raises(InvalidInput, match="at most 200"):
        TopicName.parse(head + "c" * (MAX_ENCODED_CHARACTERS - len(head) + 1))
    with pytest.raises(InvalidInput, match="at most 200"):
        TopicName.parse(head + "é" * 40)


@pytest.mark.parametrize(
    ("local", "number"), [("c-partition-0", 0), ("c-partition-17", 17), ("c", None), ("c-partition-x", None)]
)
def test_topic_name_partition_is_read_from_the_end(local: str, number: int | None) -> None:
    """Partition 0 is an ordinary value (apache/bookkeeper#950)."""
    assert TopicName.parse(f"persistent://a/b/{local}").partition == number


@pytest.mark.parametrize("encoded", ["persistent://a/b/c d", "persistent://a/b/%63", "persistent://a/b/%ff", "x"])
def test_topic_name_encoded_in_another_way_is_refused(encoded: str) -> None:
    """One name has one encoded form, so keys compare as text (apache/iceberg#4346)."""
    with pytest.raises(InvalidInput):
        TopicName.from_encoded(encoded)


@pytest.mark.parametrize("name", ["", "a b", "é", "a\n", "a" * 121, ".", ".."])
def test_subscription_name_outside_printable_ascii_is_refused(name: str) -> None:
    """Subscription names travel in metadata and search attributes."""
    with pytest.raises(InvalidInput, match=r"^subscription: "):
        check_subscription_name(name)


@pytest.mark.parametrize("name", ["", " ", "a\x1b", "a\u202e", ".", "..", "x" * 201])
def test_name_of_a_producer_or_an_actor_that_cannot_be_printed_is_refused(name: str) -> None:
    """It is stored, and shown in tables and audit rows."""
    with pytest.raises(InvalidInput, match=r"^producer: expected 1 to 200 printable"):
        check_producer_or_actor_name("producer", name)
    assert check_producer_or_actor_name("actor", "uid 7") == "uid 7"


@pytest.mark.parametrize("reason", ["a\nb", "a\x00", "x" * 2_001])
def test_reason_that_no_audit_row_can_show_is_refused(reason: str) -> None:
    """The limit is inclusive, and none need be said."""
    with pytest.raises(InvalidInput, match=r"^reason: expected at most 2,000 printable"):
        check_audit_reason(reason)
    assert [len(check_audit_reason("x" * size)) for size in (0, 2_000)] == [0, 2_000]


def test_subscription_name_of_120_characters_is_taken() -> None:
    """The limit is inclusive."""
    assert check_subscription_name("~" * 120) == "~" * 120
