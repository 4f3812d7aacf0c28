"""A database that follows the record log: away for less and for more than the eligible age, refused until seeded."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logstore.errors import CatalogMismatch, PreconditionFailed, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.positions import LedgerId
from logstore.records.manifest import MANIFEST_PREFIX
from logstore.records.services.record_log import REPLICA_PREFIX, RecordLog
from logstore.records.tombstone_rules import ReplicaState
from tests.logstore.records.mirror import FAR, Mirror
from tests.logstore.records.world import AGE_S, HOUR, RecordsWorld


@pytest.fixture
def mirror(world: RecordsWorld, tmp_path: Path) -> Iterator[Mirror]:
    """That follows the source's bucket."""
    found = Mirror(world, tmp_path)
    yield found
    found.close()


@pytest.fixture
def far(world: RecordsWorld, tmp_path: Path) -> Iterator[Mirror]:
    """That follows a bucket that is shipped to."""
    found = Mirror(world, tmp_path, copied=True)
    yield found
    found.close()


def _two(world: RecordsWorld) -> tuple[LedgerId, LedgerId]:
    """Two ledgers, flushed."""
    found = world.create(), world.create()
    world.flush()
    return found


def _bury(world: RecordsWorld, *ledger_ids: LedgerId) -> None:
    """A durable delete to its end, flushed."""
    world.end(*ledger_ids, durable=True)
    world.flush()
    world.clear(*ledger_ids)


def _forget(world: RecordsWorld) -> set[int]:
    """Older versions leave the disk, a raid takes what covers nothing, and that leaves it too; tombstones left."""
    world.defragment()
    world.raid()
    for ledger_id in world.standing():
        world.touch(LedgerId(ledger_id))
    world.flush()
    world.defragment()
    return world.buried()


def _away_for_too_long(world: RecordsWorld, mirror: Mirror) -> tuple[LedgerId, LedgerId]:
    """The mirror has applied two ledgers; one was buried since, and its tombstone is gone."""
    one, other = _two(world)
    mirror.step()
    world.advance(seconds=60)
    _bury(world, one)
    world.advance(seconds=AGE_S + HOUR)
    assert _forget(world) == set()
    return one, other


def test_tombstone_waits_for_a_replica_that_is_away_for_less_than_the_eligible_age(
    world: RecordsWorld, mirror: Mirror
) -> None:
    """Raids and rewritten blocks notwithstanding: what it was not told yet, it is told when it comes back."""
    one, other = _two(world)
    mirror.step()
    assert mirror.ledgers == {one, other}
    world.advance(seconds=AGE_S)
    mirror.step()
    _bury(world, one)
    world.advance(seconds=AGE_S / 2)
    world.eligible_age_s = AGE_S / 4  # tombstones are old enough sooner than replicas are silent for too long
    world.replica_age_s = AGE_S
    assert _forget(world) == {one}
    assert mirror.state() is not ReplicaState.CURRENT
    assert mirror.step(eligible_age_s=AGE_S).tombstones == 1
    assert mirror.ledgers == {other}
    assert mirror.sql("SELECT id FROM tombstone") == [one]
    assert _forget(world) == set()
    assert world.on_disk([one]) == {one: []}


def test_replica_that_was_away_for_longer_is_refused_until_it_is_seeded(world: RecordsWorld, mirror: Mirror) -> None:
    """Nothing waits for it, and the tombstone is gone: an increment would leave what it covered there for ever."""
    one, other = _away_for_too_long(world, mirror)
    assert world.on_disk([one]) == {one: []}
    assert mirror.state() is ReplicaState.STALE
    for _ in range(2):
        with pytest.raises(PreconditionFailed, match=r"records/mirror.*STALE.*seed it again"):
            mirror.step()
    assert mirror.ledgers == {one, other}, "nothing was applied"
    assert mirror.state() is ReplicaState.STALE, "and nothing acknowledged"
    assert mirror.step(seed=True).seeded == 1
    assert mirror.ledgers == {other}
    assert mirror.state() is ReplicaState.CURRENT
    world.touch(other)
    world.flush()
    assert mirror.step().steps == 1


def test_replica_knows_that_a_raid_did_not_wait_whatever_its_own_settings_say(
    world: RecordsWorld, mirror: Mirror
) -> None:
    """The raid revokes it before it removes anything; no clock and no age of the replica's tells it otherwise."""
    one, other = _away_for_too_long(world, mirror)
    with pytest.raises(PreconditionFailed, match="a raid went on without it"):
        mirror.step(eligible_age_s=100 * AGE_S)
    assert mirror.ledgers == {one, other}


