"""Any order of creates, updates, deletes, flushes, defragmentations, sweeps, raids, replicas and deaths.

The catalog is a real one on SQLite; buckets are in memory. A cold start is what `winners` finds in the newest manifest,
and then what adoption would take in: ledgers with objects in storage of which the record log says nothing. A replica
has a real database on SQLite, too. It follows the record log or a bucket that is shipped to, now and then; refused, it
is seeded again, as it is once it was forgotten. A rebuild holds the newest manifest, and is abandoned.

Promise 5; part G of the field cases: tombstones that were purged before a replica had seen them (scylladb#3560, #8970),
restores that outlive tombstones (scylla-manager#4258), clocks that differ by 300 s (Jepsen, Aerospike 3.99.0.3).
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logstore.errors import PreconditionFailed, RetryableError
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.positions import LedgerId
from logstore.records import newest_versions
from logstore.records.manifest import Manifest
from logstore.records.services.flusher import CHANGES_PER_PAGE
from logstore.records.services.record_log import PIN_PREFIX, RecordLog
from logstore.stop_checks import use_stop_check
from tests.contracts.catalog.world import CAUSE, claim
from tests.logstore.records.mirror import FAR, Mirror
from tests.logstore.records.world import AGE_S, RecordsWorld

EFFECTS: Final = (
    "records.put_block",
    "records.begin",
    "records.put_manifest",
    "records.settle",
    "records.pin",
    "records.unpin",
    "records.raid_mark",
    "records.raid_keep",
    "records.raid_remove",
    "records.sweep_manifests",
    "records.sweep_blocks",
    "records.acknowledge",
    "records.register",
    "records.forget",
    "records.enter",
    "records.end_entry",
    "records.revoke",
    "records.ship_block",
    "records.apply",
)
_DEATHS: Final = tuple(
    (f"{name}.{when}", action)
    for name in EFFECTS
    for when, action in (("before", "crash"), ("after", "crash"), ("before", "fail"), ("reported_failed", "fail"))
)
_SMALL_BYTES: Final = newest_versions.SMALL_BLOCK_BYTES
_JOBS: Final = ("flush", "flush_some", "defragment", "sweep", "raid", "ship", "apply", "hold", "abandon", "forget")
_REBUILD: Final = "rebuild"
_HELD_US: Final = 365 * 86_400 * 1_000_000  # longer than any program lasts


class Durability(RuleBasedStateMachine):
    """One topic whose ledgers come and go."""

    @initialize(
        replicated=st.sampled_from([None, "records", FAR]),
        joined=st.booleans(),
        page=st.sampled_from([1, 3, CHANGES_PER_PAGE]),
    )
    def begin(self, replicated: str | None, joined: bool, page: int) -> None:
        """An empty catalog, with a replica or without one; small blocks are joined, or only sparse ones rewritten.

        A flush has many pages, some, or one.
        """
        newest_versions.SMALL_BLOCK_BYTES = _SMALL_BYTES if joined else 0  # type: ignore[misc]
        self._folder = tempfile.TemporaryDirectory()
        self.world = RecordsWorld(Path(self._folder.name))
        self.world.page = page
        self.durable: set[LedgerId] = set()  # deleted durably, whether or not that is flushed
        self.dead: set[int] = set()  # of these, those whose tombstone is in a block: they never return
        self.plain: set[LedgerId] = set()
        self.batches = 0
        self.buried: dict[int, int] = {}  # of `dead`, the newest manifest when its tombstone was first in a block
        self.held: Manifest | None = None  # by a rebuild, for certain
        self.abandoned_holds = 0
        self.best: dict[int, int] = {}  # the highest version of each ledger that was ever the one that counts
        self.mirror = Mirror(self.world, Path(self._folder.name), copied=replicated == FAR) if replicated else None

    def teardown(self) -> None:
        """Disarm what never came up."""
        disarm_all_and_take_hits()
        newest_versions.SMALL_BLOCK_BYTES = _SMALL_BYTES  # type: ignore[misc]
        if hasattr(self, "world"):
            self.world.database.close()
            if self.mirror:
                self.mirror.close()
            self._folder.cleanup()

    @property
    def standing(self) -> list[LedgerId]:
        """Ledgers with a row, ascending."""
        return [LedgerId(one) for one in sorted(self.world.standing())]

    @rule(count=st.integers(1, 3))
    def create(self, count: int) -> None:
        """Ledgers with a segment each."""
        for _ in range(count):
            self.world.create()

    @precondition(lambda self: self.standing)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        """A new version of one."""
        self.world.touch(data.draw(st.sampled_from(self.standing)))

    @precondition(lambda self: len(self.standing) > 1)
    @rule(data=st.data(), durable=st.sampled_from([True, None, False]))
    def detach(self, data: st.DataObject, durable: bool | None) -> None:
        """Phase one of a forced delete, which files intents; explicit deletes are durable by default."""
        chosen = data.draw(st.sets(st.sampled_from(self.standing[:-1]), min_size=1, max_size=2))
        self.batches += 1
        batch = f"batch-{self.batches}"
        self.world.catalog.phase_one.detach_ledgers(
            self.world.topic_id,
            sorted(chosen),
            force=True,
            batch_id=batch,
            claim=claim(batch),
            cause=CAUSE,
            durable=durable,
        )
        (self.plain if durable is False else self.durable).update(chosen)

    @precondition(lambda self: self.standing)
    @rule(data=st.data(), durable=st.sampled_from([True, True, False]))
    def delete(self, data: st.DataObject, durable: bool) -> None:
        """Rows go without intents, as those of a topic may that has none left."""
        chosen = data.draw(st.sets(st.sampled_from(self.standing), min_size=1, max_size=2))
        self.world.end(*chosen, durable=durable)
        (self.durable if durable else self.plain).update(chosen)

    @rule(
        before=st.sampled_from([(), ("flush",), ("flush", "apply")]),
        after=st.sampled_from([("flush",), ("flush", "clear"), ("flush", "apply", "clear")]),
        then=st.sampled_from([(), ("raid",), ("raid", "defragment"), ("apply", "raid", "defragment", "apply")]),
        seconds=st.sampled_from([AGE_S / 2, AGE_S + 60]),
    )
    def bury(self, before: tuple[str, ...], after: tuple[str, ...], then: tuple[str, ...], seconds: float) -> None:
        """The life of a ledger in few steps, which single rules would seldom take in this order."""
        ledger_id = self.world.create()
        for job in before:
            self.do(job)
        self.world.end(ledger_id, durable=True)
        self.durable.add(ledger_id)
        for job in after:
            self.world.clear(ledger_id) if job == "clear" else self.do(job)
        self.world.advance(seconds=seconds)
        for job in then:
            self.do(job)

    @rule(count=st.integers(2, 4), seconds=st.sampled_from([60, AGE_S + 60]), durable=st.booleans())
    def scatter(self, count: int, seconds: float, durable: bool) -> None:
        """Versions of one ledger in two blocks, of which the newer one alone is worth rewriting; then the ledger ends.

        What keeps its newest version there is that the older one stays in a block that is not rewritten.
        """
        first, *others = [self.world.create() for _ in range(count)]
        for _ in range(count + 2):
            self.world.create()
        self.do("flush")
        for changed in ([first, *others], others):
            for one in changed:
                self.world.touch(one)
            self.do("flush")
        self.world.end(first, durable=durable)
        (self.durable if durable else self.plain).add(first)
        self.do("flush")
        self.world.clear(first)
        self.world.advance(seconds=seconds)
        self.do("raid")
        self.no_ledger_goes_back_to_an_older_version()  # as it is before: the newest version is seen
        self.do("defragment")

    @rule(
        meanwhile=st.lists(st.sampled_from(["flush", "defragment", "sweep", "raid", "hold"]), max_size=3),
        has_ended=st.booleans(),
    )
    def rebuild(self, meanwhile: list[str], has_ended: bool) -> None:
        """Hold the newest manifest, while other jobs go on, and abandon it or not."""
        self.world.create()
        for job in ("flush", "hold", *meanwhile):
            self.do(job)
        self.a_rebuild_can_read_what_it_holds()
        if has_ended:
            self.do("abandon")

    @precondition(lambda self: self.mirror)
    @rule(seconds=st.sampled_from([AGE_S / 2, AGE_S + 60]))
    def stay_away(self, seconds: float) -> None:
        """The replica has a ledger, and is away while that ends durably, and while its tombstone goes if it may."""
        ledger_id = self.world.create()
        for job in ("flush", "ship", "apply"):
            self.do(job)
        self.world.end(ledger_id, durable=True)
        self.durable.add(ledger_id)
        self.do("flush")
        self.world.clear(ledger_id)
        self.world.advance(seconds=seconds)
        for job in ("defragment", "raid"):
            self.do(job)
        self.world.create()
        for job in ("flush", "defragment", "ship", "apply"):
            self.do(job)

    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        """Phase two of some: objects of a durable delete wait until its tombstone is in a block."""
        gone = sorted(self.durable | self.plain)
        waiting = self.world.catalog.records.find_unflushed_ledgers(gone)
        ready = [one for one in gone if one not in waiting]
        if ready:
            cleared = data.draw(st.sets(st.sampled_from(ready), min_size=1))
            self.world.clear(*cleared)
            done = "UPDATE pending_deletion SET state = 'DELETED', outcome = 'DELETED' WHERE ledger_id = :id"
            for one in cleared:
                self.world.sql(done, id=one)

    @rule(seconds=st.sampled_from([60, 1_800, AGE_S / 2, AGE_S, 2 * AGE_S]))
    def wait(self, seconds: float) -> None:
        """By all clocks."""
        self.world.advance(seconds=seconds)

    @rule(skew_s=st.sampled_from([-300, -1, 0, 1, 300]))
    def skew(self, skew_s: int) -> None:
        """The catalog's clock jumps."""
        self.world.offset_us = skew_s * 1_000_000

    @rule(job=st.sampled_from(_JOBS))
    def work(self, job: str) -> None:
        """A job from its beginning to its end."""
        self.do(job)

    @rule(job=st.sampled_from(_JOBS), death=st.sampled_from(_DEATHS), nth=st.integers(1, 3))
    def die(self, job: str, death: tuple[str, str], nth: int) -> None:
        """A job that dies at an effect, or is told that it failed; the effect may have happened."""
        point, action = death
        arm(point, action, nth=nth)
        try:
            self.do(job)
        except (SimulatedCrash, RetryableError):
            pass
        finally:
            disarm_all_and_take_hits()

    @rule(job=st.sampled_from(_JOBS), other=st.sampled_from([*_JOBS, "delete", "update"]), step=st.integers(0, 25))
    def interleave(self, job: str, other: str, step: int) -> None:
        """A job, and another one between two of its steps; but none waits for its own database within a step of it."""
        with self._at(step, lambda: self.do("ship" if other == job == "apply" else other)):
            self.do(job)

    def do(self, job: str) -> None:
        """One job by its name."""
        world, standing = self.world, self.standing
        match job:
            case "flush_some":
                world.flusher.flush()
            case "ship" if self.mirror and self.mirror.copied:
                self.mirror.ship()
            case "apply" if self.mirror:
                self._apply(self.mirror)
            case "delete" if standing:
                world.end(standing[0], durable=True)
                self.durable.add(standing[0])
            case "update" if standing:
                world.touch(standing[-1])
            case "hold" | "abandon" | "raid":
                getattr(self, f"_{job}")()
            case "forget" if self.mirror and self.mirror.database.read_applied_manifest():
                RecordLog(world.objects).forget_replica(self.mirror.name)
            case "flush" | "defragment" | "sweep":
                getattr(world, job)()

    def _hold(self) -> None:
        """Hold the newest manifest for a rebuild, instead of an older one."""
        self.held, before = None, self.abandoned_holds
        manifest = RecordLog(self.world.objects).pin_newest_complete_manifest(
            _REBUILD, self.world.objects.now_us + _HELD_US, _REBUILD
        )
        self.held = manifest if self.abandoned_holds == before else None

    def _abandon(self) -> None:
        self.held, self.abandoned_holds = None, self.abandoned_holds + 1
        RecordLog(self.world.objects).unpin(_REBUILD)
        self.held = None  # a hold that began meanwhile may have put the very pin that was removed

    def _raid(self) -> None:
        """Raid. A raid that a rebuild refuses abandons that rebuild, as its message says, and is repeated."""
        held, before = self.held, self.abandoned_holds
        try:
            self.world.raid()
        except PreconditionFailed:
            self._abandon()
            with suppress(PreconditionFailed):  # of a rebuild that began meanwhile
                self.world.raid()
        else:
            assert held is None or self.abandoned_holds != before, "a raid ran beside a rebuild"

    def _apply(self, mirror: Mirror) -> None:
        """A step of the replica; one that is refused is seeded, from a bucket that was shipped to if need be."""
        try:
            mirror.step()
        except PreconditionFailed:
            if mirror.copied:
                mirror.ship()
            mirror.step(seed=True)

    @contextmanager
    def _at(self, step: int, act: Callable[[], None]) -> Iterator[None]:
        """Within the block, the act happens once, before the unit of work of that number."""
        left = [step]

        def check() -> None:
            left[0] -= 1
            if left[0] == -1:
                act()

        with use_stop_check(check):
            yield

    @invariant()
    def no_durably_deleted_ledger_returns(self) -> None:
        """Neither from the record log, nor as one that storage knows and the log does not, nor on a replica."""
        if not hasattr(self, "world"):
            return
        world = self.world
        self.dead |= self.durable - world.catalog.records.find_unflushed_ledgers(sorted(self.durable))
        newest = RecordLog(world.objects).read_newest_manifest()
        for ledger_id in self.dead - self.buried.keys():
            self.buried[ledger_id] = newest.number if newest else 0
        found = world.winners()
        known, returning = set(found.column("id").to_pylist()), world.returning()
        unknown = {int(key.split("/")[2], 16) for key in world.primary.keys} - known
        assert not self.dead & returning, "the record log brings it back"
        assert not self.dead & unknown, "adoption would take it in"
        forgotten = self.dead - world.buried()
        assert not {one for one, ended in world.on_disk(forgotten).items() if not all(ended)}, "it covers a version yet"

    @invariant()
    def no_durably_deleted_ledger_stays_at_a_replica(self) -> None:
        """That has applied a manifest with its tombstone, whatever raids and defragmentations removed before."""
        if not hasattr(self, "world") or self.mirror is None:
            return
        applied = self.mirror.database.read_applied_manifest()
        ended = {one for one, number in self.buried.items() if applied and number <= applied.manifest}
        assert not ended & self.mirror.ledgers, "the replica keeps it"

    @invariant()
    def a_rebuild_can_read_what_it_holds(self) -> None:
        """Its pin stands although no listing shows any, and no sweep has removed a block of its manifest."""
        if not hasattr(self, "world") or self.held is None:
            return
        log, objects = RecordLog(self.world.objects), self.world.objects
        objects.unlisted = {PIN_PREFIX: 1}
        pins = log.list_pins()
        objects.unlisted = {}
        assert [pin.manifest for pin in pins if pin.purpose == _REBUILD] == [self.held.number]
        assert log.read_manifest(self.held.number) == self.held
        assert not [block.key for block in self.held.blocks if block.key not in objects.keys]

    @invariant()
    def no_ledger_goes_back_to_an_older_version(self) -> None:
        """What is gone without a tombstone may return, as it was last, and never as it was before."""
        if not hasattr(self, "world"):
            return
        found = self.world.winners()
        for id_, version in zip(found.column("id").to_pylist(), self._versions(found), strict=True):
            assert version >= self.best.get(id_, 0), f"ledger {id_} went back to version {version}"
            self.best[id_] = version

    @staticmethod
    def _versions(found: pa.Table) -> list[int]:
        return found.column("version").to_pylist() if found.num_rows else []

    @invariant()
    def no_live_record_is_lost(self) -> None:
        """What stands and has no change in the outbox is in the log, as it stands."""
        if not hasattr(self, "world"):
            return
        rows = self.world.sql(
            "SELECT ledger_id, generation FROM ledger WHERE ledger_id NOT IN "
            "(SELECT id FROM record_outbox WHERE kind = 'ledger')"
        )
        found = {row["id"]: row for row in self.world.winners().to_pylist()}
        for ledger_id, generation in rows:
            row = found.get(ledger_id)
            assert row is not None, f"ledger {ledger_id} is in no block"
            assert (row["tombstone"], row["generation"]) == (False, generation)
