"""Entries to append, stored entries, and the highest sequence ids of producers, which identify duplicates.

Sequence ids that were stored in an open transaction identify duplicates only in that transaction, because it may still
abort. Until the transaction is decided, the producer cannot append new sequence ids outside of the transaction.

Source: Pulsar's message deduplication; Kafka, where a transactional producer has one transaction at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.positions import Position
from logstore.transactions.transaction_ids_and_states import TransactionEntryRange, TransactionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedFields:
    """Fields of an entry, besides the message payload, that a producer sets."""

    key: str | None = None
    deliver_at_ms: int | None = None  # milliseconds since 1970, UTC
    sequence_id: int | None = None  # requires a producer; ascending within one append
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry(ProducedFields):
    """Entry to append."""

    payload: bytes

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory of the message payload, the key and the properties."""
        texts = len(self.key or "") + sum(len(f"{name}{value}") for name, value in self.properties.items())
        return len(self.payload) + texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(ProducedFields):
    """Stored entry. Columns that the reader did not request are `None`."""

    position: Position
    publish_ms: int
    payload: bytes | None = None
    producer: str | None = None


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


class ProducerSequenceRange(NamedTuple):
    """Range of sequence ids of one producer in a segment, all in one transaction or all outside of transactions."""

    producer: str
    first: int
    last: int
    txn: TransactionId | None = None


class HighestSequenceIds(NamedTuple):
    """Highest sequence ids of a producer in a topic. -1: the producer has stored no sequence id."""

    committed: int = -1
    last: int = -1  # highest id stored in `txn`; without an open transaction, the same as `committed`
    txn: TransactionId | None = None  # open transaction

    @staticmethod
    def without_transaction(last: int) -> "HighestSequenceIds":
        return HighestSequenceIds(last, last)

    def refuses(self, txn: TransactionId | None) -> bool:
        """Return whether new sequence ids in `txn` are refused, because the producer has another open transaction."""
        return self.txn is not None and self.txn != txn

    def advance(self, last: int, txn: TransactionId | None) -> "HighestSequenceIds":
        """Return the highest ids after entries up to sequence id `last` were stored in `txn`. `None`: no transaction.

        `refuses(txn)` must be `False`.
        """
        return (
            HighestSequenceIds.without_transaction(last)
            if txn is None
            else HighestSequenceIds(self.committed, last, txn)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedSegment:
    """Properties of an uploaded segment that its registration stores."""

    number: int
    entries: int
    size_bytes: int
    sha256: str | None = None  # SHA-256 of the object, hexadecimal; None: not known
    epoch: int  # epoch of the catalog whose worker wrote the upload
    producers: tuple[ProducerSequenceRange, ...] = ()
    transactions: tuple[TransactionEntryRange, ...] = ()
    delayed: int = 0  # entries with a delivery time
