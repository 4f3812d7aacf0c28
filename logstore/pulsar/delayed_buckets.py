"""Index buckets of delayed messages, from the znode of a subscription and entry 0 of a bucket's ledger.

Source: PIP-195 as built in Pulsar 4.0, `ImmutableBucket` and `BookkeeperBucketSnapshotStorage`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from logstore.errors import InvalidInput
from logstore.pulsar.ledger_references import INDEX_BUCKET_PROPERTY_PREFIX, parse_decimal_id
from logstore.pulsar.metadata_values import parse_message, unpack_frame
from logstore.pulsar.protos.delayed_bucket_pb2 import BucketMetadata
from logstore.pulsar.protos.managed_ledger_pb2 import ManagedCursorInfo
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import (
    MANAGED_LEDGERS,
    CursorPath,
    decode_name,
    managed_ledger_from_topic,
    parse_managed_ledger_path,
    topic_from_managed_ledger,
)

_RANGE: Final = re.compile(r"(\d{1,19})_(\d{1,19})", re.ASCII)
_DOMAIN: Final = "persistent://"


@dataclass(frozen=True, slots=True, order=True)
class IndexBucketReference:
    """Bucket that a subscription names: the ledgers of its messages, and the ledger that contains the bucket."""

    first_ledger: int
    last_ledger: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class IndexBucketSegment:
    """Part of a bucket, in the order of delivery. Times are in milliseconds since 1970."""

    messages: int
    first_due_ms: int
    last_due_ms: int


def find_index_buckets(data: bytes) -> list[IndexBucketReference]:
    """Return the buckets that the znode of a subscription names, by their ledgers.

    Raises:
        UnreadableMetadata: The value is damaged, or a bucket has a name or a value that Pulsar does not write.
    """
    info = parse_message(ManagedCursorInfo, unpack_frame(data))
    buckets = []
    for pair in info.cursor_properties:
        if not pair.name.startswith(INDEX_BUCKET_PROPERTY_PREFIX):
            continue
        match = _RANGE.fullmatch(pair.name.removeprefix(INDEX_BUCKET_PROPERTY_PREFIX))
        if not match:
            raise UnreadableMetadata("index bucket", expected="a range of ledgers in its name", found=pair.name)
        ledger_id = parse_decimal_id(pair.value, pair.name)
        buckets.append(IndexBucketReference(int(match[1]), int(match[2]), ledger_id))
    return sorted(buckets)


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
        parts = name.split("/")
        if all(parts) and not {".", ".."} & set(parts) and parse_managed_ledger_path(name) == name:
            return name
    except (ValueError, UnreadableMetadata):
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
