"""Deduplication: an entry is a duplicate if its sequence id is not above the producer's highest registered id.

A duplicate is acknowledged and not stored again. Entries without a sequence id are never duplicates.

Source: Pulsar's message deduplication (highest sequence id persisted per producer).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from logstore.errors import InvalidInput, SequenceHeld
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.producer_sequences import HighestSequenceIds, ProducerSequenceRange
from logstore.transactions.transaction_ids_and_states import TransactionId

_MAX_SEQUENCE = 2**63 - 1
_NO_SEQUENCE = HighestSequenceIds()


def require_valid_produced_entries(produced: ProducedEntries) -> None:
    """Raise `InvalidInput` if there are no entries or a sequence id is invalid.

    Entries with sequence ids need a producer. Sequence ids are 0 to 2**63 - 1 and ascend within `produced`.
    """
    if not produced.entries:
        raise InvalidInput("entries", expected="at least one", found=produced.entries)
    if produced.producer is not None and not (0 < len(produced.producer) <= 200 and produced.producer.isprintable()):
        raise InvalidInput("producer", expected="1 to 200 printable characters", found=produced.producer)
    previous_id = -1
    for number, entry in enumerate(produced.entries):
        sequence_id = entry.sequence_id
        if sequence_id is None:
            continue
        if not produced.producer:
            raise InvalidInput(f"entry {number}: sequence_id", expected="a producer beside it", found=produced.producer)
        if not previous_id < sequence_id <= _MAX_SEQUENCE:
            raise InvalidInput(f"entry {number}: sequence_id", expected=f"an id above {previous_id}", found=sequence_id)
        previous_id = sequence_id


def producers_with_sequence_ids(parts: Iterable[ProducedEntries]) -> set[str]:
    return {part.producer for part in parts if part.producer and any(_has_sequence_id(part))}


def drop_duplicates(
    parts: Sequence[ProducedEntries], registered: Mapping[str, HighestSequenceIds]
) -> list[ProducedEntries | SequenceHeld]:
    """Return the parts without duplicates, in order. A part may become empty.

    A part with new sequence ids is replaced by a `SequenceHeld` if another transaction of its producer is open. A part
    is also compared with earlier parts of the same producer.
    """
    sequence_by_producer = dict(registered)
    return [_drop_duplicates_of_part(part, sequence_by_producer) for part in parts]


def _drop_duplicates_of_part(
    part: ProducedEntries, sequence_by_producer: dict[str, HighestSequenceIds]
) -> ProducedEntries | SequenceHeld:
    if not part.producer:
        return part
    registered = sequence_by_producer.get(part.producer, _NO_SEQUENCE)
    last_stored_id = registered.committed if registered.refuses(part.txn) else registered.last
    unique_entries = [
        entry for entry in part.entries if entry.sequence_id is None or entry.sequence_id > last_stored_id
    ]
    new_ids = list(_sequence_ids(unique_entries))
    if new_ids and registered.refuses(part.txn):
        return SequenceHeld(part.producer, txn=str(registered.txn))
    if new_ids:
        sequence_by_producer[part.producer] = registered.advance(new_ids[-1], part.txn)
    return part if len(unique_entries) == len(part.entries) else replace(part, entries=unique_entries)


def producer_advances(parts: Iterable[ProducedEntries]) -> tuple[ProducerSequenceRange, ...]:
    """Return the ranges of sequence ids that a segment with these parts registers, ordered by producer."""
    ids_by_key: dict[tuple[str, TransactionId | None], list[int]] = {}
    for part in parts:
        if part.producer and any(_has_sequence_id(part)):
            ids_by_key.setdefault((part.producer, part.txn), []).extend(_sequence_ids(part.entries))
    advances = [
        ProducerSequenceRange(producer=key[0], first=sequence_ids[0], last=sequence_ids[-1], txn=key[1])
        for key, sequence_ids in ids_by_key.items()
    ]
    return tuple(sorted(advances, key=attrgetter("producer")))


def _has_sequence_id(part: ProducedEntries) -> Iterable[bool]:
    return (entry.sequence_id is not None for entry in part.entries)


def _sequence_ids(entries: Iterable[NewEntry]) -> list[int]:
    return [entry.sequence_id for entry in entries if entry.sequence_id is not None]
