"""Metadata of a BookKeeper ledger: the value of its znode, in one of three versions.

Source: BookKeeper's `LedgerMetadataSerDe`, and Pulsar's `LedgerMetadataUtils` for the custom metadata.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from google.protobuf import proto, text_format
from google.protobuf.message import DecodeError

from logstore.pulsar import ledger_references
from logstore.pulsar.protos import ledger_metadata_pb2 as messages
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import (
    MANAGED_LEDGERS,
    SCHEMAS,
    CursorPath,
    encode_name,
    is_znode_path,
    managed_ledger_from_topic,
    parse_managed_ledger_path,
)

APPLICATION: Final = "pulsar"

_HEADER: Final = re.compile(rb"BookieMetadataFormatVersion\t(\d+)\n")
_IN_RECOVERY: Final = -102  # "last entry" of a ledger in recovery, in version 1
_NO_ENTRY: Final = -1
_VERSION_1: Final = "ledger metadata of version 1"
_VERSION_3: Final = "ledger metadata of version 3"


class BookKeeperLedgerState(StrEnum):
    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"

    @classmethod
    def from_fact(cls, text: str) -> Self:
        """Return the state in a fact or statement. Unreadable metadata have the state "", which counts as open."""
        return cls(text or cls.OPEN)


# A scan looks one up for each ledger.
_STATE_BY_NUMBER: Final = {
    number: BookKeeperLedgerState(name) for name, number in messages.LedgerMetadata.State.items()
}
_DIGEST_BY_NUMBER: Final = {number: name for name, number in messages.LedgerMetadata.DigestType.items()}


@dataclass(frozen=True, slots=True)
class EnsembleSegment:
    """Range of entries that one set of bookies stores. It ends where the next segment begins."""

    first_entry: int
    bookie_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """Contents of a ledger's znode."""

    state: BookKeeperLedgerState
    size_bytes: int  # 0 for a ledger that is not closed
    last_entry: int  # -1 for an empty ledger and for one that is not closed
    segments: tuple[EnsembleSegment, ...]
    ack_quorum: int  # bookies that have stored an entry before its writer is answered
    write_quorum: int = 1  # bookies that get each entry
    digest: str = ""  # name of the type; "" in version 1
    password: bytes = field(default=b"", repr=False)
    custom: Mapping[str, bytes] = field(default_factory=dict)

    def find_segment(self, entry_id: int) -> EnsembleSegment:
        """Return the segment that has the entry."""
        return next(segment for segment in reversed(self.segments) if segment.first_entry <= max(entry_id, 0))

    @property
    def stored_bytes(self) -> int:
        """Bytes on all bookies together, as far as the metadata say. See `size_bytes`."""
        return self.size_bytes * self.write_quorum

    @property
    def is_empty(self) -> bool:
        """Whether no bookie can have an entry."""
        return self.state is BookKeeperLedgerState.CLOSED and self.last_entry < 0

    @property
    def bookie_ids(self) -> frozenset[str]:
        return frozenset(bookie_id for segment in self.segments for bookie_id in segment.bookie_ids)


class PulsarComponent(StrEnum):
    """Part of a broker that creates ledgers. The values are those of the custom metadata."""

    MANAGED_LEDGER = "managed-ledger"  # messages, or acknowledgement state of a cursor
    COMPACTED_LEDGER = "compacted-ledger"
    SCHEMA = "schema"
    DELAYED_INDEX_BUCKET = "delayed-index-bucket"


@dataclass(frozen=True, slots=True)
class StatedOwner:
    """Owner that a ledger's custom metadata states."""

    component: PulsarComponent
    path: str  # znode that should refer to the ledger, relative to the chroot of the cluster

    @property
    def tenant(self) -> str:
        return self.path.split("/")[1]

    @property
    def is_cursor(self) -> bool:
        """Whether the path is that of a cursor, for a path of managed ledgers."""
        return isinstance(parse_managed_ledger_path(self.path.removeprefix(f"{MANAGED_LEDGERS}/")), CursorPath)


def parse_ledger_metadata(data: bytes) -> LedgerMetadata:
    """Parse the value of a ledger's znode. Unknown fields of the message are ignored: no field refers to a ledger.

    Raises:
        UnreadableMetadata: The value is empty or damaged, or has another version than 1, 2 and 3.
    """
    header = _HEADER.match(data)
    if not header:
        raise UnreadableMetadata("ledger metadata", expected="a header with a version", found=data[:40])
    body = data[header.end() :]
    match int(header[1]):
        case 1:
            return _parse_version_1(body)
        case 2:
            return _from_message(_parse_text_message(body))
        case 3:
            return _from_message(_parse_binary_message(body))
    raise UnreadableMetadata("ledger metadata", expected="version 1, 2 or 3", found=int(header[1]))


