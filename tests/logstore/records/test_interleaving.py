"""Jobs of the record log that overlap: one runs between any two steps of another, and a cold start is right then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.positions import LedgerId
from logstore.records.manifest import BLOCK_PREFIX, MANIFEST_PREFIX, Manifest
from logstore.records.services.flusher import CHANGES_PER_PAGE
from logstore.records.services.record_log import PIN_PREFIX, REPLICA_PREFIX, RecordLog
from logstore.stop_checks import use_stop_check
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.records.mirror import Mirror
from tests.logstore.records.world import AGE_S, HOUR, RecordsWorld

_MOST = 12  # inner runs of one outer run; it begins at another step with each `first`
_LATE = 60


@dataclass
class _Store:
    """What was done to ledgers, beside the world that holds them."""

    world: RecordsWorld
    alive: list[LedgerId] = field(default_factory=list)
    dead: list[LedgerId] = field(default_factory=list)  # durably deleted

    def begin(self) -> None:
        """Ledgers that live, that died with a version on disk and without, long ago; blocks worth a rewrite."""
        self.alive += [self.world.create() for _ in range(4)]
        self.world.flush()
        self._bury(2)
        self.alive.append(self.world.create())
        self._bury(1)
        self.world.advance(seconds=AGE_S + HOUR)

    def _bury(self, count: int) -> None:
        gone, self.alive = self.alive[:count], self.alive[count:]
        self.world.end(*gone, durable=True)
        self.world.flush()
        self.world.clear(*gone)
        self.dead += gone

    def flush(self) -> None:
        """Ledgers come, change and go; the times of tombstones are old at once."""
        self.alive.append(self.world.create())
        self.world.touch(self.alive[0])
        self._bury(1)
        self.world.advance(seconds=AGE_S + HOUR)

    def defragment(self) -> None:
        """All kinds."""
        self.world.defragment()

    def raid(self) -> None:
        """One that another one has overtaken may say so."""
        with suppress(PreconditionFailed):
            self.world.raid()

    def check(self) -> None:
        """Promise 5, and that nothing else was lost."""
        self.world.flush()
        assert self.world.returning() == set(self.alive)
        on_disk, buried = self.world.on_disk(self.dead), self.world.buried()
        for one, versions in on_disk.items():
            assert False not in versions or (versions[-1] and one in buried), (one, versions)


_JOBS: dict[str, Callable[[_Store], None]] = {
    "flush": _Store.flush,
    "defragment": _Store.defragment,
    "raid": _Store.raid,
}


@pytest.mark.parametrize("first", [0, 1, pytest.param(2, marks=pytest.mark.all_faults)])
@pytest.mark.parametrize("inner", _JOBS)
@pytest.mark.parametrize("outer", _JOBS)
def test_a_job_between_any_two_steps_of_another_loses_nothing_and_brings_nothing_back(
    world: RecordsWorld, outer: str, inner: str, first: int
) -> None:
    """Flush, defragmentation and raid, each within each, again and again; then each of them once more."""
    world.page = CHANGES_PER_PAGE if first == 1 else 2
    store = _Store(world)
    store.begin()
    steps, runs, inside = [0], [0], [False]

    def step() -> None:
        steps[0] += 1
        if inside[0] or runs[0] >= _MOST or steps[0] % 3 != first:
            return
        inside[0] = True
        runs[0] += 1
        _JOBS[inner](store)
        inside[0] = False

    with use_stop_check(step):
        _JOBS[outer](store)
    assert runs[0], "the outer job has steps between which the inner one ran"
    store.check()
    for job in (_Store.defragment, _Store.raid, _Store.defragment):
        world.advance(seconds=_LATE)
        job(store)
        store.check()


_FOREVER = 1_000_000
_LONG_S = 1_000 * AGE_S  # no replica is silent for so long


class _Home:
    """A catalog with a replica, a database that follows it, and a rebuild that reads an old manifest."""

    def __init__(self, world: RecordsWorld, folder: Path, *, pinned: bool) -> None:
        world.replica_age_s = _LONG_S
        self.world, self.store, self.job = world, _Store(world), ""
        self.mirror, self.far = Mirror(world, folder / "near"), Mirror(world, folder / "far", copied=True)
        self.stores: tuple[FakeObjectStore, ...] = (world.objects, world.primary, self.far.far)
        self.store.begin()
        self.follow()
        self.far.ship()
        self.pinned = self._pin() if pinned else None
        for _ in range(3):
            self.store.flush()
            world.defragment()

    def _pin(self) -> Manifest:
        newest = self.world.log.read_newest_manifest()
        assert newest
        self.world.log.pin_manifest("rebuild", newest.number, 2**60, "rebuild")
        return newest

    def follow(self) -> None:
        self.mirror.step(eligible_age_s=_LONG_S)

    def seed(self) -> None:
        self.mirror.step(seed=True, eligible_age_s=_LONG_S)

    def do(self, job: str) -> None:
        jobs: dict[str, Callable[[], object]] = {
            "flush": self.store.flush,
            "defragment": self.world.defragment,
            "raid": self.world.raid,
            "sweep": self.world.sweep,
            "ship": self.far.ship,
            "follow": self.follow,
            "seed": self.seed,
        }
        jobs[job]()

    @contextmanager
    def lying_at(self, number: int) -> Iterator[Callable[[], bool]]:
        """Let one listing of all stores be empty, counted from 0; the yielded function tells whether it happened."""
        listings = 0

        def is_due(_: str) -> bool:
            nonlocal listings
            listings += 1
            return listings == number + 1

        def hide(store: FakeObjectStore) -> Callable[[], None]:
            return lambda: store.unlisted.update({"": 1})

        faults = [
            Fault(operation=StoreOperation.LIST, kind=FaultKind.CALL, matches=is_due, action=hide(store))
            for store in self.stores
        ]
        for store, fault in zip(self.stores, faults, strict=True):
            store.plan(fault)
        yield lambda: listings > number
        for store in self.stores:
            store._faults.clear()
            store.unlisted.clear()

    @contextmanager
    def hiding(self, prefix: str) -> Iterator[None]:
        """Let no listing show a key that begins with a prefix."""
        for store in self.stores:
            store.unlisted = {prefix: _FOREVER}
        yield
        for store in self.stores:
            store.unlisted = {}

    def check(self) -> None:
        """Nothing that lives is lost and nothing that ended returns: here, in both replicas, for the rebuild."""
        self.store.check()
        self.follow()
        assert self.mirror.ledgers == set(self.store.alive)
        self.far.ship()
        newest, shipped = self.world.log.read_newest_manifest(), RecordLog(self.far.far).read_newest_manifest()
        assert newest
        assert shipped == newest
        for manifest in filter(None, (newest, self.pinned)):
            assert {manifest.key, *(block.key for block in manifest.blocks)} <= set(self.world.objects.keys)
        assert {block.key for block in shipped.blocks} <= set(self.far.far.keys)

    def close(self) -> None:
        self.mirror.close()
        self.far.close()


@pytest.fixture
def home(world: RecordsWorld, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[_Home]:
    """Sweeps keep few manifests there; a raid would be refused beside a rebuild."""
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    with pytest.MonkeyPatch.context() as patched:
        for module in ("bucket_upkeep", "record_log"):
            patched.setattr(f"logstore.records.services.{module}.MIN_KEPT_MANIFESTS", 5)
        made = _Home(world, tmp_path, pinned=request.param != "raid")
        made.job = request.param
        yield made
        made.close()


_ALL = ("flush", "defragment", "raid", "sweep", "ship", "follow", "seed")


@pytest.mark.parametrize("home", _ALL, indirect=True)
def test_job_of_which_any_listing_is_empty_once_loses_nothing_and_brings_nothing_back(home: _Home) -> None:
    """It is refused and repeated, or ends well."""
    number, is_reached = 0, True
    while is_reached:
        with home.lying_at(number) as has_lied, suppress(StoreUnavailable):
            home.do(home.job)
        is_reached = has_lied()
        number += 1
        home.check()
    assert number > 1 or home.job == "defragment"


@pytest.mark.parametrize(
    "hidden",
    [
        MANIFEST_PREFIX,
        REPLICA_PREFIX,
        PIN_PREFIX,
        *(pytest.param(name, marks=pytest.mark.all_faults) for name in (BLOCK_PREFIX, "ledgers/")),
    ],
)
@pytest.mark.parametrize("home", _ALL, indirect=True)
def test_job_of_which_all_listings_hide_names_loses_nothing_and_brings_nothing_back(home: _Home, hidden: str) -> None:
    """It is refused until they are honest, or ends well."""
    for _ in range(2):
        with home.hiding(hidden), suppress(StoreUnavailable):
            home.do(home.job)
    home.check()
