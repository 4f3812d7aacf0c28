"""Entries that a producer appends, and stored entries that a reader gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from logstore.positions import Position
from logstore.transactions.transaction_ids_and_states import TransactionId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """Entry to append. `deliver_at_ms` is in milliseconds since 1970, UTC."""

    payload: bytes
    key: str | None = None
    deliver_at_ms: int | None = None
    sequence_id: int | None = None  # requires a producer; ascending within one append
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory of the message payload, the key and the properties."""
        texts = len(self.key or "") + sum(len(f"{name}{value}") for name, value in self.properties.items())
        return len(self.payload) + texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Stored entry. Columns that the reader did not request are `None`."""

    position: Position
    publish_ms: int
    key: str | None = None
    payload: bytes | None = None
    deliver_at_ms: int | None = None
    producer: str | None = None
    sequence_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionMarkerFields:
    """Content of a transaction marker: the transaction, and how the transaction ended."""

    txn: TransactionId
    verb: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedEntries:
    """Entries of one producer in one append, in order."""

    entries: Sequence[NewEntry]
    producer: str | None = None
    txn: TransactionId | None = None  # open transaction of the entries
    marks: Sequence[TransactionMarkerFields] = ()  # one mark for each entry, if the entries are transaction markers
