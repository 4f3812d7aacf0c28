"""References to ledgers, one function for each kind of znode and entry that may contain one.

The functions return what a value refers to; an unreferenced ledger is one that no value of the whole cluster refers to.
A damaged value, or one with an unknown field, raises `UnreadableMetadata`.

Source: Pulsar's `MetaStoreImpl`, `BookkeeperSchemaStorage` and `Compactor`, PIP-195, and BookKeeper's DistributedLog.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from logstore.pulsar.metadata_values import parse_message, unpack_frame
from logstore.pulsar.protos.managed_ledger_pb2 import (
    CursorPosition,
    LongProperty,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    OffloadContext,
    OffloadSegment,
)
from logstore.pulsar.protos.schema_locator_pb2 import SchemaLocator
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MAX_LEDGER_ID

COMPACTION_CURSOR: Final = "__compaction"
SHADOW_SOURCE_PROPERTY: Final = "PULSAR.SHADOW_SOURCE"
COMPACTED_LEDGER_PROPERTY: Final = "CompactedTopicLedger"
INTERNAL_PROPERTY_PREFIX: Final = "#pulsar.internal."
INDEX_BUCKET_PROPERTY_PREFIX: Final = f"{INTERNAL_PROPERTY_PREFIX}delayed.bucket_"
_LEDGER_RANGE: Final = re.compile(r"(\d{1,19})_(\d{1,19})", re.ASCII)

_LOG_SEGMENT_VERSION: Final = 5  # newest version of DistributedLog's segments; the ledger's field is the same since 1


@dataclass(frozen=True, slots=True)
class OffloadAttempt:
    """Tiered objects that a managed ledger names, complete or not."""

    ledger_id: int
    uuid: UUID
    complete: bool
    bookkeeper_deleted: bool  # the ledger on the bookies was given up
    bucket: str  # "" if the metadata does not say
    is_segment: bool = False  # of a streaming offload, whose keys name no ledger


@dataclass(frozen=True, slots=True)
class ManagedLedgerReferences:
    """Ledgers and tiered objects of a managed ledger."""

    ledger_ids: tuple[int, ...]  # in the order of the log
    offloads: tuple[OffloadAttempt, ...] = ()
    shadow_source: str = ""  # if set, the ledgers belong to that topic, and this one only lists them

    @property
    def ledgers_given_up(self) -> frozenset[int]:
        """Listed ledgers whose offload is complete. A broker has deleted them, or died before it deleted them."""
        return frozenset(
            offload.ledger_id for offload in self.offloads if offload.complete and offload.bookkeeper_deleted
        )


@dataclass(frozen=True, slots=True, order=True)
class IndexBucketReference:
    """Bucket of delayed messages: the ledgers of its messages, and the ledger that contains the bucket."""

    first_ledger: int
    last_ledger: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class CursorReferences:
    """Ledgers of a cursor. If there is a cursor ledger, its last entry replaces `compacted_ledger_id`."""

    cursor_ledger_id: int | None
    index_buckets: tuple[IndexBucketReference, ...] = ()  # by their ledgers
    compacted_ledger_id: int | None = None


def find_managed_ledger_references(data: bytes) -> ManagedLedgerReferences:
    """Read the znode of a managed ledger. The empty value of a topic that was never loaded has no references."""
    info = parse_message(ManagedLedgerInfo, unpack_frame(data))
    sources = [pair.value for pair in info.properties if pair.key == SHADOW_SOURCE_PROPERTY]
    return ManagedLedgerReferences(
        ledger_ids=tuple(_require_ledger_id(ledger.ledger_id) for ledger in info.ledgers),
        offloads=tuple(
            attempt
            for ledger in info.ledgers
            if ledger.HasField("offload_context")
            for attempt in _list_offload_attempts(ledger.ledger_id, ledger.offload_context)
        ),
        shadow_source=sources[0] if sources else "",
    )


def find_cursor_references(data: bytes) -> CursorReferences:
    """Read the znode of a cursor. An internal property that is not known may refer to a ledger."""
    info = parse_message(ManagedCursorInfo, unpack_frame(data))
    internal = [pair for pair in info.cursor_properties if pair.name.startswith(INTERNAL_PROPERTY_PREFIX)]
    buckets = [pair for pair in internal if pair.name.startswith(INDEX_BUCKET_PROPERTY_PREFIX)]
    if len(buckets) < len(internal):
        unknown = sorted({pair.name for pair in internal} - {pair.name for pair in buckets})
        raise UnreadableMetadata("cursor", expected="no internal properties but buckets", found=", ".join(unknown))
    return CursorReferences(
        cursor_ledger_id=None if info.cursor_ledger_id == -1 else _require_ledger_id(info.cursor_ledger_id),
        index_buckets=tuple(sorted(_parse_index_bucket(pair.name, pair.value) for pair in buckets)),
        compacted_ledger_id=_find_compacted_ledger(info.properties),
    )


def find_cursor_ledger_references(entry: bytes) -> int | None:
    """Return the compacted ledger that the last entry of a `__compaction` cursor's ledger names, if it names one."""
    return _find_compacted_ledger(parse_message(CursorPosition, entry).properties)


