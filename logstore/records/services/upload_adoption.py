"""Adoption: a rebuilt catalog gets the ledgers and segments that storage has but no flush contained.

No process may write to the catalog before adoption has ended. So no entry of an append that returned is lost, and no id
is used again.

First, each shard of storage is compared with the catalog, in any process and order. The differences are saved in the
catalog, without effect. Then each topic is settled: one transaction applies the topic's saved differences to its rows.
A comparison may be repeated. A crash undoes at most one transaction.

A listing alone never proves that a ledger or segment is absent. HEAD requests look for unlisted objects under keys that
are known or can be derived:

1. `meta.json` and all registered segments of a ledger with a row.
2. The segment that an upload names as the last registered segment.
3. The segment numbers after the last upload of a ledger that may have new segments.
4. Segment 0 of ledgers whose ids were given out after the last flush. Every rebuild leaves a gap in the ids. The ids
   after the gap may be far above the highest known id. A writer uses a higher segment number only if 0 is taken.

While workers of the old catalog may still append, only item 1 is used: other objects may be newer than the listing.

If HEAD finds no object, the ledger's prefix is listed once more. An unlisted object that HEAD or the second listing
finds proves the first listing wrong. The shard is then listed again. If the object is still not listed, adoption stops
before anything is settled.

Source: `logstore.deletion.services.primary_copies`; apache/bookkeeper#870.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from logstore.catalog.records.catalog_adoption import CatalogAdoption
from logstore.errors import CorruptData, InvalidInput, PreconditionFailed
from logstore.failpoints import effect
from logstore.log.ledger_object_keys import (
    SHARDS,
    ledger_id_from_key,
    ledger_prefix,
    meta_key,
    owner_digest_from_key,
    segment_key,
    segment_number_from_key,
    shard_prefix,
)
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.log.services.segment_placement import FIRST_NUMBER_STRIDE
from logstore.offload.tiered_copy import index_key, parse_uuid_and_location
from logstore.ports.catalog.records import (
    IssuedIdBounds,
    LedgerDiscrepancy,
    LoadedLedger,
    MissingRowCause,
    StorageDiscrepancy,
)
from logstore.ports.object_storage import BucketAtLocation, ObjectInfo, ObjectStore, OwnedStore
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption_rule import MAX_ABSENT_SHARE, UnregisteredUpload, require_small_absent_share
from logstore.records.job_results import RebuildAdoptionResult
from logstore.records.services.upload_reader import denied_object_error, read_upload_unless_foreign
from logstore.stop_checks import raise_if_stopped

_LEDGERS_PER_PAGE: Final = 200
_MAX_OBJECTS_PER_PAGE: Final = 20_000  # about 20 MB of memory; a page of a single ledger may have more
_TOPICS_PER_PAGE: Final = 100
_MAX_WRONG_LISTINGS: Final = 3
"""Maximum number of wrong listings of one shard. Adoption stops after this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedShard:
    shard: int
    objects: int  # number of objects in storage
    staged: int  # number of ledgers that differ from the catalog


@dataclass(slots=True)
class _StoredLedger:
    ledger_id: LedgerId
    statements: list[ObjectInfo] = field(default_factory=list)  # `meta.json`
    segments: dict[int, ObjectInfo] = field(default_factory=dict)  # by number


_LedgerPair = tuple[LoadedLedger | None, _StoredLedger | None]


class _Difference(NamedTuple):
    staged: LedgerDiscrepancy
    can_have_uploads: bool
    last_segment: int  # uploads have higher segment numbers


class _CountedListing:
    def __init__(self, items: Iterable[ObjectInfo]) -> None:
        self._items, self.objects = items, 0

    def __iter__(self) -> Iterator[ObjectInfo]:
        for item in self._items:
            self.objects += 1
            yield item


