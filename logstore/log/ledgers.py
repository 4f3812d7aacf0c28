"""Ledgers: whose they are, where their objects stand, how one LIST tells both, and what a segment says of its upload.

Everything stored is a ledger, owned by one component, so that one deletion protocol and one reconciliation cover
everything.

A writer that loses a race uploads the same entries again under a later number. From the object alone nothing would tell
the upload that was registered from those that were not; so each names its append, and what its writer saw registered,
for the day on which no row of a catalog speaks of it. A *confirmation* is an upload without entries, which is never
registered: it is there for what it says was registered.

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
    """The parts of the system that own ledgers. Stored by name."""

    MANAGED_LEDGER = "MANAGED_LEDGER"  # messages
    MANAGED_CURSOR = "MANAGED_CURSOR"  # acknowledgement state
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    DELAYED_INDEX = "DELAYED_INDEX"  # bucket snapshots
    TXN_SNAPSHOT = "TXN_SNAPSHOT"


class CopyKind(StrEnum):
    """Which copy of a ledger: PIP-186's ledger type."""

    LEDGER = "LEDGER"  # primary bucket
    OFFLOADED_LEDGER = "OFFLOADED_LEDGER"  # tiered bucket


class LedgerState(StrEnum):
    """CREATING (row exists) → OPEN (`meta.json` confirmed; takes segments) → CLOSED."""

    CREATING = "CREATING"
    OPEN = "OPEN"
    CLOSED = "CLOSED"


class CopyState(StrEnum):
    """A copy is WRITING until its evidence was checked, then LIVE."""

    WRITING = "WRITING"
    LIVE = "LIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOwner:
    """Whose ledger it is: application, component, and every key that makes the component unique."""

    application: str
    component: Component
    topic_id: TopicId
    topic: str  # encoded
    keys: Mapping[str, str]  # of the component beyond its topic, e.g. {"cursor": "billing"}

    @property
    def digest(self) -> str:
        """First 16 hex digits of SHA-256 over application, component and all keys."""
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
    """What storage itself says of a ledger: content of `meta.json`, and metadata of every object."""

    owner: LedgerOwner
    ledger_id: LedgerId
    created_us: int  # microseconds since 1970, catalog's clock
    epoch: int  # of the catalog that created it

    def to_json(self) -> bytes:
        """The content of `meta.json`: one flat JSON object, keys sorted."""
        return json.dumps(self.to_metadata(), sort_keys=True, indent=1).encode()

    def to_metadata(self) -> dict[str, str]:
        """The same facts as S3 user metadata: ASCII names and values."""
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
        """Read back `to_metadata`.

        Raises:
            CorruptData: A field is absent or not of its kind.
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
"""Name under which a segment's own metadata holds the digest that its row has."""


def sha256_hex(content: bytes) -> str:
    """SHA-256 of an object, hexadecimal, as its segment's row and its own metadata have it."""
    return hashlib.sha256(content).hexdigest()


def parse_meta_fields(content: bytes) -> dict[str, str]:
    """The fields of any `meta.json`; what is no flat JSON object is shown as it begins."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return {"unreadable": content[:200].decode("utf-8", errors="replace")}
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


SHARDS = 256
"""Of the primary bucket; see `shard_prefix`."""

_LEDGER = re.compile(r"ledgers/[0-9a-f]{2}/(?P<ledger>[0-7][0-9a-f]{15})/")
_SEGMENT = re.compile(r"(?P<number>[0-9]{8})\.parquet")
_META = re.compile(r"(?P<digest>[0-9a-f]{16})\.meta\.json")


def shard_prefix(shard: int) -> str:
    """Prefix of every ledger whose id modulo 256 is `shard` (0 to 255 inclusive)."""
    return f"ledgers/{shard:02x}/"


def ledger_prefix(ledger_id: LedgerId) -> str:
    """Prefix of every object of the ledger's primary copy; no other ledger's keys begin with it."""
    return f"{shard_prefix(ledger_id % SHARDS)}{ledger_id:016x}/"


def meta_key(ledger_id: LedgerId, owner: LedgerOwner) -> str:
    """Key of the ledger's own statement; its name carries the owner's digest, so LIST verifies it."""
    return f"{ledger_prefix(ledger_id)}{owner.digest}.meta.json"


def segment_key(ledger_id: LedgerId, number: int) -> str:
    """Key of one segment; `number` is 0 to 99,999,999 inclusive."""
    return f"{ledger_prefix(ledger_id)}{number:08d}.parquet"


def ledger_id_from_key(key: str) -> LedgerId | None:
    """The ledger in whose prefix a key stands, or None when it is in none."""
    found = _LEDGER.match(key)
    ledger_id = LedgerId(int(found["ledger"], 16)) if found else None
    return ledger_id if ledger_id is not None and key.startswith(ledger_prefix(ledger_id)) else None


def owner_digest_from_key(key: str) -> str | None:
    """The owner's digest in the name of a `meta.json`, or None when the key is something else."""
    found = _META.fullmatch(key.rpartition("/")[2])
    return found["digest"] if found else None


