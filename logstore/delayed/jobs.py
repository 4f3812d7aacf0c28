"""The bulk job of delayed messages for the port `BulkJobs`: how it cuts a log, and the files that it publishes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logstore.errors import CorruptData, InvalidInput
from logstore.positions import LedgerId, Position, TopicId
from logstore.whole_files import replacing

MOST_PARTS: Final = 256
"""Lists of topics of one job."""

_MOST_MESSAGES: Final = 5_000_000
"""Of one bucket: a task sorts it in memory, in some 300 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildIndexes:
    """Build the buckets of topics from their whole logs.

    Its summary counts `topics`, `buckets`, `messages`, `empty`, `gone`, `unreadable` and `parts`; its folder holds what
    `IndexFiles` reads.
    """

    run_id: str
    topics: tuple[int, ...] = ()  # their ids; none: every topic with delayed messages
    messages: int = 50_000  # of a bucket, at least, if the topic has as many
    buckets: int = 20  # of a topic, at most, unless they would be too large for a task
    workflow_id: str = ""  # in whose name the topics' lists are claimed
    workflow_run: str = ""
    claim_s: float = 60.0  # until they lapse, unless the workflow renews them

    name = "build-delayed-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a topic's log that one bucket is to cover."""

    first: Position
    last: Position
    entries: int  # with a delivery time, about


def cut(
    segments: Iterable[tuple[Position, Position, int]], *, total: int, messages: int, buckets: int
) -> list[Stretch]:
    """Cut a log at ends of segments into stretches of like numbers of delayed entries; none without any.

    Args:
        segments: First entry, last entry and delayed entries of each, in log order.
        total: Delayed entries of all.
        messages: The least that a stretch has; the last one may have fewer.
        buckets: The most stretches, unless one had more entries than a task can take.
    """
    most = min(max(messages, -(-total // buckets)), _MOST_MESSAGES)
    found: list[Stretch] = []
    begin = end = None
    entries = 0
    for first, last, delayed in segments:
        begin, end, entries = begin or first, last, entries + delayed
        if entries >= most:
            found.append(Stretch(first=begin, last=end, entries=entries))
            begin, entries = None, 0
    if begin and end and entries:
        found.append(Stretch(first=begin, last=end, entries=entries))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIndex:
    """The buckets of one topic, built and not yet published."""

    topic_id: TopicId
    expected: int  # version of the topic's list that they take the place of
    gone: tuple[LedgerId, ...]  # its buckets
    sealed_to: Position  # the log was looked through up to here
    files: tuple[str, ...]  # snapshots, in the order of their ranges


class IndexFiles:
    """The files of a job: snapshots, and lists of topics in parts."""

    def __init__(self, folder: Path) -> None:
        """Write into, or read from, this folder."""
        self._folder = folder

    def snapshot(self, name: str) -> Path:
        """The path of a snapshot."""
        return self._folder / name

    def write(self, part: int, built: Sequence[BuiltIndex]) -> None:
        """Write one list."""
        told = [
            {
                "topic_id": int(one.topic_id),
                "expected": one.expected,
                "gone": [int(ledger_id) for ledger_id in one.gone],
                "sealed_to": str(one.sealed_to),
                "files": list(one.files),
            }
            for one in built
        ]
        with replacing(self._path(part)) as new:
            new.write_text(json.dumps(told), encoding="utf-8")

    def read(self, part: int) -> list[BuiltIndex]:
        """The topics of one list.

        Raises:
            CorruptData: It is damaged, or there is none.
        """
        path = self._path(part)
        try:
            return [_built(one) for one in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, KeyError, TypeError, InvalidInput) as error:
            raise CorruptData(f"{path}: expected topics with built indexes ({error!r})") from error

    def _path(self, part: int) -> Path:
        return self._folder / f"topics-{part:05d}.json"


def _built(told: Any) -> BuiltIndex:  # noqa: ANN401 - of JSON
    return BuiltIndex(
        topic_id=TopicId(int(told["topic_id"])),
        expected=int(told["expected"]),
        gone=tuple(LedgerId(int(one)) for one in told["gone"]),
        sealed_to=Position.parse(told["sealed_to"]),
        files=tuple(str(one) for one in told["files"]),
    )
