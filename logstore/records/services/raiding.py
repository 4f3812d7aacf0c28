"""The tomb raid: tombstones that cover nothing any more leave the catalog.

1. Tombstones that are old enough, are in a block, and have no unfinished deletion are marked: candidates.
2. Every block of the newest manifest that may hold a version of a candidate is scanned, and what later manifests add. A
   candidate stays if any version of its record is on disk that is no tombstone, if its own version is in no block, or
   in one that a replica has not applied yet. One of a ledger also stays if storage holds an object of that ledger: two
   listings must show none, and no key that its finished deletion remembers may be readable.
3. The others are removed, if they are still as step 1 found them.

A tombstone is removed alone and for good: dying anywhere leaves marks, which the next raid replaces, and repeating it
finds fewer candidates. What is no definite answer keeps them: an unreadable block, a store that does not answer, a
rebuild at work, a bucket that is not the catalog's.

Source: Aerospike's tomb raider (cenotaphs; eligible age; no older version on disk); scylladb#3560 and
scylla-manager#4258 (field cases 105 and 107).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from logstore.clock import Clock
from logstore.deletion.intents import DeletionIntent, find_missing_property
from logstore.deletion.services.absence import find_existing, registered_keys
from logstore.errors import CorruptData, PreconditionFailed
from logstore.failpoints import effect
from logstore.log.ledgers import SHARDS, ledger_prefix, meta_key, segment_key, shard_prefix
from logstore.ports.catalog import RecordId, Records, Tombstones
from logstore.ports.objects import OwnedStore
from logstore.positions import LedgerId
from logstore.records.jobs import LaggingReplica
from logstore.records.kinds import TOMBSTONED, RecordKind
from logstore.records.manifest import Block
from logstore.records.services.publishing import require_adopted, standing
from logstore.records.services.record_log import RecordLog
from logstore.records.tombstones import ReplicaState, applied_everywhere, eligible_before, replica_state
from logstore.records.winners import covered
from logstore.units import raise_if_stopped

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_PAGE: Final = 10_000
_WRITTEN: Final = 200  # tombstones of one writing transaction: SQLite has one writer at a time
_REST: Final = 4.0  # a raid sleeps this many times as long as its last write took, for other writers
_PINNED_US: Final = 7 * 86_400 * 1_000_000  # a raid that takes longer than that is not one

_FEW: Final = 8
"""Up to this number, candidates of one shard are looked up one by one; for more, the whole shard is listed."""

_NONE = -1
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raided:
    """What a raid came to."""

    candidates: int = 0
    kept: int = 0
    removed: int = 0
    blocks: int = 0  # scanned
    versions: int = 0  # in them, of topics and ledgers
    held_by: tuple[LaggingReplica, ...] = ()


@dataclass(slots=True)
class _Candidates:
    """The candidates of one kind: a row each, ascending by id."""

    ids: "npt.NDArray[np.int64]"
    needed: "npt.NDArray[np.bool_]"  # a reason was found to keep it
    newest_tombstone: "npt.NDArray[np.int64]"  # as a manifest's number; _NONE where it has none

    @property
    def left(self) -> "npt.NDArray[np.int64]":
        """Ids of those without a reason to be kept."""
        return self.ids[~self.needed]

    def count_later(self, manifest: int) -> int:
        """Return how many without a reason to be kept have a tombstone in a later manifest."""
        return int((~self.needed & (self.newest_tombstone > manifest)).sum())

    def concerned(self, block: Block) -> bool:
        """Whether a version of one of them may be in the block."""
        start, end = self.ids.searchsorted([block.first_id, block.last_id + 1])
        return bool(start < end)

    def scan(self, versions: "pa.Table") -> None:
        """Look at versions of their kind."""
        import numpy as np  # noqa: PLC0415 - start-up time

        self.needed |= covered(self.ids, versions)
        tombs = versions.filter(versions.column("tombstone"))
        ids, numbers = tombs.column("id").to_numpy(), tombs.column("version").to_numpy()
        at = np.minimum(self.ids.searchsorted(ids), len(self.ids) - 1)
        mine = self.ids[at] == ids
        np.maximum.at(self.newest_tombstone, at[mine], numbers[mine])


@dataclass(slots=True)
class _Scan:
    """What was scanned so far."""

    candidates: dict[RecordKind, _Candidates]
    seen: set[str] = field(default_factory=set)
    done: Raided = field(default_factory=Raided)


class Raider:
    """Raids the tombstones of one catalog. One raid removes at a time, whichever workflows run it.

    The marks are the claim: a later raid replaces the marks of an earlier one, and a raid removes only tombstones with
    its own mark. Each attempt marks under a name of its own. Otherwise an attempt that still runs, though it was
    thought dead, would remove tombstones that the next attempt has marked and has not scanned yet.
    """

    def __init__(
        self,
        records: Records,
        tombstones: Tombstones,
        log: RecordLog,
        primary: OwnedStore,
        *,
        eligible_age_s: float,
        replica_age_s: float | None = None,
        sleep_s: float = 0.001,
        clock: Clock | None = None,
    ) -> None:
        """Work on a catalog, its record log, and the bucket of its primary copies.

        Args:
            records: The catalog's outbox.
            tombstones: Its tombstones.
            log: Its record log.
            primary: Where objects of its ledgers are.
            eligible_age_s: Younger tombstones stay.
            replica_age_s: A replica that is silent for longer is not waited for; None: as the eligible age.
            sleep_s: Between blocks, so that others get to the store.
            clock: For that.
        """
        self._records, self._tombstones, self._log, self._primary = records, tombstones, log, primary
        self._age_s, self._sleep_s, self._clock = eligible_age_s, sleep_s, clock or Clock()
        self._replica_age_s = eligible_age_s if replica_age_s is None else replica_age_s

    def raid(self, run_id: str, *, attempt: int = 1, progress: Callable[[Raided], None] = lambda _: None) -> Raided:
        """Mark, scan, remove.

        Args:
            run_id: Of this raid; repeated it begins anew.
            attempt: Which one of this raid it is, from 1.
            progress: Told how far it is, after each block and each page.

        Raises:
            CatalogAdopting: The catalog was rebuilt and is not complete.
            PreconditionFailed: A rebuild reads the record log: nothing was removed since.
            MissingData, CorruptData, Unsupported: A block cannot be read; nothing was removed.
            CatalogOutdated, CatalogMismatch: As `standing`.
            StoreUnavailable, CatalogBusy: Repeating is fine.
        """
        state = standing(self._records, self._log).state
        require_adopted(state)
        self._require_no_rebuild(state.now_us)
        manifest = self._log.pin_newest(run_id, state.now_us + _PINNED_US, "raid")
        if manifest is None:
            return Raided()
        try:
            before_us, marks = eligible_before(state.now_us, self._age_s), marks_of(run_id, attempt)
            marked = self._mark(marks, before_us, progress)
            scan = _Scan(candidates=self._candidates(marks), done=Raided(candidates=marked))
            self._scan(scan, manifest.blocks, progress)
            self._look_in_storage(scan, progress)
            while self._scan(scan, standing(self._records, self._log).blocks, progress):
                pass  # what came meanwhile is scanned as well
            self._spare_what_replicas_lack(scan)
            return self._remove(marks, scan, before_us, progress)
        finally:
            self._log.unpin(run_id)

    def _mark(self, run_id: str, before_us: int, progress: Callable[[Raided], None]) -> int:
        """Mark page by page, so that writers get in between; how many candidates there are."""
        marked, last = self._mark_page(run_id, before_us, None)
        while last is not None:
            raise_if_stopped()
            progress(Raided(candidates=marked))
            more, last = self._mark_page(run_id, before_us, last)
            marked += more
        return marked

    def _mark_page(self, run_id: str, before_us: int, after: RecordId | None) -> tuple[int, RecordId | None]:
        with self._resting(), effect("records.raid_mark"):
            return self._tombstones.mark(run_id, before_us=before_us, after=after, limit=_WRITTEN)

    @contextmanager
    def _resting(self) -> Iterator[None]:
        """Sleep behind a writing transaction."""
        began = self._clock.monotonic_s()
        yield
        self._clock.sleep(_REST * (self._clock.monotonic_s() - began))

    def _candidates(self, run_id: str) -> dict[RecordKind, _Candidates]:
        import numpy as np  # noqa: PLC0415 - start-up time

        found: dict[RecordKind, list[int]] = {kind: [] for kind in TOMBSTONED}
        after: RecordId | None = None
        while page := self._tombstones.candidates(run_id, after=after, limit=_PAGE):
            raise_if_stopped()
            for one in page:
                found[one.kind].append(one.id)
            after = page[-1]
        return {
            kind: _Candidates(
                np.sort(np.array(ids, np.int64)), np.zeros(len(ids), bool), np.full(len(ids), _NONE, np.int64)
            )
            for kind, ids in found.items()
        }

    def _scan(self, scan: _Scan, blocks: Sequence[Block], progress: Callable[[Raided], None]) -> bool:
        """Scan those of the blocks that were not scanned yet; whether there were any."""
        todo = [one for one in blocks if one.kind in scan.candidates and one.block_id not in scan.seen]
        for block in todo:
            raise_if_stopped()
            scan.seen.add(block.block_id)
            candidates = scan.candidates[block.kind]
            if not candidates.concerned(block):
                continue
            candidates.scan(self._log.read_block(block, ("id", "version", "tombstone")))
            done = scan.done
            scan.done = replace(done, blocks=done.blocks + 1, versions=done.versions + block.records)
            progress(scan.done)
            self._clock.sleep(self._sleep_s)
        return bool(todo)

    def _look_in_storage(self, scan: _Scan, progress: Callable[[Raided], None]) -> None:
        """Keep tombstones of ledgers of which an object is there: without one it would be taken for a lost ledger.

        What two listings do not show is asked for by name, and the marker again behind all of it.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        self._primary.confirm()
        candidates = scan.candidates[RecordKind.LEDGER]
        left = candidates.left
        for shard in np.unique(left % SHARDS).tolist():
            progress(scan.done)
            ids = left[left % SHARDS == shard].tolist()
            standing = self._listed(shard, ids)
            standing |= self._listed(shard, [one for one in ids if one not in standing])
            for page in _cut([one for one in ids if one not in standing], _WRITTEN):
                progress(scan.done)
                standing |= self._standing_by_name(page)
            candidates.needed |= np.isin(candidates.ids, list(standing))
        self._primary.confirm()

    def _listed(self, shard: int, ids: Sequence[int]) -> set[int]:
        """Those of the ledgers, all of one shard, of which a listing shows an object."""
        asked = ids if len(ids) <= _FEW else self._known_to(shard, set(ids))
        return {one for one in asked if self._holds(one)}

    def _known_to(self, shard: int, ids: set[int]) -> list[int]:
        """Those of the ids that the shard may hold objects of: a folder without any may be shown too."""
        raise_if_stopped()
        prefixes = {ledger_prefix(LedgerId(one)): one for one in ids}
        return [prefixes[one] for one in self._primary.list_folder(shard_prefix(shard)) if one in prefixes]

    def _standing_by_name(self, ids: Sequence[int]) -> set[int]:
        """Those of the ledgers of which a known key can be read, or whose keys are not known for certain."""
        remembered: list[Iterator[tuple[int, str]]] = []
        told, damaged = set[int](), set[int]()
        for intent in self._records.finished_deletions(ids):
            try:
                remembered.append(_names(intent))
            except CorruptData:
                damaged.add(intent.ledger_id)
            told.add(intent.ledger_id)
        guessed = ((one, segment_key(LedgerId(one), 0)) for one in ids if one not in told)
        return damaged | find_existing(self._primary, chain(guessed, *remembered))

    def _holds(self, ledger_id: int) -> bool:
        raise_if_stopped()
        return next(iter(self._primary.list(ledger_prefix(LedgerId(ledger_id)))), None) is not None

    def _spare_what_replicas_lack(self, scan: _Scan) -> None:
        """Keep tombstones in manifests that a replica has not applied, and those that are in no manifest.

        A replica that is STALE is revoked, and then all are looked at again: one that came back meanwhile counts.
        """
        newest = standing(self._records, self._log)
        age_s, now_us = self._replica_age_s, newest.state.now_us
        for one in self._log.certain_replicas():
            state = replica_state(one, newest=newest.number, now_us=now_us, eligible_age_s=age_s)
            if state is ReplicaState.STALE and not one.revoked:
                self._log.revoke(one.replica_id)
        replicas = self._log.certain_replicas()
        applied = applied_everywhere(replicas, newest=newest.number)
        lagging = (
            LaggingReplica(
                replica=word.replica_id,
                manifest=word.manifest,
                tombstones=sum(candidates.count_later(word.manifest) for candidates in scan.candidates.values()),
            )
            for word in replicas
            if not word.revoked
        )
        held_by = sorted((holder for holder in lagging if holder.tombstones), key=lambda holder: holder.replica)
        for holder in held_by:
            _LOG.info(
                "raid: %d tombstones stay, because replica %s has applied manifest %d of %d",
                *(holder.tombstones, holder.replica, holder.manifest, newest.number),
            )
        scan.done = replace(scan.done, held_by=tuple(held_by))
        for candidates in scan.candidates.values():
            candidates.needed |= (candidates.newest_tombstone == _NONE) | (candidates.newest_tombstone > applied)

    def _remove(self, run_id: str, scan: _Scan, before_us: int, progress: Callable[[Raided], None]) -> Raided:
        """Unmark what is needed, and remove the others page by page."""
        for page in _pages(scan.candidates):
            raise_if_stopped()
            with self._resting(), effect("records.raid_keep"):
                self._tombstones.keep(run_id, page)
        self._require_no_rebuild(self._records.state().now_us)
        done = scan.done
        while self._tombstones.candidates(run_id, after=None, limit=1):
            raise_if_stopped()
            with self._resting(), effect("records.raid_remove"):
                removed = self._tombstones.remove(run_id, before_us=before_us, limit=_WRITTEN)
            done = replace(done, removed=done.removed + removed)
            progress(done)
        return replace(done, kept=done.candidates - done.removed)

    def _require_no_rebuild(self, now_us: int) -> None:
        for pin in self._log.pins(now_us=now_us):
            if pin.what == "rebuild":
                raise PreconditionFailed(
                    f"tombstones: expected no rebuild at work, found workflow rebuild-catalog/{pin.pin_id}"
                    f" that reads manifest {pin.manifest}. Let its command end or, if nobody goes on with it, end it:"
                    f" sexton records rebuild --abandon {pin.pin_id}"
                )


def marks_of(run_id: str, attempt: int) -> str:
    """The name under which an attempt of a raid marks its candidates."""
    return run_id if attempt == 1 else f"{run_id}-{attempt}"


def _pages(candidates: dict[RecordKind, _Candidates]) -> Iterator[list[RecordId]]:
    """Those with a reason to be kept."""
    for kind, of_kind in candidates.items():
        for page in _cut(of_kind.ids[of_kind.needed].tolist(), _WRITTEN):
            yield [RecordId(kind=kind, id=one) for one in page]


def _cut(ids: Sequence[int], page: int) -> Iterator[Sequence[int]]:
    return (ids[start : start + page] for start in range(0, len(ids), page))


def _names(intent: DeletionIntent) -> Iterator[tuple[int, str]]:
    """Ledger and key of each object that a deletion had to remove.

    Raises:
        CorruptData: What it remembers is damaged.
    """
    if lacking := intent.damage or find_missing_property(intent):
        raise CorruptData(f"ledger {intent.ledger_id}: expected a deletion that can be read, found damaged {lacking}")
    keys = chain([meta_key(intent.ledger_id, intent.owner)], registered_keys(intent))
    return ((intent.ledger_id, key) for key in keys)
