"""Ledgers: their owners, the keys of their objects, and the metadata by which storage identifies an upload.

All stored data is in ledgers of some component. So one deletion protocol and one reconciliation cover all data.

A writer that loses a race uploads the same entries again with a higher number. If the catalog is lost, storage must
show which upload was registered. So each upload names its append and the registered extent that its writer saw. A
*confirmation* is an upload without entries. It states the registered extent and is never registered itself.

Source: PIP-186 (components and ledger types).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from logstore.errors import CorruptData, InvalidInput
from logstore.positions import LedgerId, TopicId


class Component(StrEnum):
    """Parts of the system that own ledgers. Stored by name."""

    MANAGED_LEDGER = "MANAGED_LEDGER"  # messages
    MANAGED_CURSOR = "MANAGED_CURSOR"  # acknowledgement state
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    DELAYED_INDEX = "DELAYED_INDEX"  # snapshots of index buckets
    TXN_SNAPSHOT = "TXN_SNAPSHOT"


class CopyKind(StrEnum):
    """Kinds of copies of a ledger: PIP-186's ledger types."""

    LEDGER = "LEDGER"  # primary bucket
    OFFLOADED_LEDGER = "OFFLOADED_LEDGER"  # tiered bucket


class LedgerState(StrEnum):
    """State of a ledger: CREATING (row exists) → OPEN (`meta.json` is stored; accepts segments) → CLOSED."""

    CREATING = "CREATING"
    OPEN = "OPEN"
    CLOSED = "CLOSED"


class CopyState(StrEnum):
    """State of a copy: WRITING until storage has proved the copy, then LIVE."""

    WRITING = "WRITING"
    LIVE = "LIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOwner:
    """Owner of a ledger: application, component, topic, and the keys that identify the owner within the topic."""

    application: str
    component: Component
    topic_id: TopicId
    topic: str  # encoded
    keys: Mapping[str, str]  # e.g. {"cursor": "billing"}

    @property
    def digest(self) -> str:
        """First 16 hexadecimal digits of a SHA-256 over all fields."""
        statement = [
            self.application,
            self.component.value,
            self.topic_id,
            self.topic,
            sorted(self.keys.items()),
        ]
        packed = json.dumps(statement, separators=(",", ":")).encode()
        return hashlib.sha256(packed).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatement:
    """Identity of a ledger in storage. It is the content of `meta.json`, and metadata of every object."""

    owner: LedgerOwner
    ledger_id: LedgerId
    created_us: int  # microseconds since 1970, by the catalog's clock
    epoch: int  # epoch of the catalog that created the ledger

    def to_json(self) -> bytes:
        """Return the content of `meta.json`: one flat JSON object, keys sorted."""
        return json.dumps(self.to_metadata(), sort_keys=True, indent=1).encode()

    def to_metadata(self) -> dict[str, str]:
        """Return the statement as S3 user metadata. Names and values are ASCII."""
        fixed = {
            "application": self.owner.application,
            "component": self.owner.component.value,
            "topic-id": str(self.owner.topic_id),
            "topic": self.owner.topic,
            "ledger-id": str(self.ledger_id),
            "created-us": str(self.created_us),
            "catalog-epoch": str(self.epoch),
        }
        return fixed | {f"key-{name}": value for name, value in self.owner.keys.items()}

    @staticmethod
    def from_metadata(fields: Mapping[str, str]) -> "LedgerStatement":
        """Parse the result of `to_metadata`.

        Raises:
            CorruptData: A field is absent or invalid.
        """
        try:
            owner = LedgerOwner(
                application=fields["application"],
                component=Component(fields["component"]),
                topic_id=TopicId(int(fields["topic-id"])),
                topic=fields["topic"],
                keys={name[4:]: value for name, value in fields.items() if name.startswith("key-")},
            )
            return LedgerStatement(
                owner=owner,
                ledger_id=LedgerId(int(fields["ledger-id"])),
                created_us=int(fields["created-us"]),
                epoch=int(fields["catalog-epoch"]),
            )
        except (KeyError, ValueError) as error:
            raise CorruptData(f"ledger statement: {error!r} in {dict(fields)!r}") from error


DIGEST_FIELD: Final = "sha256"
"""Metadata field of a segment with the SHA-256 of its content."""


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 of an object, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def parse_meta_fields(content: bytes) -> dict[str, str]:
    """Return the fields of a `meta.json`. If it is no JSON object, the only field `unreadable` has its first bytes."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return {"unreadable": content[:200].decode("utf-8", errors="replace")}
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


SHARDS = 256

_LEDGER_FORM = re.compile(r"ledgers/[0-9a-f]{2}/(?P<ledger>[0-7][0-9a-f]{15})/")
_SEGMENT_FORM = re.compile(r"(?P<number>[0-9]{8})\.parquet")
_META_FORM = re.compile(r"(?P<digest>[0-9a-f]{16})\.meta\.json")


def shard_prefix(shard: int) -> str:
    """Return the prefix of all ledgers of the shard, whose ids modulo 256 are `shard`."""
    return f"ledgers/{shard:02x}/"


def ledger_prefix(ledger_id: LedgerId) -> str:
    """Return the prefix of every object of the ledger's primary copy. No object of another ledger has this prefix."""
    return f"{shard_prefix(ledger_id % SHARDS)}{ledger_id:016x}/"


