"""Proof that objects are gone: of ledgers that no listing shows, and of keys that a store confirmed as deleted.

A listing alone proves nothing (apache/bookkeeper#870). Sexton also asks for `meta.json` and for every segment that the
catalog may have registered, by name, and a second listing must be empty. Small ledgers share that listing.

A name is asked for by a GET of one byte. A HEAD has no body to say which 404 it means, and would need that GET as well.

A store can confirm a deletion and keep the object. So a sample of the confirmed keys is asked for by name.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import groupby, islice
from typing import Final, TypeVar

from logstore.deletion.intents import DeletionIntent
from logstore.deletion.services.shared_requests import SharedListings, UnconfirmedKeys, find_unconfirmed
from logstore.errors import CorruptData, SextonError, StoreUnavailable
from logstore.log.ledgers import SHARDS, ledger_prefix, meta_key, segment_key
from logstore.ports.objects import DeleteReport, ObjectStore
from logstore.units import raise_if_stopped

_LOG: Final = logging.getLogger(__name__)
Question = TypeVar("Question")
Answer = TypeVar("Answer")

MAX_ASKED_SEGMENTS: Final = 1_000_000
"""Most segments of one ledger that are asked for by name: ten times as many as a ledger has, and an hour's work."""

SAMPLE_KEYS: Final = 4
"""Confirmed keys of one removal that are asked for again, whatever its number of ledgers."""

_PARALLEL_REQUESTS: Final = 8
_NAMES_PER_BATCH: Final = 32 * _PARALLEL_REQUESTS


