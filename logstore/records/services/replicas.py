"""Replicas of the record log: shipments to replica buckets, and followers of replica databases.

A shipment copies missing blocks and reads the copies back. Then the shipment stores the manifest, and acknowledges the
manifest in the source bucket. A replica that has not acknowledged for the eligible age is STALE, and raids do not
wait for it. The next shipment registers a STALE replica again, before the shipment chooses a manifest. A replica bucket
from which a catalog was rebuilt (a promoted replica) gets no more shipments.

A follower applies the record log to a replica database. All record versions after the last applied manifest are applied
in one transaction. Then the newest manifest is acknowledged in the source bucket. After a crash between these steps,
the next call acknowledges the manifest. Only the name of a replica database contains a slash.

The record log lacks tombstones that raids have removed. A replica that missed such a tombstone would keep the covered
record for ever. So the replica must be seeded in these cases:

- A raid has revoked the replica.
- The replica did not acknowledge for the eligible age.
- The source was rebuilt under another epoch.
- The replica has acknowledged a newer manifest than the database has applied.

Each seed has a name of its own, which the database stores with the applied manifest. So an acknowledgement of a failed
seed, or of a database with the same URL on another machine, is never taken for an acknowledgement of this database.

The order of reads ensures that no follower misses a tombstone:

- The newest manifest is read before the replica's acknowledgement. If a raid removed a tombstone that the replica lacks
  before this manifest was stored, the replica is found to be revoked.
- A seed registers the replica before it reads the record log.
- A replica bucket is followed only if raids wait for it. Otherwise raids may have removed tombstones that are newer
  than the bucket's manifest.

Source: Aerospike's XDR with `replicate_deletes`. A tombstone that is removed before every replica has seen it lets
deleted data return (scylladb#3560, scylladb#8970).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from logstore.errors import (
    AlreadyExists,
    CatalogMismatch,
    CorruptData,
    InvalidInput,
    MissingData,
    PreconditionFailed,
    StoreUnavailable,
)
from logstore.failpoints import effect
from logstore.ports.catalog.records import AppliedManifest, VersionReader
from logstore.ports.object_storage import OwnedStore
from logstore.records.job_results import FollowedRecords, ShippedBlocks
from logstore.records.manifest import Block, Manifest
from logstore.records.newest_versions import read_versions_by_id_range
from logstore.records.record_kinds import RecordKind
from logstore.records.services.bucket_upkeep import RecordsBucketSweeper
from logstore.records.services.record_log import NEVER_STALE_US, RecordLog
from logstore.records.tombstone_rules import (
    ReplicaAcknowledgement,
    ReplicaState,
    decide_replica_state,
    eligible_before_us,
    is_stale,
)
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.catalog.records.replica_database import ReplicaDatabase


_PIN_DURATION_S: Final = 24 * 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    replica: str  # `bucket`, or `bucket/word` for a database
    state: ReplicaState | None  # `None`: nothing was ever shipped to the replica
    manifest: int  # acknowledged manifest number; 0: none
    newest: int  # newest manifest number of the record log
    lag_s: float | None  # time from the acknowledged to the newest moment; `None`: that manifest was removed
    at_us: int | None  # last acknowledgement, by the store's clock


class ReplicaShipments:
    """Replica buckets of one record log. Thread-safe.

    A replica is STALE after `eligible_age_s` without an acknowledgement. `store_now_us` is the object stores' clock.
    """

    def __init__(
        self,
        source: OwnedStore,
        replicas: Mapping[str, OwnedStore],
        *,
        store_now_us: Callable[[], int],
        eligible_age_s: float,
    ) -> None:
        self._objects, self._replicas = source, replicas
        self._source = RecordLog(source)
        self._now_us, self._eligible_age_s = store_now_us, eligible_age_s

    @property
    def replica_names(self) -> tuple[str, ...]:
        return tuple(self._replicas)

    def list_replica_statuses(self) -> list[ReplicaStatus]:
        """Return the status of every configured, registered or acknowledging replica, ascending by name."""
        newest, now_us = self._source.read_newest_complete_manifest(), self._now_us()
        acknowledgement_by_name = {
            acknowledgement.replica_id: acknowledgement
            for acknowledgement in self._source.list_certain_acknowledgements()
        }
        number = newest.number if newest else 0
        statuses = []
        for name in sorted({*acknowledgement_by_name, *self._replicas}):
            acknowledgement = acknowledgement_by_name.get(name)
            status = ReplicaStatus(replica=name, state=None, manifest=0, newest=number, lag_s=None, at_us=None)
            if acknowledgement is not None:
                status = ReplicaStatus(
                    replica=name,
                    state=decide_replica_state(
                        acknowledgement, newest=number, now_us=now_us, eligible_age_s=self._eligible_age_s
                    ),
                    manifest=acknowledgement.manifest,
                    newest=number,
                    lag_s=self._lag_s(newest, acknowledgement.manifest),
                    at_us=None if acknowledgement.at_us == NEVER_STALE_US else acknowledgement.at_us,
                )
            statuses.append(status)
        return statuses

    def _lag_s(self, newest: Manifest | None, number: int) -> float | None:
        if newest is None or number >= newest.number:
            return 0.0
        manifest = self._source.read_manifest(number)
        return None if manifest is None else max(0, newest.flushed_us - manifest.flushed_us) / 1_000_000

    def ship_to_replica(self, replica: str) -> ShippedBlocks:
        """Copy the newest manifest and missing blocks to a replica bucket, and acknowledge the manifest.

        After a failure, a repeated call copies the remaining blocks.

        Raises:
            InvalidInput: No replica has this name.
            PreconditionFailed: The replica was promoted, or belongs to another record log.
            CatalogMismatch: The bucket belongs to another catalog.
            MissingData, CorruptData: A block of the record log cannot be copied.
        """
        if replica not in self._replicas:
            names = ", ".join(self._replicas) or "no replica"
            raise InvalidInput("replica", expected=f"one of those in replica_buckets: {names}", found=replica)
        acknowledgements = [
            other for other in self._source.list_lowest_acknowledgements() if other.replica_id == replica
        ]
        acknowledged_number: int = max((acknowledgement.manifest for acknowledgement in acknowledgements), default=0)
        target_newest = RecordLog(self._replicas[replica]).read_certain_newest_manifest(acknowledged_number)
        target_number = target_newest.number if target_newest else acknowledged_number
        newest = (
            self._source.read_newest_complete_manifest(target_number) or self._source.read_newest_complete_manifest()
        )
        if newest is None:
            return ShippedBlocks(replica=replica)
        _refuse_diverged_replica(replica, target_newest, newest)
        # This also registers a replica that is new, or that no listing shows.
        if all(map(self._is_stale, acknowledgements)) or self._source.is_revoked(replica):
            self._source.register_replica(replica, self._now_us())
        pin_id, until_us = f"replicate-{replica}", self._now_us() + _PIN_DURATION_S * 1_000_000
        manifest = self._source.pin_newest_complete_manifest(pin_id, until_us, "replicate", from_number=newest.number)
        if manifest is None:
            return ShippedBlocks(replica=replica)
        try:
            result = self._ship_manifest_and_sweep(replica, manifest, after=target_number)
        finally:
            self._source.unpin(pin_id)
        self._source.acknowledge_manifest(replica, manifest.number, manifest.epoch, self._now_us())
        return result

    def _is_stale(self, acknowledgement: ReplicaAcknowledgement) -> bool:
        return is_stale(acknowledgement, now_us=self._now_us(), eligible_age_s=self._eligible_age_s)

    def _ship_manifest_and_sweep(self, replica: str, manifest: Manifest, *, after: int) -> ShippedBlocks:
        store = self._replicas[replica]
        target = RecordLog(store)
        target.require_ownership_once()  # claims a new bucket for the catalog
        target.require_ownership_now()
        target_newest = target.read_newest_manifest(after)
        _refuse_diverged_replica(replica, target_newest, manifest)
        shipped_ids = {block.block_id for block in target_newest.blocks} if target_newest else set[str]()
        missing = [block for block in manifest.blocks if block.block_id not in shipped_ids]
        for block in missing:
            raise_if_stopped()
            self._copy_and_verify_block(block, store, target)
        if target_newest is None or target_newest.number < manifest.number:
            try:
                target.put_manifest(manifest)
            except AlreadyExists:
                _refuse_diverged_replica(replica, target.read_manifest(manifest.number), manifest)
            RecordsBucketSweeper(store, target).remove_old_manifests_and_blocks(self._now_us())
        return ShippedBlocks(
            replica=replica,
            manifest=manifest.number,
            blocks=len(missing),
            bytes=sum(block.size_bytes for block in missing),
            records=sum(block.records for block in missing),
            tombstones=sum(block.tombstones for block in missing),
        )

    def _copy_and_verify_block(self, block: Block, store: OwnedStore, target: RecordLog) -> None:
        stored = self._objects.get(block.key)
        if stored is None:
            raise MissingData(f"{block.key}: the newest manifest names it, and the record log has no such object")
        try:
            with effect("records.ship_block"):
                store.put_if_absent(block.key, stored.body, metadata=stored.metadata)
        except AlreadyExists:
            pass  # an earlier attempt may have copied the block; its content is checked below
        try:
            target.read_block(block, columns=["id"])
        except CorruptData as error:
            raise CorruptData(f"{error}; delete it in the replica's bucket, and ship again") from error


def _refuse_diverged_replica(replica: str, target_newest: Manifest | None, own: Manifest) -> None:
    if target_newest is None:
        return
    if target_newest.catalog_id != own.catalog_id:
        found = f"one of catalog {target_newest.catalog_id}"
    elif target_newest.epoch > own.epoch:
        found = f"one of epoch {target_newest.epoch}: the replica was promoted"
    elif target_newest.number > own.number or (target_newest.number == own.number and target_newest.stamp != own.stamp):
        found = f"manifest {target_newest.number} with the stamp {target_newest.stamp}"
    else:
        return
    raise PreconditionFailed(
        f"replica {replica}: expected a manifest of catalog {own.catalog_id}, at most number {own.number} of epoch"
        f" {own.epoch}, found {found}; take it out of replica_buckets, or name a new bucket for it there"
    )


VERSIONS_IN_MEMORY: Final = 100_000
"""Approximate number of record versions in memory at once."""

_SEED_PIN_US: Final = 24 * 3_600 * 1_000_000
_ACKNOWLEDGE_INTERVAL_S: Final = 60.0
"""Interval of acknowledgements while there is no new manifest. A tenth of the eligible age is used if it is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFollowSettings:
    replica: str  # prefix of the replica's names: `bucket/random word`
    bucket: str  # followed bucket: the source bucket or a replica bucket
    follows_replica_bucket: bool
    eligible_age_s: float  # time without acknowledgement after which the replica is STALE


