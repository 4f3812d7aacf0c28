"""Proof that objects are gone: of ledgers that no listing shows, and of what a store says that it deleted.

A listing alone proves nothing (apache/bookkeeper#870). Of each ledger `meta.json` and every segment that the catalog
may have registered are asked for by name, and a second listing must show nothing. Small ledgers share that listing. A
name is asked for by a GET of one byte: where an object is absent, a HEAD has no body to say which 404 it means, and
needs that GET as well.

A store can confirm a deletion and keep the object. A sample of what it confirmed is asked for by name.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import groupby, islice
from typing import Final, TypeVar

from logstore.deletion.intents import DeletionIntent
from logstore.deletion.services.shared_requests import SharedListings, UnconfirmedKeys, kept
from logstore.errors import CorruptData, SextonError, StoreUnavailable
from logstore.log.ledgers import SHARDS, ledger_prefix, meta_key, segment_key
from logstore.ports.objects import DeleteReport, ObjectStore
from logstore.units import raise_if_stopped

_LOG: Final = logging.getLogger(__name__)
Question = TypeVar("Question")
Answer = TypeVar("Answer")

MAX_ASKED_SEGMENTS: Final = 1_000_000
"""Segments of one ledger that are asked for by name: ten times as many as a ledger has, and an hour's work."""

SAMPLE_KEYS: Final = 4
"""Keys of one removal, of whatever number of ledgers, that are looked at again: a batch gains no request a ledger."""

_PARALLEL_REQUESTS: Final = 8
_NAMES_PER_BATCH: Final = 32 * _PARALLEL_REQUESTS


def doubt_absence(objects: ObjectStore, intents: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    """Return by row why a ledger may stand although its listing was empty. A row that is not named is proved absent.

    A store that stops answering is not asked for the rest: those rows get its error.
    """
    doubts = _list_again(objects, intents)
    return doubts | _ask_by_name(objects, [intent for intent in intents if intent.row_id not in doubts])


def judge_deletion(
    objects: ObjectStore, report: DeleteReport, keys_by_row: Mapping[int, Sequence[str]]
) -> dict[int, UnconfirmedKeys | None]:
    """Return by row which keys do not count as deleted; None: all of them do.

    Keys that the report does not confirm do not count. If the store still has a key of the sample that is looked at
    again, nothing that it confirmed with that key counts either: each row is then tried again alone. A key of the
    sample about which the store does not answer says nothing, and what was confirmed counts.

    Raises:
        SextonError: The work is ended from outside, or the store refuses the question.
    """
    left = {row: kept(keys, report) for row, keys in keys_by_row.items()}
    standing = find_kept(objects, sorted(report.deleted))
    if standing is None:
        return left
    why = f"{standing}: the store confirmed its deletion and still has it"
    return {row: left[row] or (UnconfirmedKeys(len(keys), why) if keys else None) for row, keys in keys_by_row.items()}


def find_kept(objects: ObjectStore, deleted: Sequence[str]) -> str | None:
    """Look again at a sample of keys whose deletion the store confirmed. Return one that stands, or None.

    Keys about which the store does not answer are left out.

    Raises:
        SextonError: The work is ended from outside, or the store refuses the question.
    """

    def stands(key: str) -> bool:
        try:
            return objects.get_range(key, 0, 1) is not None
        except StoreUnavailable as error:
            _LOG.warning("%s: its deletion was confirmed and is not looked at again: %s", key, error)
            return False

    sample = random.sample(deleted, SAMPLE_KEYS) if len(deleted) > SAMPLE_KEYS else deleted
    for key, answer in _ask_all(sample, stands):
        if isinstance(answer, SextonError):
            raise answer
        if answer:
            return key
    return None


def find_standing(objects: ObjectStore, names: Iterable[tuple[int, str]]) -> set[int]:
    """Ask for objects by name, and return the ledgers of which one can be read.

    Args:
        objects: Where they would stand.
        names: Ledger and key of each; drawn as they are asked for.

    Raises:
        SextonError: The store did not answer.
    """
    standing: set[int] = set()
    remaining = iter(names)
    while batch := list(islice(remaining, _NAMES_PER_BATCH)):
        for (ledger_id, _), answer in _ask_all(batch, lambda name: objects.get_range(name[1], 0, 1) is not None):
            if isinstance(answer, SextonError):
                raise answer
            if answer:
                standing.add(ledger_id)
    return standing


def registered_names(intent: DeletionIntent) -> Iterator[str]:
    """Keys of all segments that the catalog may have registered: lost races leave gaps, so every number counts.

    Raises:
        CorruptData: There are too many of them: the number of the highest is damaged.
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

    def look(shard: Sequence[DeletionIntent]) -> dict[int, SextonError]:
        listings = SharedListings(objects, shard)
        found: dict[int, SextonError] = {}
        for intent in shard:
            shown = listings.of(intent.ledger_id)
            listing = objects.list(ledger_prefix(intent.ledger_id)) if shown is None else shown
            first = next(iter(listing), None)
            if first is not None:
                message = f"{first.key}: a second LIST finds it, the first one does not"
                found[intent.row_id] = StoreUnavailable(message)
        return found

    for shard, answer in _ask_all(shards, look):
        doubts |= answer if isinstance(answer, dict) else {intent.row_id: answer for intent in shard}
    return doubts


def _ask_by_name(objects: ObjectStore, intents: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    doubts: dict[int, SextonError] = {}

    def stands(name: tuple[int, str]) -> bool:
        return objects.get_range(name[1], 0, 1) is not None

    remaining = _names(intents, doubts)
    while batch := list(islice(remaining, _NAMES_PER_BATCH)):
        failure: SextonError | None = None
        for (row_id, key), answer in _ask_all(batch, stands):
            if isinstance(answer, SextonError):
                failure = answer
                doubts.setdefault(row_id, answer)
            elif answer:
                message = f"{key}: it can be read, two LISTs do not show it; deleting nothing on such listings"
                doubts.setdefault(row_id, StoreUnavailable(message))
        if failure is not None:
            return dict.fromkeys((row_id for row_id, _ in remaining), failure) | doubts
    return doubts


def _names(intents: Sequence[DeletionIntent], doubts: dict[int, SextonError]) -> Iterator[tuple[int, str]]:
    """Row and key of each object to ask for; a row whose highest number is damaged is entered in `doubts`."""
    for intent in intents:
        try:
            segments = registered_names(intent)
        except CorruptData as error:
            doubts[intent.row_id] = error
        else:
            yield intent.row_id, meta_key(intent.ledger_id, intent.owner)
            yield from ((intent.row_id, key) for key in segments)


def _ask_all(
    questions: Sequence[Question], ask: Callable[[Question], Answer]
) -> Iterator[tuple[Question, Answer | SextonError]]:
    """Answer questions a few at a time; behind the first one that gets no answer, the others get its error."""
    errors: list[SextonError] = []

    def answer(question: Question) -> Answer | SextonError:
        if errors:
            return errors[0]
        raise_if_stopped()
        try:
            return ask(question)
        except SextonError as error:
            errors.append(error)
            return error

    with ThreadPoolExecutor(min(_PARALLEL_REQUESTS, max(1, len(questions))), thread_name_prefix="absence") as threads:
        asked = [threads.submit(copy_context().run, answer, question) for question in questions]
        yield from ((question, one.result()) for question, one in zip(questions, asked, strict=True))