def find_schema_references(data: bytes) -> tuple[int, ...]:
    """Return the ledgers of all versions of a schema, ascending."""
    locator = parse_message(SchemaLocator, data)
    positions = [entry.position for entry in (locator.newest, *locator.index)]
    return tuple(sorted({_require_ledger_id(position.ledger_id) for position in positions}))


def find_log_segment_reference(data: bytes) -> int:
    """Return the ledger of a segment of a DistributedLog log: the second of the fields that semicolons separate."""
    fields = data.decode("ascii", errors="replace").split(";")
    try:
        version = int(fields[0]) & 0xFF
    except ValueError:
        raise UnreadableMetadata("log segment", expected="a number as its first field", found=data) from None
    if not 1 <= version <= _LOG_SEGMENT_VERSION or len(fields) < 2:
        expected = f"version 1 to {_LOG_SEGMENT_VERSION} and a ledger"
        raise UnreadableMetadata("log segment", expected=expected, found=data)
    return parse_decimal_id(fields[1], "log segment")


def find_log_allocation_reference(data: bytes) -> int | None:
    """Return the ledger that a DistributedLog log has allocated and not used yet, or `None` for an empty value."""
    return parse_decimal_id(data.decode("ascii", errors="replace"), "log allocation") if data else None


def _list_offload_attempts(ledger_id: int, context: OffloadContext) -> Iterator[OffloadAttempt]:
    """Yield the attempt of the context, and those of its segments, which a streaming offload writes."""
    attempts: list[OffloadContext | OffloadSegment] = [context, *context.segments]
    for each in attempts:
        if not each.HasField("uid_msb"):
            continue
        bucket = next((pair.value for pair in each.driver.properties if pair.key == "bucket"), "")
        yield OffloadAttempt(
            ledger_id=ledger_id,
            uuid=UUID(int=(each.uid_msb % (1 << 64)) << 64 | each.uid_lsb % (1 << 64)),
            complete=each.complete,
            bookkeeper_deleted=context.bookkeeper_deleted,
            bucket=bucket,
            is_segment=each is not context,
        )


def _parse_index_bucket(name: str, value: str) -> IndexBucketReference:
    match = _LEDGER_RANGE.fullmatch(name.removeprefix(INDEX_BUCKET_PROPERTY_PREFIX))
    if not match:
        raise UnreadableMetadata("index bucket", expected="a range of ledgers in its name", found=name)
    return IndexBucketReference(int(match[1]), int(match[2]), parse_decimal_id(value, name))


def _find_compacted_ledger(properties: Iterable[LongProperty]) -> int | None:
    ids = {pair.value for pair in properties if pair.name == COMPACTED_LEDGER_PROPERTY}
    if len(ids) > 1:
        raise UnreadableMetadata("cursor", expected=f"one property {COMPACTED_LEDGER_PROPERTY}", found=sorted(ids))
    ledger_id = next(iter(ids), -1)
    return None if ledger_id == -1 else _require_ledger_id(ledger_id)


def parse_decimal_id(text: str, source: str) -> int:
    """Return the ledger id that a value consists of. `source` names the value in errors."""
    if not (text.isascii() and text.isdecimal()):
        raise UnreadableMetadata(source, expected="the decimal id of a ledger", found=repr(text))
    return _require_ledger_id(int(text))


def _require_ledger_id(ledger_id: int) -> int:
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise UnreadableMetadata("reference", expected=f"the id of a ledger, 0 to {MAX_LEDGER_ID}", found=ledger_id)
    return ledger_id