class ReplicaFollower:
    """Follower of one replica database. Several processes may write to one replica database at once.

    The replica acknowledges in the record log `source`, and applies the record log `followed`.
    """

    def __init__(
        self,
        follow: ReplicaFollowSettings,
        *,
        source: RecordLog,
        followed: RecordLog,
        database: "ReplicaDatabase",
        store_now_us: Callable[[], int],
    ) -> None:
        self._follow, self._source, self._followed = follow, source, followed
        self._database, self._now_us = database, store_now_us

    def apply_new_manifests(self, *, seed: bool = False, proceed: Callable[[], None] = lambda: None) -> FollowedRecords:
        """Apply new manifests. Seed the database if it is empty, or if `seed` is true.

        Idempotency: without a new manifest only an acknowledgement is written, at intervals.

        `proceed` is called before each read of a block. If `proceed` raises, the transaction is rolled back.

        Raises:
            PreconditionFailed: The replica must be seeded, or the followed bucket needs a shipment. Nothing changed.
            CatalogMismatch: The database or the bucket belongs to another catalog.
            MissingData, CorruptData, Unsupported: A block is unreadable. Nothing was changed.
            CatalogBusy, OutcomeUnknown, StoreUnavailable: The call may be repeated.
        """
        applied = self._database.read_applied_manifest()
        if seed or applied is None:
            return self._seed(applied, proceed)
        newest = self._followed.read_newest_complete_manifest(applied.manifest)
        if newest is None:
            raise PreconditionFailed(
                f"replica {self._follow.replica}: expected manifest {applied.manifest} or a newer one in bucket"
                f" {self._follow.bucket}, found none; check that this is the bucket, and what its store answers"
            )
        acknowledgement = self._require_no_missed_tombstones(applied, newest)
        if applied.manifest == newest.number:
            return self._acknowledge_if_due(applied, acknowledgement)
        return self._acknowledge(
            self._apply_newer_versions(newest, applied, applied.replica, proceed, base=applied), newest
        )

    def _seed(self, applied: AppliedManifest | None, proceed: Callable[[], None]) -> FollowedRecords:
        now_us, name = self._now_us(), f"{self._follow.replica}-{uuid4().hex[:8]}"
        if self._followed.read_newest_manifest() is None:
            return FollowedRecords(replica=name)
        self._source.register_replica(name, now_us)
        self._forget_seeds(except_for={name, applied.replica if applied else name})
        shipped = self._acknowledgements().get(self._follow.bucket) if self._follow.follows_replica_bucket else None
        known = self._followed.read_certain_newest_manifest()
        after = max(known.number if known else 0, shipped.manifest if shipped else 0)
        newest = self._followed.pin_newest_complete_manifest(name, now_us + _SEED_PIN_US, "follow", from_number=after)
        if newest is None:
            raise StoreUnavailable(f"{self._follow.bucket}: a manifest was there, and is not any more")
        try:
            self._require_same_catalog(applied, newest)
            self._require_raids_await_bucket(self._acknowledgements())
            result = self._apply_newer_versions(newest, applied, name, proceed, base=None)
        finally:
            self._followed.unpin(name)
        if not self._source.is_registered(name):
            raise self._refusal("no other seed of it at the same time", f"that one has taken the place of {name}")
        if applied and applied.replica:
            self._source.forget_replica(applied.replica)
        return self._acknowledge(result, newest)

    def _forget_seeds(self, *, except_for: Collection[str]) -> None:
        """Forget the replica's revoked names and the names of its failed seeds. Raids would wait for failed seeds.

        The name of a running seed may be forgotten too. The running seed notices this at its end.
        """
        for acknowledgement in self._source.list_certain_acknowledgements():
            is_dead = acknowledgement.is_revoked or not acknowledgement.manifest
            if is_dead and self._has_name(acknowledgement.replica_id) and acknowledgement.replica_id not in except_for:
                self._source.forget_replica(acknowledgement.replica_id)

    def _has_name(self, name: str) -> bool:
        return name.rpartition("-")[0] == self._follow.replica

    def _apply_newer_versions(
        self,
        newest: Manifest,
        applied: AppliedManifest | None,
        name: str,
        proceed: Callable[[], None],
        *,
        base: AppliedManifest | None,
    ) -> FollowedRecords:
        """Apply the record versions that are newer than `base`. Without `base`, seed the database."""
        base_manifest = self._followed.read_manifest(base.manifest) if base else None
        known_blocks = set(base_manifest.blocks) if base_manifest else set[Block]()
        blocks = [block for block in newest.blocks if block not in known_blocks]
        versions = self._version_reader(blocks, base.manifest if base else 0, proceed)
        return self._database.apply_versions(newest, versions, expected=applied, replica=name, seed=base is None)

    def _acknowledge(self, result: FollowedRecords, newest: Manifest) -> FollowedRecords:
        self._source.acknowledge_manifest(result.replica, newest.number, newest.epoch, self._now_us())
        return result

    def _acknowledge_if_due(self, applied: AppliedManifest, acknowledgement: ReplicaAcknowledgement) -> FollowedRecords:
        interval_s = min(_ACKNOWLEDGE_INTERVAL_S, self._follow.eligible_age_s / 10)
        now_us = self._now_us()
        is_late = acknowledgement.at_us < eligible_before_us(now_us, interval_s)
        if acknowledgement.manifest < applied.manifest or is_late:
            self._source.acknowledge_manifest(applied.replica, applied.manifest, applied.epoch, now_us)
        return FollowedRecords(replica=applied.replica, manifest=applied.manifest)

    def _version_reader(self, blocks: list[Block], after: int, proceed: Callable[[], None]) -> VersionReader:
        def read_newer(block: Block, ids: tuple[int, int]) -> "pa.Table":
            import pyarrow.compute as pc  # noqa: PLC0415 - start-up time

            raise_if_stopped()
            proceed()
            versions = self._followed.read_block(block, ids=ids)
            return versions.filter(pc.greater(versions.column("version"), after))

        def read_kind(kind: RecordKind) -> "Iterator[pa.Table]":
            return read_versions_by_id_range(
                [block for block in blocks if block.kind is kind], read_newer, versions_per_range=VERSIONS_IN_MEMORY
            )

        return read_kind

    def _acknowledgements(self) -> dict[str, ReplicaAcknowledgement]:
        return {
            acknowledgement.replica_id: acknowledgement
            for acknowledgement in self._source.list_lowest_acknowledgements()
        }

    def _require_raids_await_bucket(self, acknowledgement_by_replica: dict[str, ReplicaAcknowledgement]) -> None:
        """Refuse a followed replica bucket if raids do not wait for this bucket."""
        acknowledgement = acknowledgement_by_replica.get(self._follow.bucket)
        if self._follow.follows_replica_bucket and (
            acknowledgement is None
            or not acknowledgement.manifest
            or self._is_stale(acknowledgement)
            or self._source.is_revoked(self._follow.bucket)
        ):
            raise PreconditionFailed(
                f"bucket {self._follow.bucket}: expected one that was shipped to within {self._follow.eligible_age_s:g}"
                " s, found one that is NEW or STALE: tombstones that it lacks may be gone; run `sexton records"
                " replicate` first"
            )

    def _require_same_catalog(self, applied: AppliedManifest | None, newest: Manifest) -> None:
        if applied is not None and newest.catalog_id != applied.catalog_id:
            raise CatalogMismatch(
                newest.key,
                expected=f"catalog {applied.catalog_id}",
                found=f"catalog {newest.catalog_id}",
                advice="follow the record log of that catalog, or use an empty database",
            )

    def _require_no_missed_tombstones(self, applied: AppliedManifest, newest: Manifest) -> ReplicaAcknowledgement:
        """Return the replica's acknowledgement. Refuse if the replica may lack tombstones that raids have removed."""
        self._require_same_log(applied, newest)
        acknowledgement = self._find_acknowledgement(applied.replica)
        if acknowledgement is None or not self._has_name(applied.replica):
            raise self._refusal("its acknowledgement in the bucket of the source", f"none of {applied.replica!r}")
        if acknowledgement.manifest > applied.manifest:
            raise self._refusal(
                f"a database with manifest {acknowledgement.manifest}, which it has acknowledged", f"{applied.manifest}"
            )
        if self._is_stale(acknowledgement):
            reason = "a raid went on without it" if acknowledgement.is_revoked else "it was silent"
            raise self._refusal(
                f"one that was heard of within {self._follow.eligible_age_s:g} s",
                f"one that is STALE: {reason}, and tombstones that it never saw may be gone",
            )
        return acknowledgement

    def _find_acknowledgement(self, replica_id: str) -> ReplicaAcknowledgement | None:
        """Return the acknowledgement of a replica. If it is absent or STALE, list again: a listing may hide objects."""
        acknowledgement = self._acknowledgements().get(replica_id)
        if acknowledgement is None or self._is_stale(acknowledgement):
            acknowledgement = self._acknowledgements().get(replica_id)
        if acknowledgement is None:
            if self._source.is_registered(replica_id):
                raise StoreUnavailable(
                    f"replica {replica_id}: it is registered, and no listing shows what it has acknowledged; nothing is"
                    " decided by such a listing"
                )
            return None
        is_revoked = acknowledgement.is_revoked or self._source.is_revoked(replica_id)
        return replace(acknowledgement, is_revoked=is_revoked)

    def _require_same_log(self, applied: AppliedManifest, newest: Manifest) -> None:
        self._require_same_catalog(applied, newest)
        if newest.epoch != applied.epoch:
            raise self._refusal(f"catalog epoch {applied.epoch}", f"{newest.epoch}: the source was rebuilt")
        base = newest if newest.number <= applied.manifest else self._followed.read_manifest(applied.manifest)
        if base and (base.number, base.stamp) != (applied.manifest, applied.stamp):
            raise self._refusal(
                f"manifest {applied.manifest} with the stamp {applied.stamp} or a newer one",
                f"{base.number} with the stamp {base.stamp}",
            )

    def _refusal(self, expected: str, found: str) -> PreconditionFailed:
        replica = self._follow.replica
        return PreconditionFailed(f"replica {replica}: expected {expected}, found {found}; seed it again with --seed")

    def _is_stale(self, acknowledgement: ReplicaAcknowledgement) -> bool:
        return is_stale(acknowledgement, now_us=self._now_us(), eligible_age_s=self._follow.eligible_age_s)
