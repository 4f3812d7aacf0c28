"""Topics hash into bundles."""

import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidInput
from logstore.ownership import (
    MAX_BUNDLES,
    BundleId,
    bundle_name,
    bundle_of_topic,
    check_bundle_count,
    parse_bundle_name,
)
from logstore.validated_names import TopicName

_COUNTS = st.integers(1, 300) | st.integers(1, MAX_BUNDLES)
_TOPICS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8).map(
    lambda local: TopicName.parse(f"persistent://a/b/{local}")
)


def _range(bundle: int, bundles: int) -> tuple[int, int]:
    lower, _, upper = bundle_name(BundleId(bundle), bundle_count=bundles).partition("_")
    return int(lower, 16), int(upper, 16)


def test_bundle_hash_is_crc_32_of_the_encoded_name() -> None:
    """The check value of CRC-32 (0xcbf43926), and with it every topic's place, never changes."""
    assert zlib.crc32(b"123456789") == 0xCBF43926
    topic = TopicName.parse("persistent://public/default/o é")
    assert topic.encoded == "persistent://public/default/o%20%C3%A9"
    assert zlib.crc32(topic.encoded.encode()) == 0xB75CE821
    assert [bundle_of_topic(topic, bundle_count=count) for count in (1, 64, 1_000)] == [0, 45, 716]


def test_bundle_names_are_those_of_the_source() -> None:
    """Lower inclusive, upper exclusive; the last ends at 0xffffffff, which is in it."""
    names = [bundle_name(BundleId(bundle), bundle_count=4) for bundle in range(4)]
    assert names == [
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
        "0x80000000_0xc0000000",
        "0xc0000000_0xffffffff",
    ]
    assert bundle_name(BundleId(0), bundle_count=64) == "0x00000000_0x04000000"
    assert bundle_name(BundleId(0), bundle_count=1) == "0x00000000_0xffffffff"


@given(_TOPICS, _COUNTS)
def test_bundle_of_a_topic_is_the_one_whose_range_holds_its_hash(topic: TopicName, bundles: int) -> None:
    """What the name of a bundle says is what is in it, for numbers that divide nothing too."""
    bundle = bundle_of_topic(topic, bundle_count=bundles)
    lower, upper = _range(bundle, bundles)
    hashed = zlib.crc32(topic.encoded.encode())
    assert lower <= hashed
    assert hashed < upper or (bundle == bundles - 1 and hashed <= upper)


@given(st.integers(1, 300))
def test_bundle_ranges_cover_every_hash_once_and_evenly(bundles: int) -> None:
    """No gap, no overlap, and widths that differ by one."""
    ranges = [_range(bundle, bundles) for bundle in range(bundles)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 0xFFFFFFFF
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    begins = [lower for lower, _ in ranges] + [2**32]
    widths = {after - before for before, after in pairwise(begins)}
    assert max(widths) - min(widths) <= 1


@given(_COUNTS, st.data())
def test_bundle_name_round_trips(bundles: int, data: st.DataObject) -> None:
    """A name in ZooKeeper leads back to its bundle."""
    bundle = BundleId(data.draw(st.integers(0, bundles - 1)))
    assert parse_bundle_name(bundle_name(bundle, bundle_count=bundles), bundle_count=bundles) == bundle


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "0x00000000",
        "0x00000000_0x80000000",  # of two bundles
        "0x02000000_0x04000000",
        "0x00000000_0x04000001",
        "0x00000000_0x0400000g",
        "0X00000000_0x04000000",
        "0x0_0x4000000",
        "0x04000000_0x00000000",
        "0xfc000000_0x100000000",
        "-x00000000_0x04000000",
        " 0x00000000_0x04000000",
        "-0x4000000_0x00000000",
        "0xffffffff_0xffffffff",
    ],
)
def test_bundle_name_that_is_no_range_of_this_catalog_is_refused(name: str) -> None:
    """A catalog of another number of bundles on the same ensemble is not mistaken for this one."""
    with pytest.raises(InvalidInput, match=r"^bundle: expected the hash range of one of 64 bundles"):
        parse_bundle_name(name, bundle_count=64)


@pytest.mark.parametrize("count", [-1, 0, MAX_BUNDLES + 1])
def test_bundles_outside_their_bounds_are_refused(count: int) -> None:
    """By every function that is told a number of them."""
    topic = TopicName.parse("persistent://a/b/c")
    with pytest.raises(InvalidInput, match=r"^bundles: expected 1 to 16384"):
        check_bundle_count(count)
    with pytest.raises(InvalidInput, match=r"^bundles: "):
        bundle_of_topic(topic, bundle_count=count)
    with pytest.raises(InvalidInput, match=r"^bundles: "):
        bundle_name(BundleId(0), bundle_count=count)
    with pytest.raises(InvalidInput, match=r"^bundles: "):
        parse_bundle_name("0x00000000_0xffffffff", bundle_count=count)


def test_bundles_at_their_bounds_are_taken() -> None:
    """Both inclusive."""
    assert [check_bundle_count(count) for count in (1, MAX_BUNDLES)] == [1, MAX_BUNDLES]


def test_bundle_names_of_the_most_bundles_fit_one_answer_of_zookeeper() -> None:
    """A listing has 4 bytes for the length of each name, and 1 MiB for all."""
    names = [bundle_name(BundleId(bundle), bundle_count=MAX_BUNDLES) for bundle in range(MAX_BUNDLES)]
    assert sum(4 + len(name) for name in names) < 2**20
    assert len(set(names)) == MAX_BUNDLES


@pytest.mark.parametrize("bundle", [-1, 64])
def test_bundle_that_does_not_exist_has_no_name(bundle: int) -> None:
    """Refused, not wrapped around."""
    with pytest.raises(InvalidInput, match=r"^bundle: expected 0 to 63"):
        bundle_name(BundleId(bundle), bundle_count=64)