class UploadAdopter:
    """Adoption into one catalog. Thread-safe. Several processes may adopt at once.

    `objects` is the primary bucket, and `buckets` finds tiered buckets by location. Objects of applications other than
    `application` are ignored. `threads` is the number of concurrent requests for single objects, at least 1.
    """

    def __init__(
        self,
        *,
        adoption: CatalogAdoption,
        objects: OwnedStore,
        buckets: BucketAtLocation,
        application: str,
        threads: int = 16,
    ) -> None:
        self._adoption, self._objects, self._buckets = adoption, objects, buckets
        self._application, self._threads = application, threads

    def compare_and_stage_shard(
        self, shard: int, *, unflushed_from: Sequence[LedgerId] = (LedgerId(0),), is_growing: bool = False
    ) -> ComparedShard:
        """Compare the ledgers of a shard (id % 256 = `shard`) with storage. Save the differences in the catalog.

        Idempotency: the shard's differences from an earlier call are replaced. Settled topics stay settled.

        `unflushed_from` has the first ids of the ranges in which ledgers may be younger than the loaded rows.
        `is_growing` says whether workers of the old catalog may still append. If so, a listing is wrong only if it
        lacks registered objects, because other objects may be newer than the listing.

        Raises:
            PreconditionFailed: No adoption is in progress, or listings hide objects that HEAD finds.
            CatalogMismatch: The bucket belongs to another catalog.
            CorruptData: An upload that may have been registered is unreadable.
            StoreUnavailable: The store did not answer, or twice did not find an object that it had listed.
        """
        if not 0 <= shard < SHARDS:
            raise InvalidInput("shard", expected="0 to 255", found=shard)
        issued = self._adoption.read_issued_ids()
        unlisted: UnlistedObjectError | None = None
        for _ in range(_MAX_WRONG_LISTINGS):
            try:
                return self._stage_by_one_listing(
                    shard, issued, () if is_growing else unflushed_from, is_growing=is_growing
                )
            except UnlistedObjectError as error:
                unlisted = error
        raise PreconditionFailed(
            f"{shard_prefix(shard)}: expected a listing of all objects, found {_MAX_WRONG_LISTINGS} that lack"
            f" {unlisted}: HEAD finds it, LIST does not; nothing was settled. Let the store list again what it holds,"
            " then run the same command again, or give another database with --into if the old catalog has flushed"
            " since"
        ) from unlisted

    def _stage_by_one_listing(
        self, shard: int, issued: IssuedIdBounds, unflushed_from: Sequence[LedgerId], *, is_growing: bool
    ) -> ComparedShard:
        self._objects.require_ownership_now()
        listing = _CountedListing(self._objects.list(shard_prefix(shard)))
        above, staged_count, strangers, is_any_absent = LedgerId(-1), 0, set[LedgerId](), False
        with ThreadPoolExecutor(self._threads, thread_name_prefix="adopt") as pool:
            for page in self._pages(shard, listing):
                strangers |= {stored.ledger_id for row, stored in page if row is None and stored is not None}
                staged = self._find_ledgers_to_stage(pool, page, issued, is_growing=is_growing)
                is_any_absent |= any(
                    ledger.standing in {StorageDiscrepancy.ABSENT, StorageDiscrepancy.ENDED} for ledger in staged
                )
                with effect("adoption.stage"):
                    self._adoption.save_ledger_discrepancies(shard, staged, above=above, up_to=_ledger_id(page[-1]))
                above, staged_count = _ledger_id(page[-1]), staged_count + len(staged)
        above_known = LedgerId(self._adoption.highest_ledger_id() + 1)
        for first in sorted({max(first, above_known) for first in unflushed_from}):
            require_no_unlisted_newer_ledgers(self._objects, shard, first, strangers)
        if is_any_absent:
            self._objects.require_ownership_now()  # an empty listing of another catalog's bucket proves nothing
        with effect("adoption.stage"):
            self._adoption.save_ledger_discrepancies(shard, (), above=above)
        return ComparedShard(shard=shard, objects=listing.objects, staged=staged_count)

    def require_few_absent_ledgers(self, max_absent_share: float = MAX_ABSENT_SHARE) -> None:
        """Raise `PreconditionFailed` if the comparisons so far found too large a share of ledgers without objects."""
        absence = self._adoption.count_absent_ledgers()
        require_small_absent_share(absence.absent_ledgers, absence.total_ledgers, max_absent_share)

    def settle_and_finish(
        self,
        *,
        rows_epoch: int,
        flush: Callable[[], object],
        max_absent_share: float = MAX_ABSENT_SHARE,
        on_progress: Callable[[int], None] | None = None,
    ) -> RebuildAdoptionResult:
        """Settle all topics. Correct the other rows (`settle_remaining_rows`), flush, and make the catalog READY.

        The flush ends before any process may write to the catalog. So the record log has the adopted uploads, and no
        later rebuild decides about these uploads again.

        Idempotency: a settled topic is not settled again. If the catalog is READY, only the counts are returned.

        `rows_epoch` is the epoch of the loaded rows. Uploads of earlier epochs are not adopted. `flush` writes all
        changes of the catalog to its record log. `on_progress` gets the number of newly settled topics.

        Raises:
            PreconditionFailed: The share of absent ledgers is above `max_absent_share`. Nothing was settled.
        """
        self.require_few_absent_ledgers(max_absent_share)
        after = TopicId(-1)
        while page := self._adoption.list_unsettled_topics(after=after, limit=_TOPICS_PER_PAGE):
            for topic_id in page:
                raise_if_stopped()
                with effect("adoption.settle"):
                    self._adoption.settle_topic(topic_id, rows_epoch=rows_epoch)
            if on_progress:
                on_progress(len(page))
            after = page[-1]
        with effect("adoption.conclude"):
            self._adoption.settle_remaining_rows()
        if self._adoption.is_adopting():
            flush()
        report = self._adoption.count_outcomes()
        with effect("adoption.finish"):
            self._adoption.make_catalog_ready()
        return report

    def _pages(self, shard: int, items: Iterable[ObjectInfo]) -> Iterator[list[_LedgerPair]]:
        page, objects = list[_LedgerPair](), 0
        for row, stored in _join(self._loaded_ledgers(shard), _group_by_ledger(items)):
            ledger_objects = len(stored.segments) if stored else 0
            objects += ledger_objects
            if page and (len(page) == _LEDGERS_PER_PAGE or objects > _MAX_OBJECTS_PER_PAGE):
                raise_if_stopped()
                yield page
                page, objects = [], ledger_objects
            page.append((row, stored))
        if page:
            yield page

    def _loaded_ledgers(self, shard: int) -> Iterator[LoadedLedger]:
        after = LedgerId(-1)
        while page := self._adoption.list_loaded_ledgers(shard, after=after, limit=_LEDGERS_PER_PAGE):
            yield from page
            after = page[-1].ledger_id

    def _find_ledgers_to_stage(
        self, pool: ThreadPoolExecutor, page: list[_LedgerPair], issued: IssuedIdBounds, *, is_growing: bool
    ) -> list[LedgerDiscrepancy]:
        strangers = [stored.ledger_id for row, stored in page if row is None and stored is not None]
        cause_by_ledger = self._adoption.find_missing_row_causes(strangers) if strangers else {}
        compare = partial(self._compare_ledger, is_growing=is_growing)
        comparisons = [
            (stored, pool.submit(copy_context().run, compare, row, stored, cause_by_ledger, issued))
            for row, stored in page
        ]
        reads = [
            (difference, stored, self._read_uploads(pool, difference, stored))
            for stored, comparison in comparisons
            if (difference := comparison.result())
        ]
        differences = [
            (difference, stored, tuple(filter(None, (upload.result() for upload in uploads))))
            for difference, stored, uploads in reads
        ]
        probes = [
            pool.submit(copy_context().run, self._probe_uploads, difference, stored, uploads)
            for difference, stored, uploads in differences
            if difference.can_have_uploads and not is_growing
        ]
        for probe in probes:
            probe.result()
        return [
            replace(difference.staged, uploads=possible)
            for difference, _, uploads in differences
            if (possible := tuple(filter(issued.covers_upload, uploads)))
            or difference.staged.standing is not StorageDiscrepancy.TAIL
        ]

    def _probe_uploads(
        self, difference: _Difference, stored: _StoredLedger | None, uploads: Sequence[UnregisteredUpload]
    ) -> None:
        ledger_id, listed = difference.staged.ledger_id, stored.segments if stored else {}
        require_no_objects(self._objects, possible_unlisted_keys(ledger_id, difference.last_segment, listed, uploads))

    def _read_uploads(
        self, pool: ThreadPoolExecutor, difference: _Difference, stored: _StoredLedger | None
    ) -> list[Future[UnregisteredUpload | None]]:
        segments = sorted(stored.segments.items()) if stored and difference.can_have_uploads else ()
        ledger_id = difference.staged.ledger_id
        return [
            pool.submit(copy_context().run, read_upload_unless_foreign, self._objects, ledger_id, number, item)
            for number, item in segments
            if number > difference.last_segment
        ]

    def _compare_ledger(
        self,
        row: LoadedLedger | None,
        stored: _StoredLedger | None,
        cause_by_ledger: Mapping[LedgerId, MissingRowCause],
        issued: IssuedIdBounds,
        *,
        is_growing: bool,
    ) -> _Difference | None:
        if row is None:
            return self._compare_stranger(stored, cause_by_ledger, issued) if stored else None
        listed = stored.segments if stored else {}
        is_short = row.has_primary and any(number not in listed for number in row.segments)
        is_absent = stored is None if row.has_primary else row.tiered_context is not None
        if (is_short or is_absent) and self._has_tiered_objects(row):
            # The ledger is readable. A reconciliation reports the missing objects of the primary copy.
            is_short = is_absent = False
        if (is_short or is_absent) and row.has_primary:
            prove_objects_absent(
                self._objects,
                row.ledger_id,
                row.owner,
                row.segments,
                listed=listed,
                has_statement=bool(stored and stored.statements),
                is_growing=is_growing,
            )
        if not is_short and not is_absent and not row.can_have_new_segments:
            return None
        if is_absent:
            discrepancy = StorageDiscrepancy.ABSENT if row.is_listed else StorageDiscrepancy.ENDED
        else:
            discrepancy = StorageDiscrepancy.SHORT if is_short else StorageDiscrepancy.TAIL
        staged = LedgerDiscrepancy(ledger_id=row.ledger_id, topic_id=row.topic_id, standing=discrepancy)
        return _Difference(staged, row.can_have_new_segments, row.last_segment)

    def _has_tiered_objects(self, row: LoadedLedger) -> bool:
        """Return whether the tiered copy exists. The index of a copy is written last, so the index proves the copy."""
        if row.tiered_context is None:
            return False
        uuid, location = parse_uuid_and_location(row.ledger_id, row.tiered_context)
        objects = self._buckets(location)
        if objects.head(index_key(uuid, row.ledger_id)) is not None:
            return True
        objects.require_ownership_now()
        return False

    def _compare_stranger(
        self, stored: _StoredLedger, cause_by_ledger: Mapping[LedgerId, MissingRowCause], issued: IssuedIdBounds
    ) -> _Difference | None:
        """Return the difference to save for a ledger without a row, or `None` if the ledger is ignored.

        A ledger is ignored if it has an intent or an unknown ledger owner, or if its id was never given out. An adopted
        ledger with such an id would have the highest id of its topic. The topic could then never roll again.
        """
        cause = cause_by_ledger[stored.ledger_id]
        statement = self._read_own_statement(stored) if cause is not MissingRowCause.DETACHED else None
        if statement is None or not issued.covers(stored.ledger_id, statement.owner.topic_id):
            return None
        staged = LedgerDiscrepancy(
            ledger_id=stored.ledger_id,
            topic_id=statement.owner.topic_id,
            standing=StorageDiscrepancy.STRANGER,
            statement=statement,
            objects=len(stored.segments),
            size_bytes=sum(item.size_bytes for item in stored.segments.values()),
        )
        is_message_ledger = statement.owner.component is Component.MANAGED_LEDGER
        return _Difference(staged, cause is MissingRowCause.UNKNOWN and is_message_ledger, -1)

    def _read_own_statement(self, stored: _StoredLedger) -> LedgerStatement | None:
        """Return the statement of a ledger's objects, or `None` for foreign objects.

        One object is read, because all objects of a ledger have equal statements.
        """
        item = next(iter([*stored.statements, *stored.segments.values()]), None)
        if item is None:
            return None
        head = self._objects.head(item.key) or self._objects.head(item.key)  # one response does not disprove a listing
        if head is None:
            raise denied_object_error(item.key, "HEAD")
        try:
            statement = LedgerStatement.from_metadata(head[1])
        except CorruptData:
            return None
        is_own = statement.ledger_id == stored.ledger_id and statement.owner.application == self._application
        digests = {owner_digest_from_key(meta.key) for meta in stored.statements}
        return statement if is_own and digests <= {statement.owner.digest} else None


