"""Replicas of the record log: shipped to as a whole, acknowledged, away for a while, and promoted."""

from dataclasses import replace

import pytest

from logstore.errors import CorruptData, InvalidInput, MissingData, PreconditionFailed, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.records.job_results import ShippedBlocks
from logstore.records.manifest import MANIFEST_PREFIX, Block, IdCeilings, Manifest, manifest_key
from logstore.records.newest_versions import select_newest_versions
from logstore.records.record_kinds import RecordKind
from logstore.records.services.record_log import REPLICA_PREFIX, RecordLog
from logstore.records.services.replicas import ReplicaShipments
from logstore.records.tombstone_rules import ReplicaState, decide_replica_state, newest_manifest_applied_everywhere
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.records.versions import table, version

_AGE_S = 1_000.0
_S = 1_000_000
_FAR = "far"


class Pair:
    """A record log, and one replica of it, by one clock."""

    def __init__(self) -> None:
        self.near, self.far = FakeObjectStore(), FakeObjectStore()
        self.now_us = self.near.now_us
        self.log, self.replica = RecordLog(self.near), RecordLog(self.far)
        self.number = 0

    def __getitem__(self, replica: str) -> FakeObjectStore:
        assert replica == _FAR
        return self.far

    @property
    def replication(self) -> ReplicaShipments:
        return ReplicaShipments(
            self.near, {_FAR: self.far}, store_now_us=lambda: self.near.now_us, eligible_age_s=_AGE_S
        )

    def pass_s(self, seconds: float) -> None:
        self.near.now_us += round(seconds * _S)
        self.far.now_us = self.near.now_us

    def publish(self, *ids: int, tombstone: bool = False, dropping: tuple[str, ...] = (), epoch: int = 1) -> Manifest:
        """The next manifest: versions of ledgers are added, and blocks taken out."""
        before = self.log.read_newest_manifest()
        self.number += 1
        added: list[Block] = []
        if ids:
            rows = table(
                RecordKind.LEDGER, [version(one, self.number, tombstone=tombstone, epoch=epoch) for one in ids]
            )
            added = list(self.log.put_blocks(RecordKind.LEDGER, rows))
        kept = [one for one in (before.blocks if before else ()) if one.block_id not in dropping]
        manifest = Manifest(
            number=self.number,
            catalog_id="c",
            epoch=epoch,
            bundles=64,
            stamp=f"s{self.number}",
            flushed_us=self.near.now_us,
            ceilings=IdCeilings(),
            blocks=(*kept, *added),
        )
        self.log.put_manifest(manifest)
        return manifest

    def published(self) -> Manifest:
        """The newest one."""
        newest = self.log.read_newest_manifest()
        assert newest
        return newest

    def ship(self) -> ShippedBlocks:
        return self.replication.ship_to_replica(_FAR)

    def alive(self, log: RecordLog) -> set[int]:
        """Ledgers that a rebuild from that log would have."""
        manifest = log.read_newest_manifest()
        assert manifest
        found = select_newest_versions([log.read_block(block) for block in manifest.blocks])
        rows = zip(found.column("id").to_pylist(), found.column("tombstone").to_pylist(), strict=True)
        return {ledger for ledger, tombstone in rows if not tombstone}

    def state(self) -> ReplicaState | None:
        (one,) = self.replication.list_replica_statuses()
        return one.state


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.fixture(autouse=True)
def _disarmed() -> object:
    yield
    disarm_all_and_take_hits()


def test_a_replica_is_new_then_current_then_behind(pair: Pair) -> None:
    """Its lag is the time between what it has and the newest manifest."""
    (new,) = pair.replication.list_replica_statuses()
    assert (new.state, new.manifest, new.newest, new.lag_s, new.at_us) == (None, 0, 0, None, None)
    pair.publish(1, 2)
    assert pair.ship() == ShippedBlocks(
        replica=_FAR,
        manifest=1,
        blocks=1,
        records=2,
        bytes=pair.log.read_newest_manifest().blocks[0].size_bytes,  # type: ignore[union-attr]
    )
    assert pair.state() is ReplicaState.CURRENT
    pair.pass_s(30)
    pair.publish(3)
    (behind,) = pair.replication.list_replica_statuses()
    assert (behind.state, behind.manifest, behind.newest, behind.lag_s) == (ReplicaState.BEHIND, 1, 2, 30.0)
    assert pair.ship().blocks == 1
    assert pair.state() is ReplicaState.CURRENT
    assert pair.alive(pair.replica) == {1, 2, 3}


def test_nothing_is_shipped_before_there_is_a_manifest(pair: Pair) -> None:
    """And nothing is acknowledged."""
    assert pair.ship() == ShippedBlocks(replica=_FAR)
    assert pair.state() is None
    assert not list(pair.far.list("records/"))


