"""Adoption: what storage holds beyond the last flush is taken into a catalog that was rebuilt.

The rebuilt catalog is as old as its last flush. What was registered since stands in storage and says so itself; the
catalog takes it in before any process may write to it, so that nothing that was answered is lost, and no id is used
again.

Storage is looked at shard by shard, in any order and by any process; looking twice is harmless. What was found is
staged in the catalog; then each topic is settled in a transaction of its own, so a crash costs at most one of them.

No ledger is taken for absent on the word of a listing: see `logstore.records.services.absence`. A listing that lacks an
object which stands is made again; if that does not help, adoption stops before anything is settled.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from logstore.errors import CorruptData, InvalidInput, PreconditionFailed
from logstore.failpoints import effect
from logstore.log.ledgers import (
    SHARDS,
    Component,
    LedgerStatement,
    ledger_id_from_key,
    owner_digest_from_key,
    segment_number_from_key,
    shard_prefix,
)
from logstore.offload.tiered import index_key, parse_copy_location
from logstore.ports.catalog.rebuilding import (
    Adoption,
    AdoptionReport,
    Fate,
    Issued,
    KnownLedger,
    StagedLedger,
    Standing,
)
from logstore.ports.objects import Buckets, ObjectInfo, OwnedStore
from logstore.positions import LedgerId, TopicId
from logstore.records.absent_share import MAX_ABSENT_SHARE, check_absent_share
from logstore.records.adoption import Upload
from logstore.records.services.absence import (
    UnlistedObjectError,
    probe_ids,
    prove_absent,
    require_none,
    unlisted_uploads,
)
from logstore.records.services.tail_objects import denied, read_upload
from logstore.units import raise_if_stopped

_PAGE: Final = 200  # ledgers that are compared at once
_OBJECTS: Final = 20_000  # of such ledgers, some 20 MB of memory, where the last one has no more
_TOPICS: Final = 100
_LISTINGS: Final = 3
"""Listings of a shard, each proved wrong by HEAD, after which adoption stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What a shard held. Counts are of this look at it."""

    shard: int
    objects: int  # in storage
    staged: int  # ledgers of which storage holds something else than the catalog says


@dataclass(slots=True)
class _Stored:
    """A ledger's objects as they were listed."""

    ledger_id: LedgerId
    statements: list[ObjectInfo] = field(default_factory=list)  # `meta.json`
    segments: dict[int, ObjectInfo] = field(default_factory=dict)  # by number


_Pair = tuple[KnownLedger | None, _Stored | None]


class _Look(NamedTuple):
    """What a look at a ledger came to."""

    staged: StagedLedger
    reads_segments: bool  # some of them may have been registered
    after: int  # those above this number


class _Counted:
    """A listing, with how much of it was drawn."""

    def __init__(self, listed: Iterable[ObjectInfo]) -> None:
        self._listed, self.objects = listed, 0

    def __iter__(self) -> Iterator[ObjectInfo]:
        for one in self._listed:
            self.objects += 1
            yield one


