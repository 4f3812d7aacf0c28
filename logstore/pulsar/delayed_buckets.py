"""Index buckets of delayed messages, from entry 0 of a bucket's ledger. See `CursorReferences` for their names.

Source: PIP-195 as built in Pulsar 4.0, `ImmutableBucket` and `BookkeeperBucketSnapshotStorage`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from logstore.errors import InvalidInput
from logstore.pulsar.metadata_values import parse_message
from logstore.pulsar.protos.delayed_bucket_pb2 import BucketMetadata
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import (
    MANAGED_LEDGERS,
    CursorPath,
    decode_name,
    is_managed_ledger_name,
    managed_ledger_from_topic,
    parse_managed_ledger_path,
    topic_from_managed_ledger,
)

_DOMAIN: Final = "persistent://"


@dataclass(frozen=True, slots=True)
class IndexBucketSegment:
    """Part of a bucket, in the order of delivery. Times are in milliseconds since 1970."""

    messages: int
    first_due_ms: int
    last_due_ms: int


def parse_index_bucket(entry: bytes) -> list[IndexBucketSegment]:
    """Parse entry 0 of a bucket's ledger. A bucket keeps the messages that were delivered.

    Raises:
        UnreadableMetadata: The entry is damaged, or has a field that this version does not know.
    """
    metadata = parse_message(BucketMetadata, entry)
    return [
        IndexBucketSegment(
            sum(_count_entries(bitmap) for bitmap in segment.bitmap_by_ledger.values()),
            segment.first_ms,
            segment.last_ms,
        )
        for segment in metadata.segments
    ]


def find_next_due_ms(segments: Sequence[IndexBucketSegment], now_ms: int) -> int | None:
    """Return the earliest time in segments that are not due as a whole, or `None`. It may be in the past."""
    return min((segment.first_due_ms for segment in segments if segment.last_due_ms > now_ms), default=None)


def parse_topic_argument(text: str) -> str:
    """Return the managed ledger's name of a topic, as a person writes it: `persistent://t/n/x` or `t/n/x`.

    Raises:
        InvalidInput: The text is no name of a persistent topic.
    """
    try:
        name = managed_ledger_from_topic(text if "://" in text else f"{_DOMAIN}{text}")
        if is_managed_ledger_name(name):
            return name
    except ValueError:
        pass  # one error for all names that are none
    raise InvalidInput("topic", expected="persistent://tenant/namespace/topic or tenant/namespace/topic", found=text)


def name_topic_and_subscription(path: str) -> tuple[str, str]:
    """Return the names of a subscription's znode. A path of another kind, or not encoded, is returned with no name."""
    try:
        parsed = parse_managed_ledger_path(path.removeprefix(f"{MANAGED_LEDGERS}/"))
        if isinstance(parsed, CursorPath):
            return topic_from_managed_ledger(parsed.managed_ledger), decode_name(parsed.cursor)
    except UnreadableMetadata:
        pass  # the path itself is the best name
    return path, ""


def _count_entries(bitmap: bytes) -> int:
    try:
        return len(BitMap.deserialize(bitmap))
    except (ValueError, IndexError):  # an empty value is an `IndexError`
        expected = "a serialized bitmap of entry ids"
        raise UnreadableMetadata("index bucket", expected=expected, found=f"{len(bitmap)} bytes") from None