def segment_number_from_key(key: str) -> int | None:
    """The number of a segment's key, or None when the key is something else."""
    found = _SEGMENT.fullmatch(key.rpartition("/")[2])
    return int(found["number"]) if found else None


def require_named_topic(ledger_id: LedgerId, topic: str, named: str | None) -> None:
    """Refuse a ledger that is of another topic than was named beside its id; None names any.

    Raises:
        InvalidInput: They differ.
    """
    if named not in {None, topic}:
        raise InvalidInput("topic", expected=f"the topic of ledger {ledger_id}, {topic}", found=named)


UPLOAD_ID_FIELD: Final = "append"
"""Name under which the metadata holds the `SegmentUploadId`."""

EXTENT_FIELD: Final = "behind"
"""Name under which the metadata holds the `RegisteredExtent`."""

_MARK: Final = re.compile(r"(?P<append>[0-9a-f]{32})-(?P<nth>[1-9][0-9]{0,8})")
_BEHIND: Final = re.compile(r"(?P<segment>-1|[0-9]{1,8}):(?P<entries>[0-9]{1,18})")


class SegmentUploadId(NamedTuple):
    """Which upload of which append; no other one bears it. Of an append only the last upload can be registered."""

    append_id: str  # 32 hexadecimal digits
    number: int  # from 1, in the order in which they were made

    def __str__(self) -> str:
        """As metadata holds it."""
        return f"{self.append_id}-{self.number}"

    @staticmethod
    def parse(text: str | None) -> "SegmentUploadId | None":
        """Read back `str(mark)`; None of anything else, as of an object from before there were marks."""
        found = _MARK.fullmatch(text or "")
        return SegmentUploadId(found["append"], int(found["nth"])) if found else None


class RegisteredExtent(NamedTuple):
    """What was registered of the ledger when the upload was made: a later registration only adds to it."""

    last_segment: int  # no later registration is of this number or a lower one; -1: there is none
    entries: int  # of all registered segments

    def __str__(self) -> str:
        """As metadata holds it."""
        return f"{self.last_segment}:{self.entries}"

    @staticmethod
    def parse(text: str | None) -> "RegisteredExtent | None":
        """Read back `str(behind)`; None of anything else."""
        found = _BEHIND.fullmatch(text or "")
        return RegisteredExtent(int(found["segment"]), int(found["entries"])) if found else None


MIN_CONFIRMATION_GAP: Final = (1 << 16) + 1
MAX_CONFIRMATION_GAP: Final = 2 << 16
"""How far above the segment that it confirms a confirmation stands, both inclusive: more numbers than a ledger has
segments, so that it takes no segment's number."""


def is_confirmation(number: int, metadata: Mapping[str, str]) -> bool:
    """Whether an upload of that number is a confirmation by its own metadata, which name a segment far below it.

    Args:
        number: Of the object's key.
        metadata: Of the object.
    """
    said = RegisteredExtent.parse(metadata.get(EXTENT_FIELD))
    return said is not None and MIN_CONFIRMATION_GAP <= number - said.last_segment <= MAX_CONFIRMATION_GAP
