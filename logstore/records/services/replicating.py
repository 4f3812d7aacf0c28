"""Replicas of the record log: other buckets that have its blocks and manifests, so that a catalog can be rebuilt there.

A replica is sent whole manifests. It gets the blocks that it lacks, they are read back and compared, and only then it
gets the manifest that names them. So whatever a plain delete took out of the newest manifest is not there either, and a
durable delete comes as the tombstone that the blocks hold. What it has is acknowledged in the bucket of the record log:
the tomb raider waits for that, until the replica has been silent for the eligible age. A replica that is STALE is
seeded by the next shipment, which is as whole as every other: it is registered anew before the manifest is chosen.

A database that follows the record log acknowledges there as well (`following`); a bucket's name has no slash, and its
name has one.

A replica that was promoted goes on under a catalog epoch of its own, and is never written to again from here.

Source: Aerospike's XDR; `replicate_deletes`, which here is always so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from logstore.errors import AlreadyExists, CorruptData, InvalidInput, MissingData, PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.objects import OwnedStore
from logstore.records.jobs import ShippedBlocks
from logstore.records.manifest import Block, Manifest
from logstore.records.services.record_log import NEVER_STALE_US, RecordLog
from logstore.records.services.sweeping import Sweeper
from logstore.records.tombstones import Acknowledgement, ReplicaState, replica_state
from logstore.units import raise_if_stopped

_PIN_S: Final = 24 * 3_600  # of the manifest that is shipped, in the record log


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """How a replica stands to the record log."""

    replica: str  # its bucket; or, of a database, the bucket that it follows, a slash and words of its own
    state: ReplicaState | None  # None: nothing was ever shipped to it
    manifest: int  # that it has; 0: none
    newest: int  # of the record log
    lag_s: float | None  # age of the oldest flush that it lacks; None: older than the manifests that are kept
    at_us: int | None  # when it acknowledged last, by the store's clock


class Replication:
    """The replicas of one catalog's record log. Threads share one."""

    def __init__(
        self,
        source: OwnedStore,
        replicas: Mapping[str, OwnedStore],
        *,
        store_now_us: Callable[[], int],
        eligible_age_s: float,
    ) -> None:
        """Take the bucket of the record log, those of its replicas by name, their clock, and when one is STALE."""
        self._objects, self._replicas = source, replicas
        self._source = RecordLog(source)
        self._now_us, self._eligible_age_s = store_now_us, eligible_age_s

    @property
    def names(self) -> tuple[str, ...]:
        """Buckets of replicas, as the settings name them."""
        return tuple(self._replicas)

    def standings(self) -> list[Replica]:
        """Every replica that is named or registered, or that has acknowledged anything, ascending by name."""
        newest, now_us = self._source.newest_moment(), self._now_us()
        told = {word.replica_id: word for word in self._source.certain_replicas()}
        number = newest.number if newest else 0
        found = []
        for name in sorted({*told, *self._replicas}):
            word = told.get(name)
            if word is None:
                found.append(
                    Replica(replica=name, state=None, manifest=0, newest=number, lag_s=None, at_us=None),
                )
                continue
            state = replica_state(word, newest=number, now_us=now_us, eligible_age_s=self._eligible_age_s)
            lag_s = self._lag_s(newest, word.manifest)
            at_us = None if word.at_us == NEVER_STALE_US else word.at_us
            found.append(
                Replica(replica=name, state=state, manifest=word.manifest, newest=number, lag_s=lag_s, at_us=at_us)
            )
        return found

    def _lag_s(self, newest: Manifest | None, number: int) -> float | None:
        if newest is None or number >= newest.number:
            return 0.0
        has = self._source.manifest(number)
        return None if has is None else max(0, newest.flushed_us - has.flushed_us) / 1_000_000

    def ship(self, replica: str) -> ShippedBlocks:
        """Bring a replica to the newest manifest; repeating it copies what is still lacking, and acknowledges again.

        Raises:
            InvalidInput: No replica of this name is known.
            PreconditionFailed: It was promoted, or is another record log's.
            CatalogMismatch: The bucket is another catalog's.
            MissingData, CorruptData: A block of the record log cannot be copied.
            StoreUnavailable: The store did not answer.
        """
        if replica not in self._replicas:
            known = ", ".join(self._replicas) or "no replica"
            raise InvalidInput("replica", expected=f"one of those in replica_buckets: {known}", found=replica)
        words = [word for word in self._source.replicas() if word.replica_id == replica]
        shipped: int = max((word.manifest for word in words), default=0)
        there = RecordLog(self._replicas[replica]).certain_newest(shipped)
        last = there.number if there else shipped
        newest = self._source.newest_moment(last) or self._source.newest_moment()
        if newest is None:
            return ShippedBlocks(replica=replica)
        _refuse_promoted(replica, there, newest)
        if all(map(self._is_stale, words)) or self._source.is_revoked(replica):  # or it is new, or no listing shows it
            self._source.register(replica, self._now_us())
        pin_id, until_us = f"replicate-{replica}", self._now_us() + _PIN_S * 1_000_000
        manifest = self._source.pin_newest(pin_id, until_us, "replicate", after=newest.number)
        if manifest is None:
            return ShippedBlocks(replica=replica)
        try:
            done = self._shipped(replica, manifest, after=last)
        finally:
            self._source.unpin(pin_id)
        self._source.acknowledge(replica, manifest.number, manifest.epoch, self._now_us())
        return done

    def _is_stale(self, word: Acknowledgement) -> bool:
        state = replica_state(word, newest=0, now_us=self._now_us(), eligible_age_s=self._eligible_age_s)
        return state is ReplicaState.STALE

    def _shipped(self, replica: str, manifest: Manifest, *, after: int) -> ShippedBlocks:
        store = self._replicas[replica]
        target = RecordLog(store)
        target.require()  # a bucket that is new becomes the catalog's
        target.confirm()
        there = target.newest(after)
        _refuse_promoted(replica, there, manifest)
        has = {block.block_id for block in there.blocks} if there else set[str]()
        lacking = [block for block in manifest.blocks if block.block_id not in has]
        for block in lacking:
            raise_if_stopped()
            self._copy(block, store, target)
        if there is None or there.number < manifest.number:
            _put(replica, target, manifest)
            Sweeper(store, target).sweep(self._now_us())
        return ShippedBlocks(
            replica=replica,
            manifest=manifest.number,
            blocks=len(lacking),
            bytes=sum(block.size_bytes for block in lacking),
            records=sum(block.records for block in lacking),
            tombstones=sum(block.tombstones for block in lacking),
        )

    def _copy(self, block: Block, store: OwnedStore, target: RecordLog) -> None:
        """Copy one block, and read it back; one that an earlier attempt has copied is only read."""
        found = self._objects.get(block.key)
        if found is None:
            raise MissingData(f"{block.key}: the newest manifest names it, and the record log has no such object")
        try:
            with effect("records.ship_block"):
                store.put_if_absent(block.key, found.body, metadata=found.metadata)
        except AlreadyExists:
            pass  # what it holds is seen by the next line
        try:
            target.read_block(block, columns=["id"])
        except CorruptData as error:
            raise CorruptData(f"{error}; delete it in the replica's bucket, and ship again") from error


def _refuse_promoted(replica: str, there: Manifest | None, ours: Manifest) -> None:
    """Raises PreconditionFailed where the replica's newest manifest is none that this record log has shipped."""
    if there is None:
        return
    same = there.stamp == ours.stamp
    if there.catalog_id != ours.catalog_id:
        found = f"one of catalog {there.catalog_id}"
    elif there.epoch > ours.epoch:
        found = f"one of epoch {there.epoch}: the replica was promoted"
    elif there.number > ours.number or (there.number == ours.number and not same):
        found = f"manifest {there.number} with the stamp {there.stamp}"
    else:
        return
    raise PreconditionFailed(
        f"replica {replica}: expected a manifest of catalog {ours.catalog_id}, at most number {ours.number} of epoch"
        f" {ours.epoch}, found {found}; take it out of replica_buckets, or name a new bucket for it there"
    )


def _put(replica: str, target: RecordLog, manifest: Manifest) -> None:
    try:
        target.put_manifest(manifest)
    except AlreadyExists:
        _refuse_promoted(replica, target.manifest(manifest.number), manifest)
