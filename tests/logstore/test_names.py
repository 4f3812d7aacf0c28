"""Topic and subscription names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidInput
from logstore.names import MAX_ENCODED, TopicName, check_subscription

_PART = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(_PART, _PART, _PART.filter(lambda part: "-partition-" not in part))
def test_topic_name_any_text_round_trips_through_its_encoded_form(tenant: str, namespace: str, local: str) -> None:
    """What a person wrote comes back, and ids and metadata carry ASCII only (delta-rs#4646)."""
    text = f"persistent://{tenant}/{namespace}/{local}"
    name = TopicName.parse(text)
    assert name.display == text
    assert name.encoded.isascii()
    assert " " not in name.encoded
    assert TopicName.from_encoded(name.encoded) == name
    assert TopicName.parse(name.display) == name


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
    assert len(TopicName.parse(head + "c" * (MAX_ENCODED - len(head))).encoded) == MAX_ENCODED
    with pytest.raises(InvalidInput, match="at most 200"):
        TopicName.parse(head + "c" * (MAX_ENCODED - len(head) + 1))
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


@pytest.mark.parametrize("name", ["", "a b", "é", "a\n", "a" * 121])
def test_subscription_name_outside_printable_ascii_is_refused(name: str) -> None:
    """Subscription names travel in metadata and search attributes."""
    with pytest.raises(InvalidInput, match=r"^subscription: "):
        check_subscription(name)


def test_subscription_name_of_120_characters_is_taken() -> None:
    """The limit is inclusive."""
    assert check_subscription("~" * 120) == "~" * 120
