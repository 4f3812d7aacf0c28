"""Components and states of ledgers, ledger owners, and the statement that identifies a ledger in storage.

All components store their data in ledgers. One deletion protocol and one reconciliation therefore cover all components.

Source: PIP-186 (components and ledger types).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from logstore.errors import CorruptData, InvalidInput
from logstore.positions import LedgerId, TopicId


class Component(StrEnum):
    """Kind of the content of a ledger. The catalog stores the name of the enum member."""

    MANAGED_LEDGER = "MANAGED_LEDGER"  # messages
    MANAGED_CURSOR = "MANAGED_CURSOR"  # acknowledgement state
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    DELAYED_INDEX = "DELAYED_INDEX"  # snapshots of index buckets
    TXN_SNAPSHOT = "TXN_SNAPSHOT"


class CopyKind(StrEnum):
    """Kind of a copy of a ledger. The names are the ledger types of PIP-186."""

    LEDGER = "LEDGER"  # primary bucket
    OFFLOADED_LEDGER = "OFFLOADED_LEDGER"  # tiered bucket


class LedgerState(StrEnum):
    """State of a ledger: CREATING (row exists) → OPEN (`meta.json` is stored; accepts segments) → CLOSED."""

    CREATING = "CREATING"
    OPEN = "OPEN"
    CLOSED = "CLOSED"


class CopyState(StrEnum):
    """State of a copy: WRITING until a read has proved that storage has the copy, then LIVE."""

    WRITING = "WRITING"
    LIVE = "LIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOwner:
    """Ledger owner: application, component, topic, and the names that identify the ledger owner within the topic."""

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
    """Identity of a ledger in storage. It is the content of `meta.json`, and is in the metadata of each object."""

    owner: LedgerOwner
    ledger_id: LedgerId
    created_us: int  # microseconds since 1970, by the catalog's clock
    epoch: int  # epoch of the catalog that created the ledger

    def to_json(self) -> bytes:
        """Return the content of `meta.json`, which is one flat JSON object with sorted keys."""
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
        """Parse the result of `to_metadata`. Raise `CorruptData` if a field is absent or invalid."""
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


def parse_meta_fields_or_unreadable(content: bytes) -> dict[str, str]:
    """Return the fields of a `meta.json`. For other content, return its beginning under the name `unreadable`."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return {"unreadable": content[:200].decode("utf-8", errors="replace")}
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


def require_named_topic(ledger_id: LedgerId, topic: str, named_topic: str | None) -> None:
    """Raise `InvalidInput` if `named_topic` is not the ledger's topic. `None` accepts any topic."""
    if named_topic not in {None, topic}:
        raise InvalidInput("topic", expected=f"the topic of ledger {ledger_id}, {topic}", found=named_topic)
