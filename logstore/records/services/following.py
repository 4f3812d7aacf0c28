"""A replica that serves reads: a database of its own, to which the record log is applied manifest by manifest.

One step takes the newest manifest of a bucket and applies the versions behind the manifest that the database has, in
one transaction with the number of the new one; then it is acknowledged in the bucket of the source. A process that dies
between the two acknowledges with the next step. Blocks that the last manifest named too are not read again.

What raids have removed is not in the record log any more. So a replica is refused once a raid did not wait for it:
tombstones that it never saw may be gone, and what they covered would stay here for ever. It is refused too when it was
silent for the eligible age, when the source was rebuilt under another epoch, and when its database is older than what
it has acknowledged. Then it is seeded: it registers, and applies a whole manifest to a database that is emptied first.

Each seed registers under a name of its own, which stands in the database with what it applied. So neither the
acknowledgement of a seed that died, nor that of a database of the same URL on another machine, says anything of what
this database holds.

The order of looks is what makes this safe. The newest manifest is read first, and the replica's own standing after
that: had a raid removed a tombstone before the manifest was read, the replica would be revoked by then. For a seed, the
replica registers first; and a bucket that is a replica itself must be waited for as well, or its manifest may be older
than tombstones that are gone.

Source: Aerospike's XDR; scylladb#3560 and #8970 (field case 105), and data that returns from a node that was away.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from logstore.errors import CatalogMismatch, PreconditionFailed, StoreUnavailable
from logstore.ports.catalog.records import Applied, ReplicaDatabase, Versions
from logstore.records.jobs import FollowedRecords
from logstore.records.kinds import RecordKind
from logstore.records.manifest import Block, Manifest
from logstore.records.services.record_log import RecordLog
from logstore.records.tombstones import Acknowledgement, ReplicaState, eligible_before, replica_state
from logstore.records.winners import by_range
from logstore.units import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa

RANGE_VERSIONS: Final = 100_000
"""About how many versions are in memory at once."""

_PIN_US: Final = 24 * 3_600 * 1_000_000  # of a manifest from which a replica is seeded
_SIGN_S: Final = 60.0
"""A replica without news says so often that it lives, or ten times within the eligible age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Which replica follows what."""

    replica: str  # how its name begins: the bucket, a slash, and a random name of its database
    bucket: str  # whose manifests it follows: the source's own, or one that is shipped to
    copied: bool  # whether it is one that is shipped to
    eligible_age_s: float  # silent for longer, it is STALE


class Follower:
    """One replica. Several processes may have it: a step that another one has done is begun anew."""

    def __init__(
        self,
        follow: Follow,
        *,
        source: RecordLog,
        followed: RecordLog,
        database: ReplicaDatabase,
        store_now_us: Callable[[], int],
    ) -> None:
        """Take the bucket where it acknowledges, the one that it follows, its database, and the store's clock."""
        self._follow, self._source, self._followed = follow, source, followed
        self._database, self._now_us = database, store_now_us

    def step(self, *, seed: bool = False, proceed: Callable[[], None] = lambda: None) -> FollowedRecords:
        """Apply what is new; an empty database is seeded, and another one if that is asked for.

        Idempotency: with nothing new nothing is written but, from time to time, that the replica lives.

        Args:
            seed: Empty the database, and apply all.
            proceed: Called often; what it raises undoes the step.

        Raises:
            PreconditionFailed: The replica must be seeded, or the bucket brought up to date; nothing was changed.
            CatalogMismatch: The database, or the bucket, is another catalog's.
            MissingData, CorruptData, Unsupported: A block cannot be read; nothing was changed.
            CatalogBusy, OutcomeUnknown, StoreUnavailable: Repeating is fine.
        """
        seen = self._database.applied()
        if seed or seen is None:
            return self._seeded(seen, proceed)
        newest = self._followed.newest_moment(seen.manifest)
        if newest is None:
            raise PreconditionFailed(
                f"replica {self._follow.replica}: expected manifest {seen.manifest} or a newer one in bucket"
                f" {self._follow.bucket}, found none; check that this is the bucket, and what its store answers"
            )
        acknowledged = self._own_acknowledgement(seen, newest)
        if seen.manifest == newest.number:
            return self._unchanged(seen, acknowledged)
        return self._told(self._applied(newest, seen, seen.replica, proceed, after=seen), newest)

    def _seeded(self, seen: Applied | None, proceed: Callable[[], None]) -> FollowedRecords:
        """Apply a whole manifest, whose blocks are held meanwhile."""
        now_us, name = self._now_us(), f"{self._follow.replica}-{uuid4().hex[:8]}"
        if self._followed.newest() is None:
            return FollowedRecords(replica=name)
        self._source.register(name, now_us)
        self._forget_seeds(but={name, seen.replica if seen else name})
        copied = self._acknowledgements().get(self._follow.bucket) if self._follow.copied else None
        known = self._followed.certain_newest()
        after = max(known.number if known else 0, copied.manifest if copied else 0)
        newest = self._followed.pin_newest(name, now_us + _PIN_US, "follow", after=after)
        if newest is None:
            raise StoreUnavailable(f"{self._follow.bucket}: a manifest was there, and is not any more")
        try:
            self._require_same_catalog(seen, newest)
            self._require_fresh_bucket(self._acknowledgements())
            done = self._applied(newest, seen, name, proceed, after=None)
        finally:
            self._followed.unpin(name)
        if not self._source.is_registered(name):
            raise self._refusal("no other seed of it at the same time", f"that one has taken the place of {name}")
        if seen and seen.replica:
            self._source.forget_replica(seen.replica)
        return self._told(done, newest)

    def _forget_seeds(self, *, but: Collection[str]) -> None:
        """Forget seeds that died, for which raids would wait, and names that count no more.

        Names that stand in the register alone are among them. A seed that lives sees it at its end.
        """
        for word in self._source.certain_replicas():
            if self._is_mine(word.replica_id) and (word.revoked or not word.manifest) and word.replica_id not in but:
                self._source.forget_replica(word.replica_id)

    def _is_mine(self, name: str) -> bool:
        return name.rpartition("-")[0] == self._follow.replica

    def _applied(
        self, newest: Manifest, seen: Applied | None, name: str, proceed: Callable[[], None], *, after: Applied | None
    ) -> FollowedRecords:
        """Apply the versions that are newer than `after`; all of them where that is None."""
        known = self._followed.manifest(after.manifest) if after else None
        passed_over = set(known.blocks) if known else set[Block]()
        blocks = [one for one in newest.blocks if one not in passed_over]
        versions = self._versions(blocks, after.manifest if after else 0, proceed)
        done = self._database.apply(newest, versions, seen=seen, replica=name, seed=after is None)
        return FollowedRecords(
            replica=name,
            manifest=newest.number,
            steps=1,
            seeded=int(after is None),
            records=done.records,
            tombstones=done.tombstones,
            removed=done.removed,
        )

    def _told(self, done: FollowedRecords, newest: Manifest) -> FollowedRecords:
        self._source.acknowledge(done.replica, newest.number, newest.epoch, self._now_us())
        return done

    def _unchanged(self, seen: Applied, acknowledged: Acknowledgement) -> FollowedRecords:
        sign_s = min(_SIGN_S, self._follow.eligible_age_s / 10)
        now_us = self._now_us()
        if acknowledged.manifest < seen.manifest or acknowledged.at_us < eligible_before(now_us, sign_s):
            self._source.acknowledge(seen.replica, seen.manifest, seen.epoch, now_us)
        return FollowedRecords(replica=seen.replica, manifest=seen.manifest)

    def _versions(self, blocks: list[Block], after: int, proceed: Callable[[], None]) -> Versions:
        def read(block: Block, ids: tuple[int, int]) -> "pa.Table":
            import pyarrow.compute as pc  # noqa: PLC0415 - start-up time

            raise_if_stopped()
            proceed()
            found = self._followed.read_block(block, ids=ids)
            return found.filter(pc.greater(found.column("version"), after))

        def of(kind: RecordKind) -> "Iterator[pa.Table]":
            return by_range([one for one in blocks if one.kind is kind], read, versions=RANGE_VERSIONS)

        return of

    def _acknowledgements(self) -> dict[str, Acknowledgement]:
        return {one.replica_id: one for one in self._source.replicas()}

    def _require_fresh_bucket(self, replicas: dict[str, Acknowledgement]) -> None:
        """A bucket that is shipped to must be waited for by raids, up to a manifest that it has."""
        acknowledged = replicas.get(self._follow.bucket)
        if self._follow.copied and (
            acknowledged is None
            or not acknowledged.manifest
            or self._is_stale(acknowledged)
            or self._source.is_revoked(self._follow.bucket)
        ):
            raise PreconditionFailed(
                f"bucket {self._follow.bucket}: expected one that was shipped to within {self._follow.eligible_age_s:g}"
                " s, found one that is NEW or STALE: tombstones that it lacks may be gone; run `sexton records"
                " replicate` first"
            )

    def _require_same_catalog(self, seen: Applied | None, newest: Manifest) -> None:
        if seen is not None and newest.catalog_id != seen.catalog_id:
            raise CatalogMismatch(
                newest.key,
                expected=f"catalog {seen.catalog_id}",
                found=f"catalog {newest.catalog_id}",
                advice="follow the record log of that catalog, or use an empty database",
            )

    def _own_acknowledgement(self, seen: Applied, newest: Manifest) -> Acknowledgement:
        """What it has acknowledged; refuses a step after which a record that ended durably might stay."""
        self._require_follows(seen, newest)
        acknowledged = self._find_acknowledgement(seen.replica)
        if acknowledged is None or not self._is_mine(seen.replica):
            raise self._refusal("its acknowledgement in the bucket of the source", f"none of {seen.replica!r}")
        if acknowledged.manifest > seen.manifest:
            raise self._refusal(
                f"a database with manifest {acknowledged.manifest}, which it has acknowledged", f"{seen.manifest}"
            )
        if self._is_stale(acknowledged):
            why = "a raid went on without it" if acknowledged.revoked else "it was silent"
            raise self._refusal(
                f"one that was heard of within {self._follow.eligible_age_s:g} s",
                f"one that is STALE: {why}, and tombstones that it never saw may be gone",
            )
        return acknowledged

    def _find_acknowledgement(self, replica_id: str) -> Acknowledgement | None:
        """Return what a replica has acknowledged: by a second listing, too, where the first one would refuse it.

        A revocation is asked for by name: a listing that hides it would let this replica go on for ever without
        tombstones that a raid has removed.

        Raises:
            StoreUnavailable: Neither listing shows a replica that is registered.
        """
        acknowledged = self._acknowledgements().get(replica_id)
        if acknowledged is None or self._is_stale(acknowledged):
            acknowledged = self._acknowledgements().get(replica_id)
        if acknowledged is None:
            if self._source.is_registered(replica_id):
                raise StoreUnavailable(
                    f"replica {replica_id}: it is registered, and no listing shows what it has acknowledged; nothing is"
                    " decided by such a listing"
                )
            return None
        return replace(acknowledged, revoked=acknowledged.revoked or self._source.is_revoked(replica_id))

    def _require_follows(self, seen: Applied, newest: Manifest) -> None:
        """See that the newest manifest comes behind the one that was applied, or is that one."""
        self._require_same_catalog(seen, newest)
        if newest.epoch != seen.epoch:
            raise self._refusal(f"catalog epoch {seen.epoch}", f"{newest.epoch}: the source was rebuilt")
        known = newest if newest.number <= seen.manifest else self._followed.manifest(seen.manifest)
        if known and (known.number, known.stamp) != (seen.manifest, seen.stamp):
            raise self._refusal(
                f"manifest {seen.manifest} with the stamp {seen.stamp} or a newer one",
                f"{known.number} with the stamp {known.stamp}",
            )

    def _refusal(self, expected: str, found: str) -> PreconditionFailed:
        replica = self._follow.replica
        return PreconditionFailed(f"replica {replica}: expected {expected}, found {found}; seed it again with --seed")

    def _is_stale(self, acknowledged: Acknowledgement) -> bool:
        state = replica_state(acknowledged, newest=0, now_us=self._now_us(), eligible_age_s=self._follow.eligible_age_s)
        return state is ReplicaState.STALE