def meta_key(ledger_id: LedgerId, owner: LedgerOwner) -> str:
    """Return the key of the ledger's statement. It contains the owner's digest, so a LIST can verify the owner."""
    return f"{ledger_prefix(ledger_id)}{owner.digest}.meta.json"


def segment_key(ledger_id: LedgerId, number: int) -> str:
    """Return the key of a segment. `number` is 0 to 99,999,999 inclusive."""
    return f"{ledger_prefix(ledger_id)}{number:08d}.parquet"


def ledger_id_from_key(key: str) -> LedgerId | None:
    """Return the ledger to whose primary copy a key belongs, or `None`."""
    match = _LEDGER_FORM.match(key)
    ledger_id = LedgerId(int(match["ledger"], 16)) if match else None
    return ledger_id if ledger_id is not None and key.startswith(ledger_prefix(ledger_id)) else None


def owner_digest_from_key(key: str) -> str | None:
    """Return the owner's digest in the key of a `meta.json`, or `None` for any other key."""
    match = _META_FORM.fullmatch(key.rpartition("/")[2])
    return match["digest"] if match else None


def segment_number_from_key(key: str) -> int | None:
    """Return the number in the key of a segment, or `None` for any other key."""
    match = _SEGMENT_FORM.fullmatch(key.rpartition("/")[2])
    return int(match["number"]) if match else None


def require_named_topic(ledger_id: LedgerId, topic: str, named: str | None) -> None:
    """Refuse a ledger of another topic than the caller named. `None` accepts any topic.

    Raises:
        InvalidInput: The topics differ.
    """
    if named not in {None, topic}:
        raise InvalidInput("topic", expected=f"the topic of ledger {ledger_id}, {topic}", found=named)


UPLOAD_ID_FIELD: Final = "append"
"""Metadata field with the `SegmentUploadId`."""

EXTENT_FIELD: Final = "behind"
"""Metadata field with the `RegisteredExtent`."""

_UPLOAD_ID_FORM: Final = re.compile(r"(?P<append>[0-9a-f]{32})-(?P<nth>[1-9][0-9]{0,8})")
_EXTENT_FORM: Final = re.compile(r"(?P<segment>-1|[0-9]{1,8}):(?P<entries>[0-9]{1,18})")


class SegmentUploadId(NamedTuple):
    """Unique id of an upload: its append and its number. Only the last upload of an append can be registered."""

    append_id: str  # 32 hexadecimal digits
    number: int  # from 1, in order of upload

    def __str__(self) -> str:
        return f"{self.append_id}-{self.number}"

    @staticmethod
    def parse(text: str | None) -> "SegmentUploadId | None":
        """Parse the text form of an upload id. Return `None` for any other text. Older objects have no upload id."""
        match = _UPLOAD_ID_FORM.fullmatch(text or "")
        return SegmentUploadId(match["append"], int(match["nth"])) if match else None


class RegisteredExtent(NamedTuple):
    """Registered part of the ledger when the upload was made. Later registrations only add to it."""

    last_segment: int  # highest registered segment number, -1: none; later registrations have higher numbers
    entries: int  # entries of all registered segments

    def __str__(self) -> str:
        return f"{self.last_segment}:{self.entries}"

    @staticmethod
    def parse(text: str | None) -> "RegisteredExtent | None":
        """Parse the text form of an extent. Return `None` for any other text."""
        match = _EXTENT_FORM.fullmatch(text or "")
        return RegisteredExtent(int(match["segment"]), int(match["entries"])) if match else None


MIN_CONFIRMATION_GAP: Final = (1 << 16) + 1
MAX_CONFIRMATION_GAP: Final = 2 << 16
"""Distance from a segment's number to the number of its confirmation, both bounds inclusive.

The distance exceeds the number of segments of a ledger. So a confirmation never takes the number of a segment.
"""


def is_confirmation(number: int, metadata: Mapping[str, str]) -> bool:
    """Return whether an upload is a confirmation: its metadata name a segment far below its own number."""
    extent = RegisteredExtent.parse(metadata.get(EXTENT_FIELD))
    return extent is not None and MIN_CONFIRMATION_GAP <= number - extent.last_segment <= MAX_CONFIRMATION_GAP
