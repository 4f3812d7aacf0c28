"""How a bulk build cuts a log, and the files that it publishes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.delayed.index_build_job import BuiltIndexFiles, BuiltTopicIndex, split_log_into_bucket_ranges
from logstore.errors import CorruptData
from logstore.positions import LedgerId, Position, TopicId


@given(
    counts=st.lists(st.integers(0, 20), max_size=60),
    messages=st.integers(1, 50),
    buckets=st.integers(1, 8),
)
def test_stretches_cover_every_delayed_entry_once_and_are_not_more_than_a_topic_may_have(
    counts: list[int], messages: int, buckets: int
) -> None:
    """Each has enough messages, but the last one; what holds none is covered as it comes, or not at all."""
    segments = [(Position(LedgerId(n), 0), Position(LedgerId(n), 9), count) for n, count in enumerate(counts)]
    found = split_log_into_bucket_ranges(
        segments, total_messages=sum(counts), min_messages=messages, max_buckets=buckets
    )
    assert sum(one.entries for one in found) == sum(counts)
    assert len(found) <= buckets
    assert all(one.entries >= messages for one in found[:-1])
    edges = [edge for one in found for edge in (one.first, one.last)]
    assert edges == sorted(edges)
    for first, last, count in segments:
        assert not count or sum(one.first <= first and last <= one.last for one in found) == 1


def test_no_stretch_is_larger_than_a_task_can_take() -> None:
    """Then there are more than a topic may have, and merges follow."""
    segments = [(Position(LedgerId(n), 0), Position(LedgerId(n), 9), 1_000_000) for n in range(20)]
    assert [
        one.entries
        for one in split_log_into_bucket_ranges(segments, total_messages=20_000_000, min_messages=50_000, max_buckets=2)
    ] == [5_000_000] * 4


def test_topics_of_a_part_read_back_and_damage_is_told(tmp_path: Path) -> None:
    """A part that is not there is no empty part."""
    files = BuiltIndexFiles(tmp_path)
    one = BuiltTopicIndex(
        topic_id=TopicId(7),
        expected_version=3,
        removed=(LedgerId(5),),
        sealed_to=Position(LedgerId(9), 4),
        files=("a", "b"),
    )
    files.write_part(2, [one])
    assert files.read_part(2) == [one]
    with pytest.raises(CorruptData, match="topics-00001"):
        files.read_part(1)
    (tmp_path / "topics-00002.json").write_text("[{}]")
    with pytest.raises(CorruptData, match="topics-00002"):
        files.read_part(2)