def test_word_that_comes_after_the_raid_has_gone_on_counts_no_more(world: RecordsWorld, mirror: Mirror) -> None:
    """It was paused between its transaction and its word: the next step is refused, and no raid waits for it."""
    one, _ = _two(world)
    mirror.step()
    world.touch(one)
    world.flush()
    arm("records.acknowledge.before", "crash")
    with pytest.raises(SimulatedCrash):
        mirror.step()
    disarm_all_and_take_hits()
    _bury(world, one)
    world.advance(seconds=AGE_S + HOUR)
    assert _forget(world) == set()
    world.log.acknowledge_manifest(mirror.name, 2, 1, world.objects.now_us)
    assert mirror.state() is ReplicaState.STALE
    with pytest.raises(PreconditionFailed, match="a raid went on without it"):
        mirror.step(eligible_age_s=100 * AGE_S)


@pytest.mark.parametrize("death", ["records.acknowledge.after", "records.register.after", "records.pin.after"])
def test_seed_that_died_before_it_applied_anything_lifts_no_refusal(
    world: RecordsWorld, mirror: Mirror, death: str
) -> None:
    """It has registered anew; what the database holds is as old as before, and tombstones that it lacks are gone."""
    one, other = _away_for_too_long(world, mirror)
    arm(death, "crash")
    with pytest.raises(SimulatedCrash):
        mirror.step(seed=True)
    disarm_all_and_take_hits()
    with pytest.raises(PreconditionFailed, match="seed it again"):
        mirror.step()
    assert mirror.ledgers == {one, other}, "nothing was applied"
    assert mirror.step(seed=True).seeded == 1
    assert mirror.ledgers == {other}
    assert [one.replica_id for one in world.log.list_lowest_acknowledgements()] == [mirror.name], (
        "raids wait for none of the others"
    )


def test_name_of_a_replica_that_is_seeded_again_is_forgotten(world: RecordsWorld, mirror: Mirror) -> None:
    """Otherwise raids would wait for it until it is STALE."""
    _two(world)
    mirror.step()
    before = mirror.name
    assert mirror.step(seed=True).seeded == 1
    assert [one.replica_id for one in world.log.list_certain_acknowledgements()] == [mirror.name] != [before]
    assert not world.log.is_registered(before)


def test_two_databases_of_one_url_on_two_machines_are_both_waited_for(
    world: RecordsWorld, mirror: Mirror, tmp_path: Path
) -> None:
    """The word of one says nothing of the other, though the one was seeded anew after it had gone ahead."""
    one, other = _two(world)
    mirror.step()
    (folder := tmp_path / "second").mkdir()
    second = Mirror(world, folder)
    second.step()
    world.advance(seconds=60)
    _bury(world, one)
    world.advance(seconds=60)
    world.eligible_age_s, world.replica_age_s = 0, AGE_S
    mirror.step(eligible_age_s=AGE_S)
    mirror.step(seed=True, eligible_age_s=AGE_S)
    assert _forget(world) == {one}
    assert second.step(eligible_age_s=AGE_S).tombstones == 1
    assert second.ledgers == mirror.ledgers == {other}
    mirror.step(eligible_age_s=AGE_S)
    assert _forget(world) == set()
    second.close()


def test_seed_that_another_one_has_forgotten_is_refused_at_its_end(world: RecordsWorld, mirror: Mirror) -> None:
    """No raid has waited for it since: what it has applied may lack tombstones that are gone."""
    _two(world)
    pin = RecordLog.pin_manifest

    def while_pinned(log: RecordLog, pin_id: str, *rest: Any) -> None:
        pin(log, pin_id, *rest)
        log.forget_replica(pin_id)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RecordLog, "pin_manifest", while_pinned)
        with pytest.raises(PreconditionFailed, match="expected no other seed of it at the same time"):
            mirror.step()
    with pytest.raises(PreconditionFailed, match="expected its acknowledgement"):
        mirror.step()
    assert mirror.step(seed=True).seeded == 1
    assert mirror.step().steps == 0


def test_look_at_a_record_log_without_a_manifest_registers_nothing(world: RecordsWorld, mirror: Mirror) -> None:
    """A command that watches would leave a name at every look."""
    assert mirror.step().manifest == 0
    assert world.log.list_lowest_acknowledgements() == []