def find_stated_owner(metadata: LedgerMetadata) -> StatedOwner | None:
    """Return the owner, or `None` if the ledger is of another application or component, or its owner is not complete.

    Names of topics and cursors are encoded in the metadata of managed ledgers, and not encoded in that of buckets and
    compacted ledgers.
    """
    custom = metadata.custom
    try:
        if custom.get("application", b"").decode() != APPLICATION:
            return None
        component = PulsarComponent(custom.get("component", b"").decode())
        return StatedOwner(component, _owner_path(component, custom))
    except (KeyError, ValueError, UnreadableMetadata):
        return None  # a missing key, a component that is not known, bytes that are no text, a name that is no name


def _owner_path(component: PulsarComponent, custom: Mapping[str, bytes]) -> str:
    """Return the path of the owner's znode. Raise an error if the names cannot be those of the component's owner."""
    match component:
        case PulsarComponent.MANAGED_LEDGER:
            name, cursor = custom["pulsar/managed-ledger"].decode(), custom.get("pulsar/cursor", b"").decode()
        case PulsarComponent.COMPACTED_LEDGER:
            name = managed_ledger_from_topic(custom["pulsar/compactedTopic"].decode())
            cursor = ledger_references.COMPACTION_CURSOR
        case PulsarComponent.DELAYED_INDEX_BUCKET:
            name = managed_ledger_from_topic(custom["pulsar/delayedIndexTopic"].decode())
            cursor = encode_name(custom["pulsar/delayedIndexCursor"].decode())
        case PulsarComponent.SCHEMA:
            return f"{SCHEMAS}/{_require_parts(custom['pulsar/schemaId'].decode(), 3)}"
    path = f"{name}/{cursor}" if "pulsar/cursor" in custom or component is not PulsarComponent.MANAGED_LEDGER else name
    parsed = parse_managed_ledger_path(_require_parts(path))
    if parsed != (CursorPath(name, cursor) if path != name else name):
        raise ValueError(path)
    return f"{MANAGED_LEDGERS}/{path}"


def _require_parts(path: str, count: int | None = None) -> str:
    """Return the path if each of its parts is the name of a znode, and it has `count` parts."""
    if not is_znode_path(path) or (count is not None and path.count("/") != count - 1):
        raise ValueError(path)
    return path


def _parse_version_1(body: bytes) -> LedgerMetadata:
    """Parse lines: write quorum, ensemble size, length; then segments; at last, unless the ledger is open, its end."""
    try:
        quorum, _, length, *lines = body.decode("ascii").splitlines()
        rows = [line.split("\t") for line in lines if line]
        closed = bool(rows) and rows[-1][1:] == ["CLOSED"]
        end = int(rows.pop()[0]) if closed else _NO_ENTRY
        segments = tuple(EnsembleSegment(int(first), tuple(bookies)) for first, *bookies in rows)
        size, write_quorum = int(length), int(quorum)
    except ValueError as error:
        raise UnreadableMetadata(_VERSION_1, expected="lines with numbers", found=str(error)) from None
    if not segments or not all(segment.bookie_ids for segment in segments):
        raise UnreadableMetadata(_VERSION_1, expected="segments with bookies", found=f"{len(lines)} lines")
    if not closed or end == _IN_RECOVERY:
        state, size, end = BookKeeperLedgerState.IN_RECOVERY if closed else BookKeeperLedgerState.OPEN, 0, _NO_ENTRY
    else:
        state = BookKeeperLedgerState.CLOSED
    return LedgerMetadata(
        state=state,
        size_bytes=size,
        last_entry=end,
        segments=segments,
        ack_quorum=write_quorum,
        write_quorum=write_quorum,
    )


def _parse_text_message(body: bytes) -> messages.LedgerMetadata:
    try:
        return text_format.Parse(body, messages.LedgerMetadata(), allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UnreadableMetadata("ledger metadata of version 2", expected="a text message", found=str(error)) from None


def _parse_binary_message(body: bytes) -> messages.LedgerMetadata:
    stream = io.BytesIO(body)
    try:
        message: messages.LedgerMetadata | None = proto.parse_length_prefixed(messages.LedgerMetadata, stream)
    except (DecodeError, ValueError) as error:
        raise UnreadableMetadata(_VERSION_3, expected="a message", found=str(error)) from None
    if message is None or stream.read(1):
        raise UnreadableMetadata(_VERSION_3, expected="exactly one message", found=f"{len(body)} bytes")
    return message


def _from_message(message: messages.LedgerMetadata) -> LedgerMetadata:
    if not message.IsInitialized() or not message.segment:
        raise UnreadableMetadata("ledger metadata", expected="the required fields and a segment", found="a missing one")
    state = _STATE_BY_NUMBER[message.state]
    is_closed = state is BookKeeperLedgerState.CLOSED
    return LedgerMetadata(
        state=state,
        size_bytes=message.length if is_closed else 0,
        last_entry=message.lastEntryId if is_closed and message.HasField("lastEntryId") else _NO_ENTRY,
        segments=tuple(
            EnsembleSegment(segment.firstEntryId, tuple(segment.ensembleMember)) for segment in message.segment
        ),
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        write_quorum=message.quorumSize,
        digest=_DIGEST_BY_NUMBER[message.digestType] if message.HasField("digestType") else "",
        password=message.password,
        custom={pair.key: pair.value for pair in message.customMetadata},
    )
