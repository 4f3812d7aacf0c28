"""Shipments of blocks and manifests to replica buckets.

A shipment copies missing blocks and reads the copies back. Then the shipment stores the manifest, and acknowledges the
manifest in the source bucket. A replica that has not acknowledged for the eligible age is STALE, and raids do not
wait for it. The next shipment registers a STALE replica again, before the shipment chooses a manifest.

Replica databases acknowledge in the source bucket too. Only the name of a replica database contains a slash.

A replica bucket from which a catalog was rebuilt (a promoted replica) gets no more shipments.

Source: Aerospike's XDR with `replicate_deletes`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from logstore.errors import AlreadyExists, CorruptData, InvalidInput, MissingData, PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.object_storage import OwnedStore
from logstore.records.job_results import ShippedBlocks
from logstore.records.manifest import Block, Manifest
from logstore.records.services.record_log import NEVER_STALE_US, RecordLog
from logstore.records.services.records_bucket_sweeper import RecordsBucketSweeper
from logstore.records.tombstone_rules import ReplicaAcknowledgement, ReplicaState, decide_replica_state
from logstore.stop_checks import raise_if_stopped

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
        state = decide_replica_state(
            acknowledgement, newest=0, now_us=self._now_us(), eligible_age_s=self._eligible_age_s
        )
        return state is ReplicaState.STALE

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