def _ledger_id(pair: _LedgerPair) -> LedgerId:
    return next(ledger.ledger_id for ledger in pair if ledger is not None)


def _group_by_ledger(items: Iterable[ObjectInfo]) -> Iterator[_StoredLedger]:
    """Group consecutive objects by ledger. Skip foreign objects outside the prefixes of ledgers."""
    stored: _StoredLedger | None = None
    for item in items:
        ledger_id = ledger_id_from_key(item.key)
        if ledger_id is None:
            continue
        if stored is None or stored.ledger_id != ledger_id:
            if stored is not None:
                yield stored
            stored = _StoredLedger(ledger_id)
        number = segment_number_from_key(item.key)
        if number is not None:
            stored.segments[number] = item
        elif owner_digest_from_key(item.key):
            stored.statements.append(item)
    if stored is not None:
        yield stored


def _join(rows: Iterator[LoadedLedger], stored_ledgers: Iterator[_StoredLedger]) -> Iterator[_LedgerPair]:
    """Pair two sequences that ascend by ledger id. A ledger that is in only one sequence is paired with `None`."""
    row, stored = next(rows, None), next(stored_ledgers, None)
    while row or stored:
        takes_row = row is not None and (stored is None or row.ledger_id <= stored.ledger_id)
        takes_stored = stored is not None and (row is None or stored.ledger_id <= row.ledger_id)
        yield (row if takes_row else None, stored if takes_stored else None)
        row = next(rows, None) if takes_row else row
        stored = next(stored_ledgers, None) if takes_stored else stored


