"""Deduplication: which of a producer's entries are stored already.

An entry whose sequence id is at or behind the producer's registered one was stored before: it is acknowledged
and not stored again. Entries without a sequence id are never duplicates. What is in an open transaction is stored for
that one alone; see `ProducerSequence`.

Source: Pulsar's message deduplication (highest sequence id persisted per producer).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from logstore.errors import InvalidInput, SequenceHeld
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.producers import ProducerSequence
from logstore.ports.catalog import ProducerAdvance
from logstore.transactions.transactions import TransactionId

_MAX_SEQUENCE = 2**63 - 1
_NOTHING = ProducerSequence()


def check(produced: ProducedEntries) -> None:
    """Refuse an append that deduplication could not judge.

    Raises:
        InvalidInput: No entries, a sequence id without a producer, below 0 or above 2**63 - 1, or not
            ascending within the append.
    """
    if not produced.entries:
        raise InvalidInput("entries", expected="at least one", found=produced.entries)
    if produced.producer is not None and not (0 < len(produced.producer) <= 200 and produced.producer.isprintable()):
        raise InvalidInput("producer", expected="1 to 200 printable characters", found=produced.producer)
    before = -1
    for at, entry in enumerate(produced.entries):
        sequence_id = entry.sequence_id
        if sequence_id is None:
            continue
        if not produced.producer:
            raise InvalidInput(f"entry {at}: sequence_id", expected="a producer beside it", found=produced.producer)
        if not before < sequence_id <= _MAX_SEQUENCE:
            raise InvalidInput(f"entry {at}: sequence_id", expected=f"an id above {before}", found=sequence_id)
        before = sequence_id


def numbered_producers(parts: Iterable[ProducedEntries]) -> set[str]:
    """Producers whose registered sequence id decides about any of the entries."""
    return {part.producer for part in parts if part.producer and any(_numbered(part))}


def drop(
    parts: Sequence[ProducedEntries], registered: Mapping[str, ProducerSequence]
) -> list[ProducedEntries | SequenceHeld]:
    """The parts without duplicates, in their order; a part may end up empty, or is refused as a whole.

    An entry counts for the parts behind it: of two appends of one producer the second is judged by the first.
    """
    reached = dict(registered)
    return [_drop(part, reached) for part in parts]


def _drop(part: ProducedEntries, reached: dict[str, ProducerSequence]) -> ProducedEntries | SequenceHeld:
    if not part.producer:
        return part
    known = reached.get(part.producer, _NOTHING)
    stored = known.committed if known.refuses(part.txn) else known.last
    kept = [entry for entry in part.entries if entry.sequence_id is None or entry.sequence_id > stored]
    new = list(_numbers(kept))
    if new and known.refuses(part.txn):
        return SequenceHeld(part.producer, txn=str(known.txn))
    if new:
        reached[part.producer] = known.advance(new[-1], part.txn)
    return part if len(kept) == len(part.entries) else replace(part, entries=kept)


def advances(parts: Iterable[ProducedEntries]) -> tuple[ProducerAdvance, ...]:
    """What a segment of these parts, duplicates dropped, moves each producer over; by producer, and then in order."""
    ids: dict[tuple[str, TransactionId | None], list[int]] = {}
    for part in parts:
        if part.producer and any(_numbered(part)):
            ids.setdefault((part.producer, part.txn), []).extend(_numbers(part.entries))
    moved = [ProducerAdvance(producer=key[0], first=of[0], last=of[-1], txn=key[1]) for key, of in ids.items()]
    return tuple(sorted(moved, key=attrgetter("producer")))


def _numbered(part: ProducedEntries) -> Iterable[bool]:
    return (entry.sequence_id is not None for entry in part.entries)


def _numbers(entries: Iterable[NewEntry]) -> list[int]:
    return [entry.sequence_id for entry in entries if entry.sequence_id is not None]
