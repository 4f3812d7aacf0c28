"""Which buckets are merged, and what limits there may be."""

from dataclasses import replace
from typing import Any

import pytest

from logstore.delayed.index_buckets import IndexBucket, IndexBucketList, SealAndMergeLimits, find_pair_to_merge
from logstore.errors import InvalidInput
from logstore.positions import LedgerId, Position


def _bucket(number: int, messages: int) -> IndexBucket:
    at = Position(LedgerId(number), 0)
    return IndexBucket(
        bucket_id=LedgerId(100 + number), first=at, last=at, messages=messages, segments=1, first_ms=1, last_ms=2
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 20])
def test_any_limit_is_reached_by_merging_two_at_a_time(limit: int) -> None:
    """Field case 59: a selection that needed more than four buckets failed below."""
    buckets = [_bucket(number, messages) for number, messages in enumerate([5, 1, 9, 2, 2, 7, 3])]
    total = sum(one.messages for one in buckets)
    while len(buckets) > limit:
        pair = find_pair_to_merge(buckets)
        assert pair is not None
        at = buckets.index(pair[0])
        assert buckets[at + 1] == pair[1]
        buckets[at : at + 2] = [_bucket(at, pair[0].messages + pair[1].messages)]
    assert len(buckets) == min(limit, 7)
    assert sum(one.messages for one in buckets) == total


def test_the_adjacent_pair_with_the_fewest_messages_is_merged_and_the_first_of_several() -> None:
    """One bucket alone is no pair."""
    buckets = [_bucket(number, messages) for number, messages in enumerate([4, 1, 9, 2, 3])]
    assert find_pair_to_merge(buckets) == (buckets[0], buckets[1])
    assert find_pair_to_merge(buckets[2:]) == (buckets[3], buckets[4])
    assert find_pair_to_merge(buckets[:1]) is None
    assert find_pair_to_merge([]) is None


@pytest.mark.parametrize("name", ["messages", "ledgers", "idle_s", "buckets"])
def test_a_limit_below_one_is_refused_by_name(name: str) -> None:
    """An operator's slip is no limit."""
    with pytest.raises(InvalidInput, match=f"delayed_{name}: expected 1 or more, found 0"):
        SealAndMergeLimits(**{name: 0})


def test_a_list_changes_by_what_goes_and_what_comes_and_says_that_it_did() -> None:
    """A merge: two neighbours go, one comes in their place."""
    one, two, three = (_bucket(number, 5) for number in (1, 2, 3))
    before = IndexBucketList(version=4, sealed_to=three.last, buckets=(one, two, three))
    gone, merged = (one.bucket_id, two.bucket_id), replace(one, bucket_id=LedgerId(200), last=two.last, messages=9)
    after = before.next_version(removed=gone, added=[merged])
    assert after == IndexBucketList(version=5, sealed_to=three.last, buckets=(merged, three))
    change: dict[str, Any] = {"expected": 4, "removed": gone, "added": [merged.bucket_id], "sealed_to": None}
    assert after.includes_change(**change)
    assert replace(after, version=9).includes_change(**change)
    assert not before.includes_change(**change)
    assert not after.includes_change(**change | {"expected": 5}), "of a later version nothing is known"
    assert not after.includes_change(**change | {"removed": (three.bucket_id,)})
    assert not after.includes_change(**change | {"added": [one.bucket_id]})
    assert not after.includes_change(**change | {"sealed_to": Position(LedgerId(4), 0)})


@pytest.mark.parametrize(
    ("born", "sealed", "expected"),
    [
        ([replace(_bucket(2, 1), first=Position(LedgerId(1), 0))], 9, "begins behind"),
        ([replace(_bucket(2, 1), messages=0)], 9, "messages in it"),
        ([replace(_bucket(2, 1), first=Position(LedgerId(3), 0))], 9, "a range of entries"),
        ([_bucket(2, 1)], 1, "2:0 or more"),
    ],
)
def test_a_list_refuses_buckets_that_overlap_are_empty_or_reach_too_far(
    born: list[IndexBucket], sealed: int, expected: str
) -> None:
    """Each would deliver a message twice, or name none."""
    before = IndexBucketList(version=1, sealed_to=Position(LedgerId(1), 0), buckets=(_bucket(1, 1),))
    with pytest.raises(InvalidInput, match=expected):
        before.next_version(added=born, sealed_to=Position(LedgerId(sealed), 0))