def test_raid_for_younger_tombstones_waits_for_replicas_all_the_same(world: RecordsWorld, mirror: Mirror) -> None:
    """A raid is asked to leave nothing for its age: silent replicas are judged by the setting."""
    one, _ = _two(world)
    mirror.step()
    world.advance(seconds=60)
    _bury(world, one)
    world.advance(seconds=60)
    world.replica_age_s, world.eligible_age_s = AGE_S, 0
    assert _forget(world) == {one}
    mirror.step(eligible_age_s=AGE_S)
    assert _forget(world) == set()


def test_replica_that_registers_while_a_raid_is_at_work_is_waited_for(world: RecordsWorld, mirror: Mirror) -> None:
    """Between the raid's look at replicas and its revocation of one: the raid looks again."""
    one, _ = _two(world)
    mirror.step()
    _bury(world, one)
    world.advance(seconds=AGE_S + HOUR)
    world.acknowledge("gone", 1)
    world.objects.now_us += round((AGE_S + HOUR) * 1_000_000)
    seeding = RecordLog(world.objects)
    revoke = RecordLog.revoke_replica

    def while_revoked(log: RecordLog, replica_id: str) -> None:
        revoke(log, replica_id)
        if replica_id == "gone":
            seeding.register_replica("second/new", world.objects.now_us)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RecordLog, "revoke_replica", while_revoked)
        assert _forget(world) == {one}


@pytest.mark.parametrize("known", [False, True])
def test_seed_from_a_bucket_that_nothing_waits_for_is_refused(world: RecordsWorld, far: Mirror, known: bool) -> None:
    """It may have a ledger whose tombstone came and went meanwhile, and which no later manifest tells of."""
    one, other = _two(world)
    far.ship()
    if not known:
        world.log.forget_replica(FAR)
    _bury(world, one)
    world.advance(seconds=AGE_S + HOUR)
    assert _forget(world) == set()
    with pytest.raises(PreconditionFailed, match=r"bucket far.*NEW or STALE"):
        far.step()
    far.ship()
    assert far.step().seeded == 1
    assert far.ledgers == {other}


def test_replica_follows_a_bucket_that_is_shipped_to(world: RecordsWorld, far: Mirror) -> None:
    """It is waited for beside the bucket: the tombstone stays until the database has it."""
    one, other = _two(world)
    far.ship()
    far.step()
    world.advance(seconds=60)
    _bury(world, one)
    far.ship()
    world.advance(seconds=AGE_S - HOUR)
    far.ship()
    world.eligible_age_s, world.replica_age_s = HOUR, AGE_S
    assert _forget(world) == {one}
    far.step(eligible_age_s=AGE_S)
    assert far.ledgers == {other}
    assert _forget(world) == set()


def test_replica_of_an_older_epoch_is_refused_until_it_is_seeded(world: RecordsWorld, mirror: Mirror) -> None:
    """The source was rebuilt: what was not flushed before is lost there, and may stand here."""
    _two(world)
    mirror.step()
    newest = RecordLog(world.objects).read_newest_manifest()
    assert newest
    world.log.put_manifest(replace(newest, number=2, epoch=2, stamp="rebuilt"))
    with pytest.raises(PreconditionFailed, match="epoch 1, found 2: the source was rebuilt"):
        mirror.step()
    assert mirror.step(seed=True).manifest == 2
    assert mirror.step().manifest == 2


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"catalog_id": "other", "number": 2}, CatalogMismatch, "catalog other"),
        ({"stamp": "strange"}, PreconditionFailed, "found 1 with the stamp strange"),
    ],
)
def test_manifest_that_does_not_follow_is_refused(
    world: RecordsWorld, mirror: Mirror, changed: dict[str, object], error: type[Exception], said: str
) -> None:
    """Of another catalog, or another one under the number that was applied."""
    _two(world)
    mirror.step()
    (newest,) = [world.log.read_manifest(1)]
    assert newest
    strange = replace(newest, **changed)  # type: ignore[arg-type]
    world.objects.delete([strange.key])
    world.log.put_manifest(strange)
    with pytest.raises(error, match=said):
        mirror.step()


def test_database_that_is_older_than_its_word_is_refused(world: RecordsWorld, mirror: Mirror) -> None:
    """As one that was restored from a backup: tombstones that it has acknowledged may be gone."""
    _two(world)
    mirror.step()
    world.acknowledge(mirror.name, 7)
    with pytest.raises(PreconditionFailed, match="expected a database with manifest 7, which it has acknowledged"):
        mirror.step()