PROBED_NUMBERS: Final = FIRST_NUMBER_STRIDE
"""Segment numbers probed after a ledger's last upload. After one lost race, a writer uses one of these numbers."""

PROBED_IDS_PER_SHARD: Final = 4
"""Number of ids of a shard that are probed after the last listed id. All shards together probe 1,024 ids."""


class UnlistedObjectError(Exception):
    """Object that exists although a listing of its prefix does not show it. The first argument is the object's key."""


def prove_objects_absent(
    objects: ObjectStore,
    ledger_id: LedgerId,
    owner: LedgerOwner,
    numbers: Collection[int],
    *,
    listed: Collection[int],
    has_statement: bool,
    is_growing: bool = False,
) -> None:
    """Raise `UnlistedObjectError` if the primary bucket has an unlisted object of the ledger.

    `numbers` are the registered segment numbers, and `listed` are the listed segment numbers. `has_statement` says
    whether a `meta.json` was listed. If `is_growing`, writers may have added unregistered segments since the listing.
    """
    require_no_objects(objects, () if has_statement else (meta_key(ledger_id, owner),))
    require_no_objects(objects, (segment_key(ledger_id, number) for number in numbers if number not in listed))
    for item in objects.list(ledger_prefix(ledger_id)):
        number = segment_number_from_key(item.key)
        is_unlisted = number is not None and number not in listed and (number in numbers or not is_growing)
        if (owner_digest_from_key(item.key) and not has_statement) or is_unlisted:
            raise UnlistedObjectError(item.key)


