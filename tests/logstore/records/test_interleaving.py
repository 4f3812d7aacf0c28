"""Jobs of the record log that overlap: one runs between any two steps of another, and a cold start is right then."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from logstore.errors import PreconditionFailed
from logstore.positions import LedgerId
from logstore.records.services.flushing import PAGE
from logstore.units import ended_by
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
    world.page = PAGE if first == 1 else 2
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

    with ended_by(step):
        _JOBS[outer](store)
    assert runs[0], "the outer job has steps between which the inner one ran"
    store.check()
    for job in (_Store.defragment, _Store.raid, _Store.defragment):
        world.advance(seconds=_LATE)
        job(store)
        store.check()
