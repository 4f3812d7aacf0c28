"""The primary copy of ledgers: found by one LIST, verified by the name of its `meta.json`, removed in pages.

Between any two calls here the process may die. Data is deleted first and `meta.json` last, so what is left of a
half-deleted ledger still says whose it is; deleting an absent key counts as done, so all of it may repeat.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from itertools import chain, islice
from threading import Event

from logstore.deletion.intents import CopyVerdict, DeletionIntent, StoredCopy, find_ownership_problem
from logstore.deletion.services.absence import MAX_ASKED_SEGMENTS, doubt_absence, judge_deletion
from logstore.deletion.services.shared_requests import (
    SharedListings,
    UnconfirmedKeys,
    delete,
    removal,
    unconfirmed,
)
from logstore.errors import CorruptData, SextonError, StoreUnavailable
from logstore.failpoints import effect
from logstore.log.ledgers import (
    Component,
    ledger_prefix,
    meta_key,
    owner_digest_from_key,
    parse_meta_fields,
    segment_key,
    segment_number_from_key,
)
from logstore.ports.objects import ObjectInfo, ObjectStore, OwnedStore, RemovalResult
from logstore.units import raise_if_stopped

_MOST_STATED = 65_536
"""Bytes of a `meta.json` that are read; ours has less than 4 KiB."""
_ASKING = 8
"""Keys asked for at a time, where a listing does not show them."""

_Seen = tuple[ObjectInfo, Mapping[str, str]]


class PrimaryCopies:
    """`CopyStorage` over the primary bucket."""

    def __init__(self, objects: OwnedStore) -> None:
        """Work on the bucket that `objects` is."""
        self._objects = objects

    def inspect(self, intent: DeletionIntent) -> StoredCopy:
        """List the ledger's prefix and judge whose it is; see `_judged`."""
        return self._judged(intent, self._objects.list(ledger_prefix(intent.ledger_id)))

    def prepare_inspection(self, intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        """See `CopyStorage`: small ledgers that stand side by side share a listing."""
        listings = SharedListings(self._objects, intents)

        def inspect(intent: DeletionIntent) -> StoredCopy:
            shown = listings.of(intent.ledger_id)
            listing = self._objects.list(ledger_prefix(intent.ledger_id)) if shown is None else shown
            return self._judged(intent, listing, prove_absence=False)

        return inspect

    def _judged(
        self, intent: DeletionIntent, listing: Iterable[ObjectInfo], *, prove_absence: bool = True
    ) -> StoredCopy:
        """Say whose the ledger is by a listing of it.

        One LIST verifies the owner, whose digest is in the name of `meta.json`. Absence is proved by independent
        reads: an empty listing and a HEAD that finds no `meta.json` (apache/bookkeeper#870), a second listing for
        what the catalog does not know, and a HEAD of each segment that the catalog may have registered. Such segments
        that a listing lacks are asked for by name as well, and deleted where they stand.

        Raises:
            StoreUnavailable: Storage did not answer, or its answers contradict each other.
        """
        uploads = self._uploads(intent)
        found = list({item.key: item for item in listing}.values())
        if not found:
            gone = StoredCopy(verdict=CopyVerdict.ABSENT)
            if prove_absence or uploads:
                gone = self._prove_absent(intent)
            return replace(gone, verdict=CopyVerdict.OWN, uploads=uploads) if uploads else gone
        prefix = ledger_prefix(intent.ledger_id)  # a known name below another prefix is unknown
        direct = [item.key for item in found if "/" not in item.key.removeprefix(prefix)]
        metas = tuple(key for key in direct if owner_digest_from_key(key))
        data = tuple(key for key in direct if segment_number_from_key(key) is not None)
        unlisted = self._unlisted(intent, frozenset(data))
        told = (find_ownership_problem(intent, key, seen[1]) for key, seen in unlisted.items())
        foreign = self._contradiction(intent, found, metas, data) or next(filter(None, told), None)
        expected = _expected(intent)
        own = meta_key(intent.ledger_id, intent.owner)  # a listing cut short ends before it
        unlisted |= {} if metas or foreign else _asked(self._objects, iter([own]))
        return StoredCopy(
            verdict=CopyVerdict.FOREIGN if foreign else CopyVerdict.OWN,
            data_keys=tuple(sorted({*data, *unlisted} - {own})),
            meta_keys=metas or (own,),
            unseen_meta_keys=0 if metas or own in unlisted else 1,
            size_bytes=sum(item.size_bytes for item in (*found, *(info for info, _ in unlisted.values()))),
            objects=len(found) + len(unlisted),
            uploads=() if foreign else uploads,
            is_incomplete=not metas or not expected or not expected.issubset(data),
            detail=foreign or "",
        )

    def _uploads(self, intent: DeletionIntent) -> tuple[str, ...]:
        """Keys with parts of an upload that died.

        Only of a component that stores whole files, which may be large, and of a ledger that was never published.
        """
        if intent.component != Component.DELAYED_INDEX or intent.segments:
            return ()
        return tuple(one.key for one in self._objects.open_uploads(ledger_prefix(intent.ledger_id)))

    def _prove_absent(self, intent: DeletionIntent) -> StoredCopy:
        key = meta_key(intent.ledger_id, intent.owner)
        if self._objects.head(key):
            raise StoreUnavailable(f"{key}: HEAD finds it, LIST does not; deleting nothing on such a listing")
        again = next(iter(self._objects.list(ledger_prefix(intent.ledger_id))), None)
        if again:
            raise StoreUnavailable(f"{again.key}: a second LIST finds it, the first one does not")
        for key in self._unlisted(intent, frozenset()):
            raise StoreUnavailable(f"{key}: HEAD finds it, two LISTs do not; deleting nothing on such listings")
        return StoredCopy(verdict=CopyVerdict.ABSENT)

    def _unlisted(self, intent: DeletionIntent, listed: frozenset[str]) -> dict[str, _Seen]:
        """Segments that the catalog may have registered, and that stand although the listing lacks them.

        Where lost races left gaps, every number up to the highest may be a registered one.

        Raises:
            CorruptData: There are too many of them: the number of the highest is damaged.
            StoreUnavailable: Storage did not answer.
        """
        if intent.segments and intent.last_segment - len(listed) >= MAX_ASKED_SEGMENTS:
            expected = f"at most {MAX_ASKED_SEGMENTS:,} segments that no listing shows"
            raise CorruptData(f"ledger {intent.ledger_id}: expected {expected}, found the number {intent.last_segment}")
        numbers = range(intent.last_segment + 1) if intent.segments else ()
        names = (segment_key(intent.ledger_id, number) for number in numbers)
        return _asked(self._objects, (key for key in names if key not in listed))

    def _contradiction(
        self, intent: DeletionIntent, found: list[ObjectInfo], metas: tuple[str, ...], data: tuple[str, ...]
    ) -> str | None:
        """Say what is not ours; objects whose names alone do not tell are asked for their own metadata.

        `meta.json` speaks for itself by its name, and a segment by a number that the catalog registered. A ledger
        that never took a segment may meet the statement of another one with its id, from before the catalog was
        replaced: its creator was refused when it put its own.
        """
        digest = intent.owner.digest
        others = [key for key in metas if owner_digest_from_key(key) != digest]
        known = {*metas, *data}
        unknown = [item.key for item in found if item.key not in known]
        if others or unknown:
            return f"found {(others + unknown)[0]!r}, which {digest} ({intent.topic}) never wrote"
        expected = _expected(intent) if metas else frozenset()
        silent = [key for key in data if key not in expected]
        meta = [] if metas and intent.segments else [meta_key(intent.ledger_id, intent.owner)]
        return next((reason for key in (*meta, *silent) if (reason := self._not_own(intent, key))), None)

    def _not_own(self, intent: DeletionIntent, key: str) -> str | None:
        """Judge an object by its own metadata."""
        raise_if_stopped()
        seen = self._objects.head(key)
        if seen is None:
            return None  # it went away since the listing; nothing of it can be harmed
        return find_ownership_problem(intent, key, seen[1])

    def check_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        """See `CopyStorage`; they all stand in one bucket, which is asked last whose it is."""
        doubts = doubt_absence(self._objects, absent)
        proved = [intent for intent in absent if intent.row_id not in doubts]
        return doubts | unconfirmed(self._objects, proved)

    def statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """The content of `meta.json`, ours before another's; where none stands, what the first object says of itself.

        Raises:
            StoreUnavailable: Storage did not answer.
        """
        own = meta_key(intent.ledger_id, intent.owner)
        listed = [item.key for item in self._objects.list(ledger_prefix(intent.ledger_id))]
        metas = sorted((key for key in listed if owner_digest_from_key(key)), key=lambda key: key != own)
        content = self._objects.get_range(metas[0], 0, _MOST_STATED) if metas else None
        if content is not None:
            return parse_meta_fields(content)
        seen = self._objects.head(listed[0]) if listed else None
        return dict(seen[1]) if seen else None

    def remove(
        self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> Mapping[int, RemovalResult]:
        """Free what died in mid-upload, delete every copy's segments, then the `meta.json` of those that lost them."""
        objects = self._objects.begin_removal()
        for key in {key for copy in copies.values() for key in copy.uploads}:
            raise_if_stopped()
            with effect("storage.abort_uploads"):
                objects.abort_uploads(key)
        with effect("storage.delete_data"):
            data = delete(objects, copies.values(), lambda copy: copy.data_keys, on_progress)
        data_left = judge_deletion(objects, data, {row: copy.data_keys for row, copy in copies.items()})
        left = {row: data_left[row] or self._left(copies[row], alone=len(copies) == 1) for row in copies}
        whole = {row: copy for row, copy in copies.items() if not left[row]}
        with effect("storage.delete_meta"):
            meta = delete(objects, whole.values(), lambda copy: copy.meta_keys, on_progress)
        meta_left = judge_deletion(objects, meta, {row: copy.meta_keys for row, copy in whole.items()})
        return {row: removal(copies[row], left[row] or meta_left[row]) for row in copies}

    def _left(self, copy: StoredCopy, *, alone: bool) -> UnconfirmedKeys | None:
        """Data that a second listing shows: of a ledger that is removed alone, or whose first listing was short.

        A listing that gets no answer keeps this ledger's statement. It says nothing of the other ledgers.
        """
        if not (copy.is_incomplete or alone) or not copy.meta_keys:
            return None
        prefix = copy.meta_keys[0].rpartition("/")[0] + "/"
        try:
            again = [item.key for item in self._objects.list(prefix) if segment_number_from_key(item.key) is not None]
        except StoreUnavailable as error:
            return UnconfirmedKeys(0, f"the second listing got no answer: {error}", answered=False)
        return UnconfirmedKeys(len(again), f"{again[0]} appeared in a second listing") if again else None


def _asked(objects: ObjectStore, keys: Iterator[str]) -> dict[str, _Seen]:
    """Those of the keys that HEAD finds; a few are asked for at a time, and none after the first that got no answer."""
    found: dict[str, _Seen] = {}
    first, failed = list(islice(keys, 1)), Event()
    if not first:
        return found

    def head(key: str) -> _Seen | None:
        if failed.is_set():
            return None  # the error of the key that failed is raised for all
        try:
            raise_if_stopped()
            return objects.head(key)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(_ASKING, thread_name_prefix="head") as threads:
        rest = chain(first, keys)
        while batch := list(islice(rest, _ASKING * 32)):
            heads = [threads.submit(copy_context().run, head, key) for key in batch]
            found |= {key: seen for key, asked in zip(batch, heads, strict=True) if (seen := asked.result())}
    return found


def _expected(intent: DeletionIntent) -> frozenset[str]:
    """Keys of the registered segments, or nothing where lost races left gaps, so that only a count is known."""
    if intent.last_segment + 1 != intent.segments:
        return frozenset()
    return frozenset(segment_key(intent.ledger_id, number) for number in range(intent.segments))