def doubt_absence(objects: ObjectStore, intents: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    """Return by row why a ledger may exist although its listing was empty. Other rows are proved absent.

    After the first request without an answer, no more are sent. The remaining rows get its error.
    """
    doubts = _list_again(objects, intents)
    return doubts | _ask_by_name(objects, [intent for intent in intents if intent.row_id not in doubts])


def judge_deletion(
    objects: ObjectStore, report: DeleteReport, keys_by_row: Mapping[int, Sequence[str]]
) -> dict[int, UnconfirmedKeys | None]:
    """Return by row the keys that do not count as deleted. `None`: all of them count.

    Keys that the report does not confirm do not count. If the store still has a key of the sample, no key that it
    confirmed with it counts, and each row is tried again alone. Keys of the sample without an answer are ignored.

    Raises:
        SextonError: The work is ended from outside, or the store refuses the question.
    """
    unconfirmed_by_row = {row: find_unconfirmed(keys, report) for row, keys in keys_by_row.items()}
    kept_key = find_kept_key(objects, sorted(report.deleted))
    if kept_key is None:
        return unconfirmed_by_row
    problem = f"{kept_key}: the store confirmed its deletion and still has it"
    return {
        row: unconfirmed_by_row[row] or (UnconfirmedKeys(len(keys), problem) if keys else None)
        for row, keys in keys_by_row.items()
    }


def find_kept_key(objects: ObjectStore, deleted: Sequence[str]) -> str | None:
    """Ask for a sample of keys whose deletion the store confirmed. Return one that it still has.

    Keys without an answer are ignored.

    Raises:
        SextonError: The work is ended from outside, or the store refuses the question.
    """

    def exists(key: str) -> bool:
        try:
            return objects.get_range(key, 0, 1) is not None
        except StoreUnavailable as error:
            _LOG.warning("%s: its deletion was confirmed and is not looked at again: %s", key, error)
            return False

    sample = random.sample(deleted, SAMPLE_KEYS) if len(deleted) > SAMPLE_KEYS else deleted
    for key, answer in _ask_all(sample, exists):
        if isinstance(answer, SextonError):
            raise answer
        if answer:
            return key
    return None


def find_existing(objects: ObjectStore, names: Iterable[tuple[int, str]]) -> set[int]:
    """Ask for objects by ledger and key, read on demand. Return the ledgers with an existing object.

    Raises:
        SextonError: The store did not answer.
    """
    existing: set[int] = set()
    remaining = iter(names)
    while batch := list(islice(remaining, _NAMES_PER_BATCH)):
        for (ledger_id, _), answer in _ask_all(batch, lambda name: objects.get_range(name[1], 0, 1) is not None):
            if isinstance(answer, SextonError):
                raise answer
            if answer:
                existing.add(ledger_id)
    return existing


def registered_keys(intent: DeletionIntent) -> Iterator[str]:
    """Return the keys of all segments that the catalog may have registered. Lost races leave gaps in the numbers.

    Raises:
        CorruptData: The highest number is damaged, because there would be too many segments.
    """
    if intent.segments and intent.last_segment >= MAX_ASKED_SEGMENTS:
        expected = f"at most {MAX_ASKED_SEGMENTS:,} segments that no listing shows"
        raise CorruptData(f"ledger {intent.ledger_id}: expected {expected}, found the number {intent.last_segment}")
    numbers = range(intent.last_segment + 1) if intent.segments else ()
    return (segment_key(intent.ledger_id, number) for number in numbers)


def _list_again(objects: ObjectStore, intents: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    ordered = sorted(intents, key=lambda intent: (intent.ledger_id % SHARDS, intent.ledger_id))
    shards = [list(shard) for _, shard in groupby(ordered, key=lambda intent: intent.ledger_id % SHARDS)]
    doubts: dict[int, SextonError] = {}

    def list_shard(shard: Sequence[DeletionIntent]) -> dict[int, SextonError]:
        listings = SharedListings(objects, shard)
        doubts_of_shard: dict[int, SextonError] = {}
        for intent in shard:
            shared = listings.pop(intent.ledger_id)
            listing = objects.list(ledger_prefix(intent.ledger_id)) if shared is None else shared
            first = next(iter(listing), None)
            if first is not None:
                message = f"{first.key}: a second LIST finds it, the first one does not"
                doubts_of_shard[intent.row_id] = StoreUnavailable(message)
        return doubts_of_shard

    for shard, answer in _ask_all(shards, list_shard):
        doubts |= answer if isinstance(answer, dict) else {intent.row_id: answer for intent in shard}
    return doubts


def _ask_by_name(objects: ObjectStore, intents: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    doubts: dict[int, SextonError] = {}
    remaining = _iterate_names(intents, doubts)
    while batch := list(islice(remaining, _NAMES_PER_BATCH)):
        failure: SextonError | None = None
        for (row_id, key), answer in _ask_all(batch, lambda name: objects.get_range(name[1], 0, 1) is not None):
            if isinstance(answer, SextonError):
                failure = answer
                doubts.setdefault(row_id, answer)
            elif answer:
                message = f"{key}: it can be read, two LISTs do not show it; deleting nothing on such listings"
                doubts.setdefault(row_id, StoreUnavailable(message))
        if failure is not None:
            return dict.fromkeys((row_id for row_id, _ in remaining), failure) | doubts
    return doubts


def _iterate_names(intents: Sequence[DeletionIntent], doubts: dict[int, SextonError]) -> Iterator[tuple[int, str]]:
    """Yield row and key of each object to ask for. Add rows whose highest segment number is damaged to `doubts`."""
    for intent in intents:
        try:
            keys = registered_keys(intent)
        except CorruptData as error:
            doubts[intent.row_id] = error
        else:
            yield intent.row_id, meta_key(intent.ledger_id, intent.owner)
            yield from ((intent.row_id, key) for key in keys)


def _ask_all(
    questions: Sequence[Question], ask: Callable[[Question], Answer]
) -> Iterator[tuple[Question, Answer | SextonError]]:
    """Ask a few questions at a time. After the first error, the remaining questions get that error."""
    errors: list[SextonError] = []

    def ask_unless_failed(question: Question) -> Answer | SextonError:
        if errors:
            return errors[0]
        raise_if_stopped()
        try:
            return ask(question)
        except SextonError as error:
            errors.append(error)
            return error

    with ThreadPoolExecutor(min(_PARALLEL_REQUESTS, max(1, len(questions))), thread_name_prefix="absence") as threads:
        answers = [threads.submit(copy_context().run, ask_unless_failed, question) for question in questions]
        yield from ((question, answer.result()) for question, answer in zip(questions, answers, strict=True))
