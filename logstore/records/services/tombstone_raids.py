"""Raids: removal of tombstones that do not cover a record version any more.

A raid has four steps:

1. Mark candidates: tombstones that are old enough, are in a block, and have no unfinished deletion.
2. Scan all blocks that may have record versions of a candidate's record, including blocks that are stored meanwhile.
3. Keep a candidate if a block has content of its record, or storage has an object of its ledger. Also keep a candidate
   whose tombstone is in no scanned block, or in a block that a replica has not applied.
4. Remove each other candidate that has not changed since step 1.

A ledger has no object if two listings show none, and no key that a finished deletion names is readable. After a crash,
the next raid replaces the remaining marks.

Source: Aerospike's tomb raider (cenotaphs, eligible age, no older version on disk). In ScyllaDB, deleted rows returned
after a tombstone was removed too early (scylladb#3560), or after a restore (scylla-manager#4258).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from logstore.catalog.records.outbox import RecordOutbox
from logstore.catalog.records.tombstone_rows import Tombstones
from logstore.deletion.intents import DeletionIntent, find_missing_property
from logstore.deletion.services.absence_proofs import find_ledgers_with_objects, possible_segment_keys
from logstore.errors import CorruptData, PreconditionFailed
from logstore.failpoints import effect
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, meta_key, segment_key, shard_prefix
from logstore.ports.catalog.records import TombstonedRecordId
from logstore.ports.object_storage import OwnedStore
from logstore.positions import LedgerId
from logstore.records.job_results import RaidedTombstones, ReplicaAwaitedByRaid
from logstore.records.manifest import Block
from logstore.records.newest_versions import mask_ids_with_content
from logstore.records.record_kinds import TOMBSTONED_KINDS, RecordKind
from logstore.records.services.manifest_publication import read_settled_head, require_no_adoption
from logstore.records.services.record_log import RecordLog
from logstore.records.tombstone_rules import eligible_before_us, is_stale, newest_manifest_applied_everywhere
from logstore.retrying_clock import Clock
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_CANDIDATES_PER_PAGE: Final = 10_000
_TOMBSTONES_PER_WRITE: Final = 200  # SQLite has one writer at a time
_REST_FACTOR: Final = 4.0  # after a write a raid sleeps 4 times as long as the write took, so that others can write
_PIN_DURATION_US: Final = 7 * 86_400 * 1_000_000  # longer than any raid

_MAX_SINGLE_LISTINGS: Final = 8
"""If a shard has more candidates than this, the whole shard is listed. Otherwise each ledger is listed separately."""

_NO_MANIFEST = -1
_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Candidates:
    """Candidates of one kind, ascending by id."""

    ids: "npt.NDArray[np.int64]"
    needed: "npt.NDArray[np.bool_]"  # whether the tombstone must stay
    newest_tombstone: "npt.NDArray[np.int64]"  # newest manifest number of a stored tombstone, or `_NO_MANIFEST`

    @property
    def removable_ids(self) -> "npt.NDArray[np.int64]":
        return self.ids[~self.needed]

    def count_later(self, manifest: int) -> int:
        return int((~self.needed & (self.newest_tombstone > manifest)).sum())

    def may_overlap(self, block: Block) -> bool:
        start, end = self.ids.searchsorted([block.first_id, block.last_id + 1])
        return bool(start < end)

    def mark_needed_and_note_tombstones(self, versions: "pa.Table") -> None:
        import numpy as np  # noqa: PLC0415 - start-up time

        self.needed |= mask_ids_with_content(self.ids, versions)
        tombstones = versions.filter(versions.column("tombstone"))
        ids, numbers = tombstones.column("id").to_numpy(), tombstones.column("version").to_numpy()
        positions = np.minimum(self.ids.searchsorted(ids), len(self.ids) - 1)
        is_candidate = self.ids[positions] == ids
        np.maximum.at(self.newest_tombstone, positions[is_candidate], numbers[is_candidate])


@dataclass(slots=True)
class _Scan:
    candidates: dict[RecordKind, _Candidates]
    scanned_block_ids: set[str] = field(default_factory=set)
    result: RaidedTombstones = field(default_factory=RaidedTombstones)


class Raider:
    """Raids on the tombstones of one catalog.

    A raid needs no lock. Each raid removes only tombstones with its own marks, and marks of a later raid replace marks
    of an earlier raid. Each attempt has marks of its own. Otherwise a late attempt could remove tombstones that the
    next attempt has marked, but has not compared with the blocks yet.

    `primary` is the bucket of the primary copies. Tombstones younger than `eligible_age_s` stay. A raid does not wait
    for a replica that has not acknowledged for `replica_age_s` (default: `eligible_age_s`). `sleep_s` is the pause
    after each block, so that others can use the object store.
    """

    def __init__(
        self,
        records: RecordOutbox,
        tombstones: Tombstones,
        log: RecordLog,
        primary: OwnedStore,
        *,
        eligible_age_s: float,
        replica_age_s: float | None = None,
        sleep_s: float = 0.001,
        clock: Clock | None = None,
    ) -> None:
        self._records, self._tombstones, self._log, self._primary = records, tombstones, log, primary
        self._age_s, self._sleep_s, self._clock = eligible_age_s, sleep_s, clock or Clock()
        self._replica_age_s = eligible_age_s if replica_age_s is None else replica_age_s

    def raid_tombstones(
        self, run_id: str, *, attempt: int = 1, progress: Callable[[RaidedTombstones], None] = lambda _: None
    ) -> RaidedTombstones:
        """Mark, scan and remove tombstones. A repeated call starts from the beginning.

        `attempt` counts the attempts of raid `run_id` from 1. `progress` is called after each block and each page.

        Raises:
            CatalogAdopting: The catalog is rebuilt and incomplete.
            PreconditionFailed: A rebuild reads the record log. Nothing was removed.
            MissingData, CorruptData, Unsupported: A block is unreadable. Nothing was removed.
            CatalogOutdated, CatalogMismatch: Errors of `read_settled_head`.
            StoreUnavailable, CatalogBusy: The raid may be repeated.
        """
        state = read_settled_head(self._records, self._log).state
        require_no_adoption(state)
        self._require_no_rebuild(state.now_us)
        manifest = self._log.pin_newest_complete_manifest(run_id, state.now_us + _PIN_DURATION_US, "raid")
        if manifest is None:
            return RaidedTombstones()
        try:
            before_us, marks_name = eligible_before_us(state.now_us, self._age_s), raid_marks_name(run_id, attempt)
            marked = self._mark_candidates(marks_name, before_us, progress)
            scan = _Scan(candidates=self._read_candidates(marks_name), result=RaidedTombstones(candidates=marked))
            self._scan_new_blocks(scan, manifest.blocks, progress)
            self._keep_stored_ledgers(scan, progress)
            while self._scan_new_blocks(scan, read_settled_head(self._records, self._log).blocks, progress):
                pass  # also scan blocks that were published meanwhile
            self._revoke_stale_and_keep_unapplied(scan)
            return self._unmark_needed_and_remove_rest(marks_name, scan, before_us, progress)
        finally:
            self._log.unpin(run_id)

    def _mark_candidates(self, marks_name: str, before_us: int, progress: Callable[[RaidedTombstones], None]) -> int:
        """Mark tombstones in small pages, because other writers wait during a page. Return the number of candidates."""
        marked, last = self._mark_page(marks_name, before_us, None)
        while last is not None:
            raise_if_stopped()
            progress(RaidedTombstones(candidates=marked))
            more, last = self._mark_page(marks_name, before_us, last)
            marked += more
        return marked

    def _mark_page(
        self, marks_name: str, before_us: int, after: TombstonedRecordId | None
    ) -> tuple[int, TombstonedRecordId | None]:
        with self._resting(), effect("records.raid_mark"):
            return self._tombstones.mark_raid_candidates(
                marks_name, before_us=before_us, after=after, limit=_TOMBSTONES_PER_WRITE
            )

    @contextmanager
    def _resting(self) -> Iterator[None]:
        started_s = self._clock.monotonic_s()
        yield
        self._clock.sleep(_REST_FACTOR * (self._clock.monotonic_s() - started_s))

    def _read_candidates(self, marks_name: str) -> dict[RecordKind, _Candidates]:
        import numpy as np  # noqa: PLC0415 - start-up time

        ids_by_kind: dict[RecordKind, list[int]] = {kind: [] for kind in TOMBSTONED_KINDS}
        after: TombstonedRecordId | None = None
        while page := self._tombstones.list_raid_candidates(marks_name, after=after, limit=_CANDIDATES_PER_PAGE):
            raise_if_stopped()
            for record_id in page:
                ids_by_kind[record_id.kind].append(record_id.id)
            after = page[-1]
        return {
            kind: _Candidates(
                np.sort(np.array(ids, np.int64)), np.zeros(len(ids), bool), np.full(len(ids), _NO_MANIFEST, np.int64)
            )
            for kind, ids in ids_by_kind.items()
        }

    def _scan_new_blocks(
        self, scan: _Scan, blocks: Sequence[Block], progress: Callable[[RaidedTombstones], None]
    ) -> bool:
        unscanned = [
            block for block in blocks if block.kind in scan.candidates and block.block_id not in scan.scanned_block_ids
        ]
        for block in unscanned:
            raise_if_stopped()
            scan.scanned_block_ids.add(block.block_id)
            candidates = scan.candidates[block.kind]
            if not candidates.may_overlap(block):
                continue
            candidates.mark_needed_and_note_tombstones(self._log.read_block(block, ("id", "version", "tombstone")))
            result = scan.result
            scan.result = replace(result, blocks=result.blocks + 1, versions=result.versions + block.records)
            progress(scan.result)
            self._clock.sleep(self._sleep_s)
        return bool(unscanned)

    def _keep_stored_ledgers(self, scan: _Scan, progress: Callable[[RaidedTombstones], None]) -> None:
        """Keep tombstones of ledgers with an object. Without its tombstone, a rebuild could adopt such a ledger."""
        import numpy as np  # noqa: PLC0415 - start-up time

        self._primary.require_ownership_now()
        candidates = scan.candidates[RecordKind.LEDGER]
        removable_ids = candidates.removable_ids
        for shard in np.unique(removable_ids % SHARDS).tolist():
            progress(scan.result)
            ids = removable_ids[removable_ids % SHARDS == shard].tolist()
            stored = self._listed_ledgers(shard, ids)
            stored |= self._listed_ledgers(shard, [ledger_id for ledger_id in ids if ledger_id not in stored])
            unlisted = [ledger_id for ledger_id in ids if ledger_id not in stored]
            for page in _paginate(unlisted, _TOMBSTONES_PER_WRITE):
                progress(scan.result)
                stored |= self._ledgers_with_known_objects(page)
            candidates.needed |= np.isin(candidates.ids, list(stored))
        self._primary.require_ownership_now()

    def _listed_ledgers(self, shard: int, ids: Sequence[int]) -> set[int]:
        if len(ids) > _MAX_SINGLE_LISTINGS:
            raise_if_stopped()
            id_by_prefix = {ledger_prefix(LedgerId(ledger_id)): ledger_id for ledger_id in ids}
            # A store may also list folders without objects.
            folders = self._primary.list_folder(shard_prefix(shard))
            ids = [id_by_prefix[folder] for folder in folders if folder in id_by_prefix]
        return {ledger_id for ledger_id in ids if self._has_listed_object(ledger_id)}

    def _ledgers_with_known_objects(self, ids: Sequence[int]) -> set[int]:
        """Return the ledgers that have an object under a known key, or whose list of known keys is damaged."""
        remembered_keys: list[Iterator[tuple[int, str]]] = []
        remembered, damaged = set[int](), set[int]()
        for intent in self._records.list_finished_deletions(ids):
            try:
                remembered_keys.append(_pair_ledger_with_deleted_keys(intent))
            except CorruptData:
                damaged.add(intent.ledger_id)
            remembered.add(intent.ledger_id)
        guessed_keys = (
            (ledger_id, segment_key(LedgerId(ledger_id), 0)) for ledger_id in ids if ledger_id not in remembered
        )
        return damaged | find_ledgers_with_objects(self._primary, chain(guessed_keys, *remembered_keys))

    def _has_listed_object(self, ledger_id: int) -> bool:
        raise_if_stopped()
        return next(iter(self._primary.list(ledger_prefix(LedgerId(ledger_id)))), None) is not None

    def _revoke_stale_and_keep_unapplied(self, scan: _Scan) -> None:
        """Revoke STALE replicas. Keep tombstones that a replica has not applied, and tombstones in no block.

        All replicas are read again after the revocations, because a replica may have been registered meanwhile.
        """
        head = read_settled_head(self._records, self._log)
        age_s, now_us = self._replica_age_s, head.state.now_us
        for acknowledgement in self._log.list_certain_acknowledgements():
            if not acknowledgement.is_revoked and is_stale(acknowledgement, now_us=now_us, eligible_age_s=age_s):
                self._log.revoke_replica(acknowledgement.replica_id)
        acknowledgements = self._log.list_certain_acknowledgements()
        applied = newest_manifest_applied_everywhere(acknowledgements, newest=head.number)
        lagging = (
            ReplicaAwaitedByRaid(
                replica=acknowledgement.replica_id,
                manifest=acknowledgement.manifest,
                tombstones=sum(
                    candidates.count_later(acknowledgement.manifest) for candidates in scan.candidates.values()
                ),
            )
            for acknowledgement in acknowledgements
            if not acknowledgement.is_revoked
        )
        held_by = sorted((laggard for laggard in lagging if laggard.tombstones), key=lambda laggard: laggard.replica)
        for laggard in held_by:
            _LOG.info(
                "raid: %d tombstones stay, because replica %s has applied manifest %d of %d",
                *(laggard.tombstones, laggard.replica, laggard.manifest, head.number),
            )
        scan.result = replace(scan.result, held_by=held_by)
        for candidates in scan.candidates.values():
            is_unapplied = candidates.newest_tombstone > applied
            candidates.needed |= (candidates.newest_tombstone == _NO_MANIFEST) | is_unapplied

    def _unmark_needed_and_remove_rest(
        self, marks_name: str, scan: _Scan, before_us: int, progress: Callable[[RaidedTombstones], None]
    ) -> RaidedTombstones:
        for kind, candidates in scan.candidates.items():
            for page in _paginate(candidates.ids[candidates.needed].tolist(), _TOMBSTONES_PER_WRITE):
                raise_if_stopped()
                kept = [TombstonedRecordId(kind=kind, id=record_id) for record_id in page]
                with self._resting(), effect("records.raid_keep"):
                    self._tombstones.unmark_raid_candidates(marks_name, kept)
        self._require_no_rebuild(self._records.read_state().now_us)
        result = scan.result
        while self._tombstones.list_raid_candidates(marks_name, after=None, limit=1):
            raise_if_stopped()
            with self._resting(), effect("records.raid_remove"):
                removed = self._tombstones.remove_raid_candidates(
                    marks_name, before_us=before_us, limit=_TOMBSTONES_PER_WRITE
                )
            result = replace(result, removed=result.removed + removed)
            progress(result)
        return replace(result, kept=result.candidates - result.removed)

    def _require_no_rebuild(self, now_us: int) -> None:
        for pin in self._log.list_pins(now_us=now_us):
            if pin.purpose == "rebuild":
                raise PreconditionFailed(
                    f"tombstones: expected no rebuild at work, found workflow rebuild-catalog/{pin.pin_id}"
                    f" that reads manifest {pin.manifest}. Let its command end or, if nobody goes on with it, end it:"
                    f" sexton records rebuild --abandon {pin.pin_id}"
                )


def raid_marks_name(run_id: str, attempt: int) -> str:
    return run_id if attempt == 1 else f"{run_id}-{attempt}"


def _paginate(ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _pair_ledger_with_deleted_keys(intent: DeletionIntent) -> Iterator[tuple[int, str]]:
    """Return each key that the deletion had to remove, paired with the ledger's id."""
    if damaged_property := intent.damage or find_missing_property(intent):
        raise CorruptData(
            f"ledger {intent.ledger_id}: expected a deletion that can be read, found damaged {damaged_property}"
        )
    keys = chain([meta_key(intent.ledger_id, intent.owner)], possible_segment_keys(intent))
    return ((intent.ledger_id, key) for key in keys)
