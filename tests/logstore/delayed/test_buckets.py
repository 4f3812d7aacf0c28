"""Which buckets are merged, and what limits there may be."""

import pytest

from logstore.delayed.buckets import Bucket, BucketLimits, pair_to_merge
from logstore.errors import InvalidInput
from logstore.positions import LedgerId, Position


def _bucket(number: int, messages: int) -> Bucket:
    at = Position(LedgerId(number), 0)
    return Bucket(
        bucket_id=LedgerId(100 + number), first=at, last=at, messages=messages, segments=1, first_ms=1, last_ms=2
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 20])
def test_any_limit_is_reached_by_merging_two_at_a_time(limit: int) -> None:
    """Field case 59: a selection that needed more than four buckets failed below."""
    buckets = [_bucket(number, messages) for number, messages in enumerate([5, 1, 9, 2, 2, 7, 3])]
    total = sum(one.messages for one in buckets)
    while len(buckets) > limit:
        pair = pair_to_merge(buckets)
        assert pair is not None
        at = buckets.index(pair[0])
        assert buckets[at + 1] == pair[1]
        buckets[at : at + 2] = [_bucket(at, pair[0].messages + pair[1].messages)]
    assert len(buckets) == min(limit, 7)
    assert sum(one.messages for one in buckets) == total


def test_the_adjacent_pair_with_the_fewest_messages_is_merged_and_the_first_of_several() -> None:
    """One bucket alone is no pair."""
    buckets = [_bucket(number, messages) for number, messages in enumerate([4, 1, 9, 2, 3])]
    assert pair_to_merge(buckets) == (buckets[0], buckets[1])
    assert pair_to_merge(buckets[2:]) == (buckets[3], buckets[4])
    assert pair_to_merge(buckets[:1]) is None
    assert pair_to_merge([]) is None


@pytest.mark.parametrize("name", ["messages", "ledgers", "idle_s", "buckets"])
def test_a_limit_below_one_is_refused_by_name(name: str) -> None:
    """An operator's slip is no limit."""
    with pytest.raises(InvalidInput, match=f"delayed_{name}: expected 1 or more, found 0"):
        BucketLimits(**{name: 0})