def require_no_objects(objects: ObjectStore, keys: Iterable[str]) -> None:
    """Raise `UnlistedObjectError` if HEAD finds an object under one of the keys."""
    for key in keys:
        raise_if_stopped()
        if objects.head(key) is not None:
            raise UnlistedObjectError(key)


def possible_unlisted_keys(
    ledger_id: LedgerId, last_segment: int, listed: Collection[int], uploads: Sequence[UnregisteredUpload]
) -> Iterator[str]:
    """Yield keys of segments that may exist although no listing shows them.

    `last_segment` is the highest segment number in the catalog, or -1. `listed` are the listed segment numbers.
    `uploads` are the readable uploads above `last_segment`. Confirmations, which have much higher numbers, are ignored.
    """
    stated = {upload.behind.last_segment for upload in uploads if upload.behind}
    last = max([last_segment, *(upload.number for upload in uploads if upload.entries)])
    following = range(last + 1, last + 1 + PROBED_NUMBERS)
    for number in sorted({number for number in stated if number > last_segment}.union(following).difference(listed)):
        yield segment_key(ledger_id, number)


def require_no_unlisted_newer_ledgers(
    objects: ObjectStore, shard: int, first_probed_id: LedgerId, listed: Collection[LedgerId]
) -> None:
    """Raise `UnlistedObjectError` if HEAD finds a ledger of the shard that is neither in the catalog nor listed.

    `first_probed_id` is the lowest probed id. The catalog must have no ledger with this id or a higher id. `listed` are
    the listed ids of ledgers without a row.
    """
    ledger_id, misses = LedgerId(first_probed_id + (shard - first_probed_id) % SHARDS), 0
    while misses < PROBED_IDS_PER_SHARD:
        if ledger_id in listed:
            misses = 0
        else:
            require_no_objects(objects, [segment_key(ledger_id, 0)])
            misses += 1
        ledger_id = LedgerId(ledger_id + SHARDS)