def test_repeating_a_shipment_copies_nothing_and_keeps_the_replica_from_being_stale(pair: Pair) -> None:
    """It has said that it lives, though there was nothing new."""
    pair.publish(1)
    pair.ship()
    pair.pass_s(_AGE_S - 1)
    assert pair.ship().blocks == 0
    pair.pass_s(_AGE_S - 1)
    assert pair.state() is ReplicaState.CURRENT
    pair.pass_s(2)
    assert pair.state() is ReplicaState.STALE


@pytest.mark.parametrize("point", ["records.ship_block", "records.put_manifest", "records.acknowledge", "records.pin"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_shipment_that_dies_is_made_by_the_next(pair: Pair, point: str, moment: str) -> None:
    """A manifest of the replica never names a block that is not there."""
    pair.publish(1)
    pair.publish(2)
    arm(f"{point}.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        pair.ship()
    disarm_all_and_take_hits()
    if (there := pair.replica.read_newest_manifest()) is not None:
        assert all(pair.far.get(block.key) for block in there.blocks)
    pair.ship()
    assert pair.alive(pair.replica) == {1, 2}
    assert pair.state() is ReplicaState.CURRENT
    assert pair.log.list_pins() == []


def test_a_block_that_was_half_copied_by_another_is_compared(pair: Pair) -> None:
    """What stands under its key counts only with its digest; the replica gets no manifest."""
    (block,) = pair.publish(1).blocks
    pair.far.put_if_absent(block.key, b"half", metadata={})
    with pytest.raises(CorruptData, match=r"delete it in the replica's bucket"):
        pair.ship()
    assert pair.replica.read_newest_manifest() is None
    assert pair.state() is ReplicaState.BEHIND, "it is registered: tombstones wait for it"


def test_a_block_that_the_record_log_lost_is_named(pair: Pair) -> None:
    """The replica stays as it was."""
    pair.publish(1)
    pair.ship()
    block = pair.publish(2).blocks[-1]
    pair.near.delete([block.key])
    with pytest.raises(MissingData, match=block.block_id):
        pair.ship()
    assert pair.replica.read_newest_manifest().number == 1  # type: ignore[union-attr]
    assert pair.state() is ReplicaState.BEHIND


def test_a_replica_that_was_promoted_is_never_written_to(pair: Pair) -> None:
    """It goes on under an epoch of its own; so does one that another record log has put manifests into."""
    pair.publish(1)
    pair.ship()
    theirs = replace(pair.published(), number=2, epoch=2, stamp="theirs")
    pair.replica.put_manifest(theirs)
    pair.publish(2)
    pair.publish(3)
    before = {one.key for one in pair.far.list("")}
    with pytest.raises(PreconditionFailed, match="promoted"):
        pair.ship()
    assert {one.key for one in pair.far.list("")} == before


@pytest.mark.parametrize("listings", [2, 1_000])
@pytest.mark.parametrize("hidden", [MANIFEST_PREFIX, manifest_key(2)])
def test_replica_whose_promotion_listings_hide_is_never_written_to(pair: Pair, hidden: str, listings: int) -> None:
    """A manifest of ours, newer than its own, would refuse its workers their database."""
    pair.publish(1)
    pair.ship()
    pair.replica.put_manifest(replace(pair.published(), number=2, epoch=2, stamp="theirs"))
    pair.publish(2)
    pair.publish(3)
    keys = pair.far.keys
    pair.far.unlisted = {hidden: listings}
    with pytest.raises(StoreUnavailable, match="HEAD finds it, LIST does not"):
        pair.ship()
    assert pair.far.keys == keys
    pair.far.unlisted = {}
    with pytest.raises(PreconditionFailed, match="promoted"):
        pair.ship()


@pytest.mark.parametrize("listings", [2, 1_000])
@pytest.mark.parametrize("hidden", [MANIFEST_PREFIX, manifest_key(2)])
def test_listing_that_hides_the_newest_manifest_takes_no_replica_for_one_of_others(
    pair: Pair, hidden: str, listings: int
) -> None:
    """The refusal says to name another bucket."""
    pair.publish(1)
    pair.publish(2)
    pair.ship()
    pair.near.unlisted = {hidden: listings}
    with pytest.raises(StoreUnavailable, match="HEAD finds it, LIST does not"):
        pair.ship()
    pair.near.unlisted = {}
    assert pair.ship().manifest == 2


def test_manifest_that_another_shipment_puts_behind_the_listing_is_no_lie(pair: Pair) -> None:
    """HEAD finds it, and so does a second listing."""
    pair.publish(1)
    pair.ship()

    def ship_again() -> None:
        pair.publish(2)
        pair.ship()

    pair.far.plan(Fault(operation=StoreOperation.HEAD, kind=FaultKind.CALL, action=ship_again))
    assert pair.ship().manifest == 2


def test_revoked_replica_is_registered_again_though_no_listing_shows_that_it_is_revoked(pair: Pair) -> None:
    """No raid would wait for it otherwise, whatever it acknowledges."""
    pair.publish(1)
    pair.ship()
    pair.log.revoke_replica(_FAR)
    pair.near.unlisted = {f"{REPLICA_PREFIX}{_FAR}/revoked": 1_000}
    pair.ship()
    pair.near.unlisted = {}
    assert [(word.manifest, word.is_revoked) for word in pair.log.list_lowest_acknowledgements()] == [(1, False)]


@pytest.mark.parametrize("changed", [{"catalog_id": "other"}, {"number": 7}, {"stamp": "theirs"}])
def test_a_bucket_with_manifests_of_others_is_refused(pair: Pair, changed: dict[str, object]) -> None:
    """Of another catalog, ahead of ours, or of the same number with another stamp."""
    pair.publish(1)
    pair.replica.put_manifest(replace(pair.published(), **changed))  # type: ignore[arg-type]
    with pytest.raises(PreconditionFailed, match=r"replica_buckets, or name a new bucket for it there$"):
        pair.ship()


def test_unknown_replica_is_refused(pair: Pair) -> None:
    """By name."""
    with pytest.raises(InvalidInput, match="far"):
        pair.replication.ship_to_replica("near")


def test_a_replica_that_the_settings_name_no_more_is_still_told(pair: Pair) -> None:
    """The tomb raider waits for it, until it is STALE."""
    pair.publish(1)
    pair.ship()
    gone = ReplicaShipments(pair.near, {}, store_now_us=lambda: pair.near.now_us, eligible_age_s=_AGE_S)
    assert [(one.replica, one.state) for one in gone.list_replica_statuses()] == [(_FAR, ReplicaState.CURRENT)]


def test_a_replica_is_swept_of_what_no_manifest_needs_unless_it_is_pinned(pair: Pair) -> None:
    """The rule is the record log's own; what a rebuild from the replica reads stays."""
    first = pair.publish(1)
    pair.ship()
    pair.replica.pin_manifest("rebuild-1", 1, pair.near.now_us + 1_000_000 * _S, "rebuild")
    second = pair.publish(2, dropping=(first.blocks[0].block_id,))
    pair.ship()
    pair.publish(3, dropping=(second.blocks[0].block_id,))
    pair.pass_s(100_000)
    for _ in range(100):
        pair.publish()
        pair.ship()
    assert pair.replica.list_manifest_numbers() == [1, *range(4, 104)]
    stored = {one.key for one in pair.far.list("records/blocks/")}
    assert stored == {first.blocks[0].key, pair.published().blocks[0].key}


def test_tombstone_waits_for_a_replica_that_is_away_for_less_than_the_eligible_age(pair: Pair) -> None:
    """The raid may remove what every replica has; until it is back, that is nothing new."""
    pair.publish(1, 2)
    pair.ship()
    pair.far.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=1_000))
    deleted = pair.publish(1, tombstone=True)
    with pytest.raises(StoreUnavailable):
        pair.ship()
    pair.pass_s(_AGE_S / 2)
    assert _may_remove(pair, deleted) is False
    pair.far._faults.clear()
    pair.ship()
    assert _may_remove(pair, deleted) is True
    assert pair.alive(pair.replica) == {2}


def test_replica_that_was_away_for_more_than_the_eligible_age_is_seeded_and_nothing_returns(pair: Pair) -> None:
    """Nobody waits for it; what it is shipped next is the whole truth, though the tombstone is gone by then."""
    first = pair.publish(1, 2)
    pair.ship()
    deleted = pair.publish(1, tombstone=True)
    pair.pass_s(_AGE_S + 1)
    assert pair.state() is ReplicaState.STALE
    assert _may_remove(pair, deleted) is True
    dead = (first.blocks[0].block_id, deleted.blocks[-1].block_id)
    pair.publish(2, dropping=dead)  # a defragmentation took the old version out, and a raid the tombstone
    assert pair.alive(pair.replica) == {1, 2}, "what a STALE replica would serve"
    pair.ship()
    assert pair.alive(pair.replica) == {2}
    assert pair.state() is ReplicaState.CURRENT


def _may_remove(pair: Pair, deleted: Manifest) -> bool:
    """Whether the raid's rule lets a tombstone go that came with this manifest; it revokes who is STALE, as a raid."""
    newest = pair.published().number
    for one in pair.log.list_lowest_acknowledgements():
        state = decide_replica_state(one, newest=newest, now_us=pair.near.now_us, eligible_age_s=_AGE_S)
        if state is ReplicaState.STALE:
            pair.log.revoke_replica(one.replica_id)
    return newest_manifest_applied_everywhere(pair.log.list_lowest_acknowledgements(), newest=newest) >= deleted.number
