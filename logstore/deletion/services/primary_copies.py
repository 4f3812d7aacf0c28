"""Inspection and removal of primary copies.

All calls may be repeated, because an absent key counts as deleted. `meta.json` is deleted last, so that a half-deleted
ledger still states its ledger owner.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from itertools import chain, islice
from threading import Event

from logstore.deletion.intents import CopyVerdict, DeletionIntent, StoredCopy, find_ownership_problem
from logstore.deletion.services.absence_proofs import (
    MAX_ASKED_SEGMENTS,
    find_absence_doubts,
    sample_and_find_unconfirmed_keys,
)
from logstore.deletion.services.shared_store_requests import (
    SharedListings,
    UnconfirmedKeys,
    delete_keys_of_copies,
    find_foreign_bucket_errors_by_row,
    to_removal_result,
)
from logstore.errors import CorruptData, SextonError, StoreUnavailable
from logstore.failpoints import effect
from logstore.log.ledger_object_keys import (
    ledger_prefix,
    meta_key,
    owner_digest_from_key,
    segment_key,
    segment_number_from_key,
)
from logstore.log.ledgers import Component, parse_meta_fields_or_unreadable
from logstore.ports.object_storage import CopyRemovalResult, ObjectInfo, ObjectStore, OwnedStore
from logstore.stop_checks import raise_if_stopped

_MAX_META_BYTES = 65_536  # read of a `meta.json`; Sexton writes less than 4 KiB
_PARALLEL_HEADS = 8

_Object = tuple[ObjectInfo, Mapping[str, str]]


class PrimaryCopyStorage:
    def __init__(self, objects: OwnedStore) -> None:
        self._objects = objects

    def inspect_copy(self, intent: DeletionIntent) -> StoredCopy:
        return self._judge_listing(intent, self._objects.list(ledger_prefix(intent.ledger_id)))

    def prepare_inspection(self, intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        listings = SharedListings(self._objects, intents)

        def inspect(intent: DeletionIntent) -> StoredCopy:
            shared = listings.list_with_neighbours(intent.ledger_id)
            listing = self._objects.list(ledger_prefix(intent.ledger_id)) if shared is None else shared
            return self._judge_listing(intent, listing, prove_absence=False)

        return inspect

    def _judge_listing(
        self, intent: DeletionIntent, listing: Iterable[ObjectInfo], *, prove_absence: bool = True
    ) -> StoredCopy:
        """Judge a ledger by its listing.

        - One LIST verifies the ledger owner, because the name of `meta.json` has the digest of the owner.
        - Absence is proved if `prove_absence` is set (apache/bookkeeper#870). The proof is a HEAD of `meta.json`, a
          second empty listing, and a HEAD of each segment that may be registered.
        - Segments that the listing lacks are requested by name. The result includes those that exist.
        """
        uploads = self._list_dead_uploads(intent)
        items = list({item.key: item for item in listing}.values())
        if not items:
            absent = StoredCopy(verdict=CopyVerdict.ABSENT)
            if prove_absence or uploads:
                absent = self._require_absent(intent)
            return replace(absent, verdict=CopyVerdict.OWN, uploads=uploads) if uploads else absent
        prefix = ledger_prefix(intent.ledger_id)  # Sexton writes no subfolders, so keys in one are unknown
        direct_keys = [item.key for item in items if "/" not in item.key.removeprefix(prefix)]
        metas = tuple(key for key in direct_keys if owner_digest_from_key(key))
        data = tuple(key for key in direct_keys if segment_number_from_key(key) is not None)
        unlisted = self._head_unlisted_segments(intent, frozenset(data))
        problems = (find_ownership_problem(intent, key, metadata) for key, (_, metadata) in unlisted.items())
        foreign = self._find_foreign_object(intent, items, metas, data) or next(filter(None, problems), None)
        expected = _expected_keys(intent)
        own_meta = meta_key(intent.ledger_id, intent.owner)  # not in `metas` if the listing ended too early
        unlisted |= {} if metas or foreign else _head_in_parallel(self._objects, iter([own_meta]))
        return StoredCopy(
            verdict=CopyVerdict.FOREIGN if foreign else CopyVerdict.OWN,
            data_keys=tuple(sorted({*data, *unlisted} - {own_meta})),
            meta_keys=metas or (own_meta,),
            unseen_meta_keys=0 if metas or own_meta in unlisted else 1,
            size_bytes=sum(item.size_bytes for item in (*items, *(info for info, _ in unlisted.values()))),
            objects=len(items) + len(unlisted),
            uploads=() if foreign else uploads,
            is_incomplete=not metas or not expected or not expected.issubset(data),
            detail=foreign or "",
        )

    def _list_dead_uploads(self, intent: DeletionIntent) -> tuple[str, ...]:
        """Return keys of unfinished multipart uploads. Only an unpublished index of delayed messages can have them."""
        if intent.component != Component.DELAYED_INDEX or intent.segments:
            return ()
        return tuple(upload.key for upload in self._objects.list_open_uploads(ledger_prefix(intent.ledger_id)))

    def _require_absent(self, intent: DeletionIntent) -> StoredCopy:
        key = meta_key(intent.ledger_id, intent.owner)
        if self._objects.head(key):
            raise StoreUnavailable(f"{key}: HEAD finds it, LIST does not; deleting nothing on such a listing")
        first = next(iter(self._objects.list(ledger_prefix(intent.ledger_id))), None)
        if first:
            raise StoreUnavailable(f"{first.key}: a second LIST finds it, the first one does not")
        for key in self._head_unlisted_segments(intent, frozenset()):
            raise StoreUnavailable(f"{key}: HEAD finds it, two LISTs do not; deleting nothing on such listings")
        return StoredCopy(verdict=CopyVerdict.ABSENT)

    def _head_unlisted_segments(self, intent: DeletionIntent, listed: frozenset[str]) -> dict[str, _Object]:
        """Return existing segments that are not in `listed`. Any number up to `last_segment` may be registered."""
        if intent.segments and intent.last_segment - len(listed) >= MAX_ASKED_SEGMENTS:
            expected = f"at most {MAX_ASKED_SEGMENTS:,} segments that no listing shows"
            raise CorruptData(f"ledger {intent.ledger_id}: expected {expected}, found the number {intent.last_segment}")
        numbers = range(intent.last_segment + 1) if intent.segments else ()
        keys = (segment_key(intent.ledger_id, number) for number in numbers)
        return _head_in_parallel(self._objects, (key for key in keys if key not in listed))

    def _find_foreign_object(
        self, intent: DeletionIntent, items: list[ObjectInfo], metas: tuple[str, ...], data: tuple[str, ...]
    ) -> str | None:
        """Return why an object belongs to another ledger, or `None` if all objects belong to this ledger.

        The name of `meta.json` proves the ledger owner. The name of a segment with a registered number proves the
        segment. The metadata of other objects is read. If the ledger has no segments, the metadata of `meta.json` is
        read, too. This `meta.json` may be of an older ledger with the same id, from before the catalog was replaced.
        """
        digest = intent.owner.digest
        other_metas = [key for key in metas if owner_digest_from_key(key) != digest]
        known_keys = {*metas, *data}
        unknown_keys = [item.key for item in items if item.key not in known_keys]
        if other_metas or unknown_keys:
            return f"found {(other_metas + unknown_keys)[0]!r}, which {digest} ({intent.topic}) never wrote"
        expected = _expected_keys(intent) if metas else frozenset()
        unproved = [key for key in data if key not in expected]
        meta_keys_to_check = [] if metas and intent.segments else [meta_key(intent.ledger_id, intent.owner)]
        return next(
            (problem for key in (*meta_keys_to_check, *unproved) if (problem := self._check_owner(intent, key))), None
        )

    def _check_owner(self, intent: DeletionIntent, key: str) -> str | None:
        raise_if_stopped()
        stored = self._objects.head(key)
        return None if stored is None else find_ownership_problem(intent, key, stored[1])

    def prove_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        doubts = find_absence_doubts(self._objects, absent)
        proved = [intent for intent in absent if intent.row_id not in doubts]
        return doubts | find_foreign_bucket_errors_by_row(self._objects, proved)

    def read_statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """Read the ledger's own `meta.json`, or else another `meta.json`, or else the metadata of the first object."""
        own_meta = meta_key(intent.ledger_id, intent.owner)
        listed_keys = [item.key for item in self._objects.list(ledger_prefix(intent.ledger_id))]
        metas = sorted((key for key in listed_keys if owner_digest_from_key(key)), key=lambda key: key != own_meta)
        content = self._objects.get_range(metas[0], 0, _MAX_META_BYTES) if metas else None
        if content is not None:
            return parse_meta_fields_or_unreadable(content)
        stored = self._objects.head(listed_keys[0]) if listed_keys else None
        return dict(stored[1]) if stored else None

    def remove_copies(
        self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> Mapping[int, CopyRemovalResult]:
        objects = self._objects.begin_removal()
        for key in {key for copy in copies.values() for key in copy.uploads}:
            raise_if_stopped()
            with effect("storage.abort_uploads"):
                objects.abort_uploads(key)
        with effect("storage.delete_data"):
            data_report = delete_keys_of_copies(objects, copies.values(), lambda copy: copy.data_keys, on_progress)
        unconfirmed_data = sample_and_find_unconfirmed_keys(
            objects, data_report, {row: copy.data_keys for row, copy in copies.items()}
        )
        remaining = {
            row: unconfirmed_data[row]
            or self._list_remaining_segments_if_doubtful(copies[row], is_single=len(copies) == 1)
            for row in copies
        }
        without_data = {row: copy for row, copy in copies.items() if not remaining[row]}
        with effect("storage.delete_meta"):
            meta_report = delete_keys_of_copies(
                objects, without_data.values(), lambda copy: copy.meta_keys, on_progress
            )
        unconfirmed_meta = sample_and_find_unconfirmed_keys(
            objects, meta_report, {row: copy.meta_keys for row, copy in without_data.items()}
        )
        return {row: to_removal_result(copies[row], remaining[row] or unconfirmed_meta[row]) for row in copies}

    def _list_remaining_segments_if_doubtful(self, copy: StoredCopy, *, is_single: bool) -> UnconfirmedKeys | None:
        """Return segments that a second listing of the copy still shows, or `None`.

        The second listing is made only if `is_single` is set, or if the first listing was incomplete. If the second
        listing fails, `meta.json` of this ledger stays. Other ledgers are not affected.
        """
        if not (copy.is_incomplete or is_single) or not copy.meta_keys:
            return None
        prefix = copy.meta_keys[0].rpartition("/")[0] + "/"
        try:
            data = [item.key for item in self._objects.list(prefix) if segment_number_from_key(item.key) is not None]
        except StoreUnavailable as error:
            return UnconfirmedKeys(0, f"the second listing got no answer: {error}", answered=False)
        return UnconfirmedKeys(len(data), f"{data[0]} appeared in a second listing") if data else None


def _head_in_parallel(objects: ObjectStore, keys: Iterator[str]) -> dict[str, _Object]:
    """Return the existing objects by key. After the first error no further request is sent."""
    object_by_key: dict[str, _Object] = {}
    first, has_failed = list(islice(keys, 1)), Event()
    if not first:
        return object_by_key

    def head(key: str) -> _Object | None:
        if has_failed.is_set():
            return None  # the error of the failed key is raised anyway
        try:
            raise_if_stopped()
            return objects.head(key)
        except BaseException:
            has_failed.set()
            raise

    with ThreadPoolExecutor(_PARALLEL_HEADS, thread_name_prefix="head") as threads:
        remaining = chain(first, keys)
        while batch := list(islice(remaining, _PARALLEL_HEADS * 32)):
            answers = [threads.submit(copy_context().run, head, key) for key in batch]
            object_by_key |= {
                key: stored for key, answer in zip(batch, answers, strict=True) if (stored := answer.result())
            }
    return object_by_key


def _expected_keys(intent: DeletionIntent) -> frozenset[str]:
    """Return the keys of registered segments. If segment numbers have gaps, they are unknown, and the set is empty."""
    if intent.last_segment + 1 != intent.segments:
        return frozenset()
    return frozenset(segment_key(intent.ledger_id, number) for number in range(intent.segments))