def test_replica_that_nobody_registered_is_refused(world: RecordsWorld, mirror: Mirror) -> None:
    """As a copy of a database under another name: no raid waits for it."""
    _two(world)
    mirror.step()
    mirror.begins = "records/copied"
    with pytest.raises(PreconditionFailed, match="records/copied: expected its acknowledgement"):
        mirror.step()


def test_replica_without_news_says_that_it_lives_and_not_at_every_look(world: RecordsWorld, mirror: Mirror) -> None:
    """A source at which nothing changes must not let its replicas become STALE."""
    _two(world)
    mirror.step()
    puts: list[str] = []
    acknowledge = RecordLog.acknowledge_manifest

    def counted(log: RecordLog, replica_id: str, *rest: int) -> None:
        puts.append(replica_id)
        acknowledge(log, replica_id, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RecordLog, "acknowledge_manifest", counted)
        for _ in range(30):
            world.advance(seconds=AGE_S / 20)
            for _ in range(3):
                assert mirror.step().steps == 0
    assert len(puts) == 30
    assert mirror.state() is ReplicaState.CURRENT


_FOREVER = 1_000_000


@pytest.mark.parametrize("listings", [1, _FOREVER])
@pytest.mark.parametrize("hidden", [MANIFEST_PREFIX, REPLICA_PREFIX])
def test_listings_that_hide_what_a_replica_knows_ask_for_no_seed(
    world: RecordsWorld, mirror: Mirror, hidden: str, listings: int
) -> None:
    """The step is repeated, or a second listing shows it."""
    one, other = _two(world)
    mirror.step()
    world.touch(one)
    world.flush()
    world.objects.unlisted = {hidden: listings}
    if listings > 1 or hidden == MANIFEST_PREFIX:
        with pytest.raises(StoreUnavailable, match="by such a listing"):
            mirror.step()
    world.objects.unlisted = {key: seen for key, seen in world.objects.unlisted.items() if listings == 1}
    assert mirror.step().manifest == 2
    assert mirror.ledgers == {one, other}


def test_replica_learns_that_it_was_revoked_though_no_listing_shows_it(world: RecordsWorld, mirror: Mirror) -> None:
    """It would keep what the removed tombstone covered."""
    one, other = _away_for_too_long(world, mirror)
    revoked = [key for key in world.objects.keys if key.endswith("/revoked")]
    world.objects.unlisted = dict.fromkeys(revoked, _FOREVER)
    with pytest.raises(PreconditionFailed, match="a raid went on without it"):
        mirror.step(eligible_age_s=100 * AGE_S)
    assert mirror.ledgers == {one, other}


@pytest.mark.parametrize("listings", [1, 2, _FOREVER])
def test_listings_that_hide_the_newest_manifests_bring_nothing_back_by_a_seed(
    world: RecordsWorld, mirror: Mirror, listings: int
) -> None:
    """An older manifest lacks tombstones that are gone since: what they covered would stay in the database."""
    one, other = _two(world)
    _bury(world, one)
    world.advance(seconds=AGE_S + HOUR)
    assert _forget(world) == set()
    newer = [key for key in world.objects.keys if key.startswith(MANIFEST_PREFIX)][1:]
    world.objects.unlisted = dict.fromkeys(newer, listings)
    with suppress(StoreUnavailable):
        mirror.step()
    assert one not in mirror.ledgers
    world.objects.unlisted = {}
    mirror.step()
    assert mirror.ledgers == {other}


@pytest.mark.parametrize("hidden", ["revoked", MANIFEST_PREFIX])
def test_seed_takes_no_stale_bucket_though_listings_hide_that_it_is_one(
    world: RecordsWorld, far: Mirror, hidden: str
) -> None:
    """Neither its revocation nor its newest manifest."""
    one, other = _two(world)
    far.ship()
    _bury(world, one)
    if hidden == MANIFEST_PREFIX:
        far.ship()
        newest = [key for key in far.far.keys if key.startswith(MANIFEST_PREFIX)][-1]
        far.far.unlisted = {newest: _FOREVER}
        refused: type[Exception] = StoreUnavailable
    else:
        world.log.revoke_replica(FAR)
        world.objects.unlisted = {f"{REPLICA_PREFIX}{FAR}/revoked": _FOREVER}
        refused = PreconditionFailed
    with pytest.raises(refused):
        far.step(seed=True)
    assert far.ledgers == set()
    far.far.unlisted, world.objects.unlisted = {}, {}
    far.ship()
    far.step(seed=True)
    assert far.ledgers == {other}
