"""Proof that objects are gone: objects of ledgers that no listing shows, and objects whose deletion is confirmed.

A single listing proves nothing (apache/bookkeeper#870). Sexton therefore requires a second empty listing. Sexton also
requests by name `meta.json` and every segment that may be registered. A request by name is a GET of one byte. A HEAD
does not suffice, because its 404 has no error code.

A store may confirm a deletion but keep the object. Sexton therefore requests a sample of the confirmed keys by name.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import groupby, islice
from typing import Final, TypeVar

from logstore.deletion.intents import DeletionIntent
from logstore.deletion.services.shared_store_requests import SharedListings, UnconfirmedKeys, find_unconfirmed_keys
from logstore.errors import CorruptData, SextonError, StoreUnavailable
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, meta_key, segment_key
from logstore.ports.object_storage import DeleteReport, ObjectStore
from logstore.stop_checks import raise_if_stopped

_LOG: Final = logging.getLogger(__name__)
Question = TypeVar("Question")
Answer = TypeVar("Answer")

MAX_ASKED_SEGMENTS: Final = 1_000_000
"""Maximum number of segments of one ledger that are requested by name. A million requests take an hour."""

SAMPLE_KEYS: Final = 4
"""Number of confirmed keys that one removal requests by name. The number does not depend on the number of ledgers."""

_PARALLEL_REQUESTS: Final = 8
_NAMES_PER_BATCH: Final = 32 * _PARALLEL_REQUESTS


def find_absence_doubts(objects: ObjectStore, intents: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    """Return, by `row_id`, why a copy may exist despite an empty listing. Copies without a reason are proved absent.

    After an error of a request, no further request is sent. Copies that are not proved absent yet get this error.
    """
    doubts = _find_doubts_by_second_listing(objects, intents)
    return doubts | _find_doubts_by_reads(objects, [intent for intent in intents if intent.row_id not in doubts])


def sample_and_find_unconfirmed_keys(
    objects: ObjectStore, report: DeleteReport, keys_by_row: Mapping[int, Sequence[str]]
) -> dict[int, UnconfirmedKeys | None]:
    """Return the unconfirmed keys by row. `None` means that all keys of the row are confirmed as deleted.

    A key is confirmed only if `report` confirms its deletion. If the store still has a key of the sample, no key is
    confirmed, and each row is retried alone. Raise the errors of `find_undeleted_key_in_sample`.
    """
    unconfirmed_by_row = {row: find_unconfirmed_keys(keys, report) for row, keys in keys_by_row.items()}
    kept_key = find_undeleted_key_in_sample(objects, sorted(report.deleted))
    if kept_key is None:
        return unconfirmed_by_row
    problem = f"{kept_key}: the store confirmed its deletion and still has it"
    return {
        row: unconfirmed_by_row[row] or (UnconfirmedKeys(len(keys), problem) if keys else None)
        for row, keys in keys_by_row.items()
    }


def find_undeleted_key_in_sample(objects: ObjectStore, deleted_keys: Sequence[str]) -> str | None:
    """Request a sample of `deleted_keys`. Return a key that the store still has, or `None`.

    Ignore a key for which the store gives no answer. Raise `SextonError` if the work was stopped or a request refused.
    """

    def exists(key: str) -> bool:
        try:
            return objects.get_range(key, 0, 1) is not None
        except StoreUnavailable as error:
            _LOG.warning("%s: its deletion was confirmed and is not looked at again: %s", key, error)
            return False

    sample = random.sample(deleted_keys, SAMPLE_KEYS) if len(deleted_keys) > SAMPLE_KEYS else deleted_keys
    for key, answer in _call_in_parallel(sample, exists):
        if isinstance(answer, SextonError):
            raise answer
        if answer:
            return key
    return None


def find_ledgers_with_objects(objects: ObjectStore, named_keys: Iterable[tuple[int, str]]) -> set[int]:
    """Return the ledgers of which an object exists. `named_keys` yields ledger id and key, and is read in batches.

    Raise `SextonError` if the store did not answer.
    """
    existing: set[int] = set()
    remaining = iter(named_keys)
    while batch := list(islice(remaining, _NAMES_PER_BATCH)):
        for (ledger_id, _), answer in _call_in_parallel(
            batch, lambda name: objects.get_range(name[1], 0, 1) is not None
        ):
            if isinstance(answer, SextonError):
                raise answer
            if answer:
                existing.add(ledger_id)
    return existing


def possible_segment_keys(intent: DeletionIntent) -> Iterator[str]:
    """Return the segment keys of all numbers up to `last_segment`. Each may be registered, because races leave gaps.

    Raise `CorruptData` if `last_segment` is `MAX_ASKED_SEGMENTS` or more. Only a damaged row has such a number.
    """
    if intent.segments and intent.last_segment >= MAX_ASKED_SEGMENTS:
        expected = f"at most {MAX_ASKED_SEGMENTS:,} segments that no listing shows"
        raise CorruptData(f"ledger {intent.ledger_id}: expected {expected}, found the number {intent.last_segment}")
    numbers = range(intent.last_segment + 1) if intent.segments else ()
    return (segment_key(intent.ledger_id, number) for number in numbers)


def _find_doubts_by_second_listing(objects: ObjectStore, intents: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    ordered = sorted(intents, key=lambda intent: (intent.ledger_id % SHARDS, intent.ledger_id))
    shards = [list(shard) for _, shard in groupby(ordered, key=lambda intent: intent.ledger_id % SHARDS)]
    doubts: dict[int, SextonError] = {}

    def list_shard(shard: Sequence[DeletionIntent]) -> dict[int, SextonError]:
        listings = SharedListings(objects, shard)
        doubts_of_shard: dict[int, SextonError] = {}
        for intent in shard:
            shared = listings.list_with_neighbours(intent.ledger_id)
            listing = objects.list(ledger_prefix(intent.ledger_id)) if shared is None else shared
            first = next(iter(listing), None)
            if first is not None:
                message = f"{first.key}: a second LIST finds it, the first one does not"
                doubts_of_shard[intent.row_id] = StoreUnavailable(message)
        return doubts_of_shard

    for shard, answer in _call_in_parallel(shards, list_shard):
        doubts |= answer if isinstance(answer, dict) else {intent.row_id: answer for intent in shard}
    return doubts


def _find_doubts_by_reads(objects: ObjectStore, intents: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    doubts: dict[int, SextonError] = {}
    remaining = _iterate_keys_and_add_doubts(intents, doubts)
    while batch := list(islice(remaining, _NAMES_PER_BATCH)):
        failure: SextonError | None = None
        for (row_id, key), answer in _call_in_parallel(
            batch, lambda name: objects.get_range(name[1], 0, 1) is not None
        ):
            if isinstance(answer, SextonError):
                failure = answer
                doubts.setdefault(row_id, answer)
            elif answer:
                message = f"{key}: it can be read, two LISTs do not show it; deleting nothing on such listings"
                doubts.setdefault(row_id, StoreUnavailable(message))
        if failure is not None:
            return dict.fromkeys((row_id for row_id, _ in remaining), failure) | doubts
    return doubts


def _iterate_keys_and_add_doubts(
    intents: Sequence[DeletionIntent], doubts: dict[int, SextonError]
) -> Iterator[tuple[int, str]]:
    """Yield `row_id` and key of each object to request. Add rows with a damaged segment number to `doubts`."""
    for intent in intents:
        try:
            keys = possible_segment_keys(intent)
        except CorruptData as error:
            doubts[intent.row_id] = error
        else:
            yield intent.row_id, meta_key(intent.ledger_id, intent.owner)
            yield from ((intent.row_id, key) for key in keys)


def _call_in_parallel(
    questions: Sequence[Question], ask: Callable[[Question], Answer]
) -> Iterator[tuple[Question, Answer | SextonError]]:
    """Yield each question with its answer. After the first error, all remaining questions get this error."""
    errors: list[SextonError] = []

    def call_unless_failed(question: Question) -> Answer | SextonError:
        if errors:
            return errors[0]
        raise_if_stopped()
        try:
            return ask(question)
        except SextonError as error:
            errors.append(error)
            return error

    with ThreadPoolExecutor(min(_PARALLEL_REQUESTS, max(1, len(questions))), thread_name_prefix="absence") as threads:
        answers = [threads.submit(copy_context().run, call_unless_failed, question) for question in questions]
        yield from ((question, answer.result()) for question, answer in zip(questions, answers, strict=True))