class Adopter:
    """Takes in what storage holds. Threads share one; any number of processes may adopt shards."""

    def __init__(
        self, *, adoption: Adoption, objects: OwnedStore, buckets: Buckets, application: str, threads: int = 16
    ) -> None:
        """Compare a catalog with its buckets.

        Args:
            adoption: The catalog.
            objects: The primary bucket.
            buckets: Tiered ones, by location.
            application: Whose ledgers are looked at; others belong to no catalog that we know, and stay as they are.
            threads: Requests for single objects under way at once, at least 1.
        """
        self._adoption, self._objects, self._buckets = adoption, objects, buckets
        self._application, self._threads = application, threads

    def adopt(
        self, shard: int, *, unflushed_from: Sequence[LedgerId] = (LedgerId(0),), is_growing: bool = False
    ) -> Adopted:
        """Look at the ledgers with id % 256 = `shard`, and stage what the catalog does not say of them.

        Idempotency: what was staged of the shard before is replaced; what a topic was settled with stays.

        Args:
            shard: 0 to 255.
            unflushed_from: Lowest ids of ledgers that may be younger than the rows, one for each range of ids in which
                there may be some. Those that the catalog knows are passed over.
            is_growing: Whether the old catalog may still append. An object that no row names may then be younger than
                the listing that lacks it, so only objects that rows name prove a listing wrong.

        Raises:
            InvalidInput: Not 0 to 255.
            PreconditionFailed: The catalog is not being adopted, or listings do not show what HEAD finds.
            CatalogMismatch: The bucket is not the catalog's.
            CorruptData: An upload that may have been registered cannot be read.
            StoreUnavailable: The store did not answer, or denied twice what it had listed.
            CatalogBusy: The catalog did not answer.
        """
        if not 0 <= shard < SHARDS:
            raise InvalidInput("shard", expected="0 to 255", found=shard)
        issued = self._adoption.issued()
        unlisted: UnlistedObjectError | None = None
        for _ in range(_LISTINGS):
            try:
                return self._adopt_by_listing(
                    shard, issued, () if is_growing else unflushed_from, is_growing=is_growing
                )
            except UnlistedObjectError as error:
                unlisted = error
        raise PreconditionFailed(
            f"{shard_prefix(shard)}: expected a listing of all objects, found {_LISTINGS} that lack {unlisted}: HEAD"
            " finds it, LIST does not; nothing was settled. Let the store list again what it holds, then run the same"
            " command again, or give another database with --into if the old catalog has flushed since"
        ) from unlisted

    def _adopt_by_listing(
        self, shard: int, issued: Issued, unflushed_from: Sequence[LedgerId], *, is_growing: bool
    ) -> Adopted:
        self._objects.confirm()
        counted = _Counted(self._objects.list(shard_prefix(shard)))
        above, staged, strangers, absent = LedgerId(-1), 0, set[LedgerId](), False
        with ThreadPoolExecutor(self._threads, thread_name_prefix="adopt") as pool:
            for page in self._pages(shard, counted):
                strangers |= {stored.ledger_id for known, stored in page if known is None and stored is not None}
                found = self._compare(pool, page, issued, is_growing=is_growing)
                absent |= any(one.standing in {Standing.ABSENT, Standing.ENDED} for one in found)
                with effect("adoption.stage"):
                    self._adoption.stage(shard, found, above=above, up_to=_ledger_id(page[-1]))
                above, staged = _ledger_id(page[-1]), staged + len(found)
        above_known = LedgerId(self._adoption.highest_id() + 1)
        for first in sorted({max(first, above_known) for first in unflushed_from}):
            probe_ids(self._objects, shard, first, strangers)
        if absent:
            self._objects.confirm()  # an empty answer of another bucket says nothing
        with effect("adoption.stage"):
            self._adoption.stage(shard, (), above=above)
        return Adopted(shard=shard, objects=counted.objects, staged=staged)

    def require_plausible(self, max_absent_share: float = MAX_ABSENT_SHARE) -> None:
        """Refuse to go on if storage holds nothing of too many listed ledgers, by the looks so far.

        Args:
            max_absent_share: Of all listed ledgers, how many may be without objects; 0 to 1 inclusive.

        Raises:
            InvalidInput: A share that is none.
            PreconditionFailed: More ledgers are without objects.
            CatalogBusy, StoreUnavailable: The catalog did not answer.
        """
        absence = self._adoption.absence()
        check_absent_share(absence.absent, absence.ledgers, max_absent_share)

    def finish(
        self,
        *,
        rows_epoch: int,
        flush: Callable[[], object],
        max_absent_share: float = MAX_ABSENT_SHARE,
        on_progress: Callable[[int], None] | None = None,
    ) -> AdoptionReport:
        """Settle every topic with what was staged, then what needs no look at storage, flush, and let writers begin.

        The flush comes before the first writer. What was adopted is then in the record log, and no later rebuild
        decides it anew beside uploads of this epoch.

        Idempotency: a topic that is settled is not settled again; a catalog that is READY only reports.

        Args:
            rows_epoch: Of the catalog whose rows were loaded; uploads of earlier epochs are decided.
            flush: Writes all changes of the catalog to its record log.
            on_progress: Called with the topics settled since the last call.
            max_absent_share: Of all listed ledgers, how many may be without objects; 0 to 1 inclusive.

        Raises:
            InvalidInput: A share that is none.
            PreconditionFailed: More ledgers are without objects; nothing was settled.
            CatalogBusy, StoreUnavailable: The catalog did not answer.
            And what `flush` raises.
        """
        self.require_plausible(max_absent_share)
        after = TopicId(-1)
        while page := self._adoption.unsettled(after=after, limit=_TOPICS):
            for topic_id in page:
                raise_if_stopped()
                with effect("adoption.settle"):
                    self._adoption.settle(topic_id, rows_epoch=rows_epoch)
            if on_progress:
                on_progress(len(page))
            after = page[-1]
        with effect("adoption.conclude"):
            self._adoption.conclude()
        if self._adoption.is_adopting():
            flush()
        report = self._adoption.report()
        with effect("adoption.finish"):
            self._adoption.finish()
        return report

    def _pages(self, shard: int, listed: Iterable[ObjectInfo]) -> Iterator[list[_Pair]]:
        """Ledgers that have rows, objects or both, ascending; a page has a bounded number of objects, or one ledger."""
        page, objects = list[_Pair](), 0
        for known, stored in _joined(self._known(shard), _by_ledger(listed)):
            objects += len(stored.segments) if stored else 0
            if page and (len(page) == _PAGE or objects > _OBJECTS):
                raise_if_stopped()
                yield page
                page, objects = [], len(stored.segments) if stored else 0
            page.append((known, stored))
        if page:
            yield page

    def _known(self, shard: int) -> Iterator[KnownLedger]:
        after = LedgerId(-1)
        while page := self._adoption.known(shard, after=after, limit=_PAGE):
            yield from page
            after = page[-1].ledger_id

    def _compare(
        self, pool: ThreadPoolExecutor, page: list[_Pair], issued: Issued, *, is_growing: bool
    ) -> list[StagedLedger]:
        """Ledgers first, then the objects of those that may hold what was registered since: many at once."""
        strangers = [stored.ledger_id for known, stored in page if known is None and stored is not None]
        fates = self._adoption.fates(strangers) if strangers else {}
        look_at = partial(self._look, is_growing=is_growing)
        looks = [
            (stored, pool.submit(copy_context().run, look_at, known, stored, fates, issued)) for known, stored in page
        ]
        told = [(found, stored, self._reads(pool, found, stored)) for stored, look in looks if (found := look.result())]
        read = [(found, stored, tuple(filter(None, (one.result() for one in reads)))) for found, stored, reads in told]
        probes = [
            pool.submit(copy_context().run, self._probe_uploads, found, stored, uploads)
            for found, stored, uploads in read
            if found.reads_segments and not is_growing
        ]
        for probe in probes:
            probe.result()
        return [
            replace(found.staged, uploads=registered)
            for found, _, uploads in read
            if (registered := tuple(filter(issued.covers_upload, uploads)))
            or found.staged.standing is not Standing.TAIL
        ]

    def _probe_uploads(self, found: _Look, stored: _Stored | None, uploads: Sequence[Upload]) -> None:
        listed = stored.segments if stored else {}
        require_none(self._objects, unlisted_uploads(found.staged.ledger_id, found.after, listed, uploads))

    def _reads(self, pool: ThreadPoolExecutor, found: _Look, stored: _Stored | None) -> list[Future[Upload | None]]:
        segments = sorted(stored.segments.items()) if stored and found.reads_segments else ()
        ledger_id = found.staged.ledger_id
        return [
            pool.submit(copy_context().run, read_upload, self._objects, ledger_id, number, one)
            for number, one in segments
            if number > found.after
        ]

    def _look(
        self,
        known: KnownLedger | None,
        stored: _Stored | None,
        fates: Mapping[LedgerId, Fate],
        issued: Issued,
        *,
        is_growing: bool,
    ) -> _Look | None:
        if known is None:
            return self._stranger(stored, fates, issued) if stored else None
        there = stored.segments if stored else {}
        short = known.primary and any(number not in there for number in known.segments)
        absent = stored is None if known.primary else known.tiered is not None
        if (short or absent) and self._in_tier(known):
            short = absent = False  # it can be read all the same; reconciliation tells of what the primary copy lacks
        if (short or absent) and known.primary:
            stated = bool(stored and stored.statements)
            prove_absent(
                self._objects,
                known.ledger_id,
                known.owner,
                known.segments,
                listed=there,
                stated=stated,
                is_growing=is_growing,
            )
        if not short and not absent and not known.takes_segments:
            return None
        gone = Standing.ABSENT if known.listed else Standing.ENDED
        standing = gone if absent else Standing.SHORT if short else Standing.TAIL
        staged = StagedLedger(ledger_id=known.ledger_id, topic_id=known.topic_id, standing=standing)
        return _Look(staged, known.takes_segments, known.last_segment)

    def _in_tier(self, known: KnownLedger) -> bool:
        """Whether its tiered copy stands: the index, which is written last, vouches for it."""
        if known.tiered is None:
            return False
        uuid, location = parse_copy_location(known.ledger_id, known.tiered)
        objects = self._buckets(location)
        if objects.head(index_key(uuid, known.ledger_id)) is not None:
            return True
        objects.confirm()
        return False

    def _stranger(self, stored: _Stored, fates: Mapping[LedgerId, Fate], issued: Issued) -> _Look | None:
        """Objects without a row; None where an intent stands for them, or they do not say that they are ours.

        None also where ledger or topic has an id that was never given out. Such a row would stand above every ledger
        that the topic gets later, so that the topic could never roll again.
        """
        fate = fates[stored.ledger_id]
        statement = self._statement(stored) if fate is not Fate.DETACHED else None
        if statement is None or not issued.covers(stored.ledger_id, statement.owner.topic_id):
            return None
        staged = StagedLedger(
            ledger_id=stored.ledger_id,
            topic_id=statement.owner.topic_id,
            standing=Standing.STRANGER,
            statement=statement,
            objects=len(stored.segments),
            size_bytes=sum(one.size_bytes for one in stored.segments.values()),
        )
        return _Look(staged, fate is Fate.UNKNOWN and statement.owner.component is Component.MANAGED_LEDGER, -1)

    def _statement(self, stored: _Stored) -> LedgerStatement | None:
        """What one of its objects says, `meta.json` first: all say the same; None of what is not ours to judge."""
        one = next(iter([*stored.statements, *stored.segments.values()]), None)
        if one is None:
            return None
        seen = self._objects.head(one.key) or self._objects.head(
            one.key
        )  # one answer is not believed against a listing
        if seen is None:
            raise denied(one.key, "HEAD")
        try:
            statement = LedgerStatement.from_metadata(seen[1])
        except CorruptData:
            return None
        ours = statement.ledger_id == stored.ledger_id and statement.owner.application == self._application
        named = {owner_digest_from_key(meta.key) for meta in stored.statements}
        return statement if ours and named <= {statement.owner.digest} else None


