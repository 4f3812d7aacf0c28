"""Bulk job that builds indexes of delayed messages: input, range of the log for each index bucket, and output files."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logstore.atomic_files import replace_atomically
from logstore.errors import CorruptData, InvalidInput
from logstore.positions import LedgerId, Position, TopicId

MAX_PARTS_PER_JOB: Final = 256

_MAX_MESSAGES_PER_BUCKET: Final = 5_000_000
"""Maximum messages of an index bucket. A task needs about 300 MB of memory to sort this number of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDelayedIndexJob:
    """Job that builds the index buckets of topics from their whole logs.

    Counts in the summary: `topics`, `buckets`, `messages`, `parts`, and `empty`, `gone` and `unreadable` topics.
    """

    run_id: str
    topics: tuple[int, ...] = ()  # topic ids; empty: every topic with delayed messages
    messages: int = 50_000  # minimum messages of an index bucket, except the last index bucket
    buckets: int = 20  # maximum index buckets of a topic, unless an index bucket would be too large for a task
    workflow_id: str = ""  # workflow that claims the topics' lists
    workflow_run: str = ""
    claim_s: float = 60.0  # lifetime of a claim that the workflow does not renew

    name = "build-delayed-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBucketRange:
    first: Position
    last: Position
    entries: int  # approximate number of entries with a delivery time


def split_log_into_bucket_ranges(
    segments: Iterable[tuple[Position, Position, int]], *, total_messages: int, min_messages: int, max_buckets: int
) -> list[PlannedBucketRange]:
    """Cut a log at segment ends into ranges with similar numbers of delayed entries.

    `segments` has the first entry, the last entry and the number of delayed entries of each segment, in log order.
    `total_messages` is the number of delayed entries of all segments. Every range except the last one has at least
    `min_messages` delayed entries. `max_buckets` is exceeded only if a range would be too large for a task.
    """
    min_entries = min(max(min_messages, math.ceil(total_messages / max_buckets)), _MAX_MESSAGES_PER_BUCKET)
    ranges: list[PlannedBucketRange] = []
    begin = end = None
    entries = 0
    for first, last, delayed in segments:
        begin, end, entries = begin or first, last, entries + delayed
        if entries >= min_entries:
            ranges.append(PlannedBucketRange(first=begin, last=end, entries=entries))
            begin, entries = None, 0
    if begin and end and entries:
        ranges.append(PlannedBucketRange(first=begin, last=end, entries=entries))
    return ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTopicIndex:
    """Built index buckets of one topic that are not published yet."""

    topic_id: TopicId
    expected_version: int  # list version of the list that the built index buckets replace
    removed: tuple[LedgerId, ...]  # index buckets of the replaced list
    sealed_to: Position  # last entry that was searched for delayed messages
    files: tuple[str, ...]  # file names of the snapshots, in the order of the covered ranges


class BuiltIndexFiles:
    """Output files of a job: snapshots of index buckets, and parts. A part has the built indexes of several topics."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def snapshot_path(self, name: str) -> Path:
        return self._folder / name

    def write_part(self, part: int, built_indexes: Sequence[BuiltTopicIndex]) -> None:
        documents = [
            {
                "topic_id": int(built.topic_id),
                "expected": built.expected_version,
                "gone": [int(ledger_id) for ledger_id in built.removed],
                "sealed_to": str(built.sealed_to),
                "files": list(built.files),
            }
            for built in built_indexes
        ]
        with replace_atomically(self._part_path(part)) as new:
            new.write_text(json.dumps(documents), encoding="utf-8")

    def read_part(self, part: int) -> list[BuiltTopicIndex]:
        """Return the built indexes of one part. Raise `CorruptData` if the file is missing or damaged."""
        path = self._part_path(part)
        try:
            return [_parse_built_index(document) for document in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, KeyError, TypeError, InvalidInput) as error:
            raise CorruptData(f"{path}: expected topics with built indexes ({error!r})") from error

    def _part_path(self, part: int) -> Path:
        return self._folder / f"topics-{part:05d}.json"


def _parse_built_index(document: Any) -> BuiltTopicIndex:  # noqa: ANN401 - of JSON
    return BuiltTopicIndex(
        topic_id=TopicId(int(document["topic_id"])),
        expected_version=int(document["expected"]),
        removed=tuple(LedgerId(int(ledger_id)) for ledger_id in document["gone"]),
        sealed_to=Position.parse(document["sealed_to"]),
        files=tuple(str(name) for name in document["files"]),
    )