def _ledger_id(pair: _Pair) -> LedgerId:
    return next(one.ledger_id for one in pair if one is not None)


def _by_ledger(listed: Iterable[ObjectInfo]) -> Iterator[_Stored]:
    """Objects of one ledger stand one after the other; those outside of every ledger's prefix are foreign."""
    stored: _Stored | None = None
    for one in listed:
        ledger_id = ledger_id_from_key(one.key)
        if ledger_id is None:
            continue
        if stored is None or stored.ledger_id != ledger_id:
            if stored is not None:
                yield stored
            stored = _Stored(ledger_id)
        number = segment_number_from_key(one.key)
        if number is not None:
            stored.segments[number] = one
        elif owner_digest_from_key(one.key):
            stored.statements.append(one)
    if stored is not None:
        yield stored


def _joined(known: Iterator[KnownLedger], stored: Iterator[_Stored]) -> Iterator[_Pair]:
    """Both by ledger id, ascending, each of which may lack the other."""
    row, objects = next(known, None), next(stored, None)
    while row or objects:
        behind = row is not None and (objects is None or row.ledger_id <= objects.ledger_id)
        ahead = objects is not None and (row is None or objects.ledger_id <= row.ledger_id)
        yield (row if behind else None, objects if ahead else None)
        row = next(known, None) if behind else row
        objects = next(stored, None) if ahead else objects
