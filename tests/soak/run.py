"""One soak from start to end: faults while all are at work, rest, last jobs, and the judgement."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.soak.audit.evidence import At, Evidence
from tests.soak.audit.promises import Violation, sets, violations
from tests.soak.auditor import Auditor
from tests.soak.ground import REBUILT, REPLICA, Ground
from tests.soak.plan import Fault, Plan, plan
from tests.soak.recovery import Read, append_unflushed, flush, follow, read_all, rebuild
from tests.soak.report import Happened, Report
from tests.soak.scene import LASTING, Ops, Said, set_phase
from tests.soak.temporal import failed, last_jobs, redrive, resume, runs_by_type, schedules, unended
from workers.settings import Settings

REST_WITHIN_S: Final = 900.0
"""After the last fault: longer than the longest back-off of an activity, with room for a busy machine."""

_SAMPLE_S: Final = 3.0
_LOOK_S: Final = 20.0
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What soak is wanted."""

    seed: int
    seconds: float = 600.0
    database: str = "sqlite"
    workers: int = 3
    clients: int = 2


@dataclass
class Soak:
    """A soak on a home of its own."""

    wish: Wish
    home: Path
    say: Say
    plan: Plan = field(init=False)
    happened: list[Happened] = field(default_factory=list)
    steps: list[tuple[int, float, float]] = field(default_factory=list)  # of clients' clocks; see `Evidence`
    troubles: list[str] = field(default_factory=list)
    """Steps of the soak itself that failed: the rest goes on, so that there is a report."""
    _over: threading.Event = field(default_factory=threading.Event)
    _rest_s: float = 0.0

    def __post_init__(self) -> None:
        """Draw the plan."""
        wish = self.wish
        self.plan = plan(wish.seed, seconds=wish.seconds, workers=wish.workers, clients=wish.clients)

    def run(self) -> Report:
        """Run it to its end; the servers are gone afterwards, the home stays."""
        self.say("starting servers, workers and clients")
        ground = Ground.up(
            self.home,
            self.plan,
            database=self.wish.database,
            workers=self.wish.workers,
            clients=self.wish.clients,
            before=self._look_at,
        )
        report: Report | None = None
        try:
            report = self._on(ground)
            return report
        finally:
            if report is None or report.violations:
                self._attempt("keeping the databases", ground.keep_databases, None)
            ground.down()

    def _attempt(self, doing: str, work: Callable[[], T], otherwise: T) -> T:
        """Return what the work returns; if it fails, write that down and return `otherwise`."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - a violation like any other, and more may be found
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            self.troubles.append(f"{doing} failed: {type(error).__name__}: {error}{cause}")
            self.say(self.troubles[-1])
            return otherwise

    def _look_at(self, ground: Ground) -> None:
        """Before anything of the product runs."""
        self.auditor = Auditor.of(ground.direct)
        self.auditor.plant()
        self.said = Said(self.home)

    def _on(self, ground: Ground) -> Report:
        asyncio.run(schedules(ground, paused=False))
        self._faults(ground)
        waits = self._come_to_rest(ground)
        seen = self._attempt("collecting the evidence", lambda: self._last_look(ground, waits), None)
        types = self._attempt("counting workflows", lambda: asyncio.run(runs_by_type(ground)), dict[str, int]())
        found = violations(seen) if seen else [Violation(2, wait) for wait in waits]
        found += [Violation(1, one) for one in self.auditor.lost]
        found += [Violation(8, trouble) for trouble in self.troubles]
        return Report(
            seed=self.wish.seed,
            seconds=self.wish.seconds,
            database=self.wish.database,
            workers=self.wish.workers,
            clients=self.wish.clients,
            happened=sorted(self.happened, key=lambda one: one.began_s),
            ops=seen.ops if seen else (),
            sets=sets(seen) if seen else {},
            types=types,
            requests=ground.wire.weather.met,
            processes=_processes(ground, self.happened),
            looks=self.auditor.moments,
            rest_s=self._rest_s,
            violations=found,
        )

    def _faults(self, ground: Ground) -> None:
        """Each in a thread of its own, at its time."""
        began = time.monotonic()
        with ThreadPoolExecutor(len(self.plan.faults) + 1) as pool:
            done = [pool.submit(self._fault, ground, fault, began) for fault in self.plan.faults]
            next_look = _LOOK_S
            while (passed := time.monotonic() - began) < self.wish.seconds:
                with suppress(Exception):  # the database is away: there is another look soon
                    self.auditor.sample()
                if passed > next_look:
                    next_look = passed + _LOOK_S
                    with suppress(Exception):
                        self.auditor.look()
                time.sleep(_SAMPLE_S)
            self._over.set()
            for fault in done:
                self._attempt("a fault", fault.result, None)

    def _fault(self, ground: Ground, fault: Fault, began: float) -> None:
        if self._over.wait(max(0.0, began + fault.at_s - time.monotonic())):
            return
        self.say(f"{time.monotonic() - began:6.1f} s  {fault.kind} {fault.target}")
        since = time.time()
        lift = ground.begin(fault)
        self._over.wait(fault.lasts_s)
        lift()
        self.happened.append(Happened(kind=fault.kind, target=fault.target, began_s=since, lifted_s=time.time()))
        if fault.kind == "step-clock-of-client":
            self.steps.append((fault.target, since, fault.amount))

    def _come_to_rest(self, ground: Ground) -> list[str]:
        """No new work, all faults lifted: what is begun ends, within the bound."""
        self.say("no more faults: coming to rest")
        ground.arming = False
        self._attempt("starting the servers again", ground.revive, None)
        set_phase(self.home, "drain")
        began = time.monotonic()
        batches = {one["batch"] for one in self.said.entries() if "batch" in one}
        self._attempt("redriving dead letters", lambda: asyncio.run(redrive(ground)), None)
        self._attempt("resuming batches", lambda: asyncio.run(resume(ground, batches)), None)
        waits = self._wait(
            lambda: asyncio.run(unended(ground)) + self.auditor.unrest(self.said.entries(), flushed=False)
        )
        ground.end_clients()
        self.say("last jobs: trim, reconcile, flush")
        self._attempt("pausing schedules", lambda: asyncio.run(schedules(ground, paused=True)), None)
        self._attempt("the last jobs", lambda: asyncio.run(_within(last_jobs(ground), REST_WITHIN_S)), None)
        waits += self._wait(
            lambda: asyncio.run(unended(ground)) + self.auditor.unrest(self.said.entries(), flushed=True)
        )
        self._rest_s = time.monotonic() - began
        return waits

    def _wait(self, unrest: Callable[[], list[str]]) -> list[str]:
        """Sentences on what is not at rest when the time is over; none else."""
        give_up, told = time.monotonic() + REST_WITHIN_S, 0.0
        while left := self._unrest(unrest):
            if time.monotonic() > give_up:
                return [f"not at rest within {REST_WITHIN_S:.0f} s: {one}" for one in left]
            if time.monotonic() - told > 15:
                told = time.monotonic()
                self.say(f"waits for {len(left)}: {left[0]}")
            time.sleep(1.0)
        return []

    def _unrest(self, looking: Callable[[], list[str]]) -> list[str]:
        """Return what is not at rest; a look that fails is no rest either."""
        try:
            return looking()
        except Exception as error:  # noqa: BLE001 - servers may come back; if not, the wait ends with this sentence
            return [f"looking for what goes on failed: {type(error).__name__}: {error}"]

    def _last_look(self, ground: Ground, waits: list[str]) -> Evidence:
        """All that there is; then the database is lost, and all that there is once it was rebuilt."""
        self.say("reading all there is")
        owners = self._attempt("reading owners", self.auditor.owners_at_rest, dict[int, str]())
        seen = self._read_all(ground.direct)
        failed_workflows = self._attempt(
            "reading failed jobs", lambda: asyncio.run(failed(ground)), list[tuple[str, str]]()
        )
        ground.end_workers()
        self._attempt("the last flush", lambda: flush(ground), None)
        waits += self._attempt("following the record log", lambda: follow(ground), [])
        exits = {
            f"{role} {number}": member.exits[-1] for (role, number), member in ground.members.items() if role != REPLICA
        }
        found = self.auditor.collect(
            self.said.entries(),
            seen=seen,
            replica=self.auditor.tables(ground.database(REPLICA)),
            steps=self.steps,
            owners=owners,
            failed_workflows=failed_workflows,
            waits=waits,
            exits=exits,
            ended_s=time.time() - self._rest_s,
        )
        self.say("rebuilding the catalog")
        with closing(Ops(self.home, "last")) as ops:
            self._attempt("appending without a flush", lambda: append_unflushed(ground, ops), None)
        waits += self._attempt("rebuilding the catalog", lambda: rebuild(ground, self.wish.seed), [])
        if not waits:
            rebuilt = ground.direct.model_copy(update={"database_url": ground.database(REBUILT)})
            seen = self._read_all(rebuilt)
            found.rebuilt = self._attempt(
                "looking at the rebuilt catalog",
                lambda: self.auditor.after_loss(found, rebuilt.database_url, self.said.entries(), seen),
                None,
            )
        return found

    def _read_all(self, settings: Settings) -> Read:
        """Every topic as the product reads it; one that cannot be read is a violation, and hides no other."""
        found: dict[int, Sequence[tuple[At, str]]] = {}
        nothing: Read = {}
        for name in LASTING:
            found |= self._attempt(f"reading {name}", partial(read_all, settings, [name]), nothing)
        return found


async def _within(work: Coroutine[Any, Any, None], within_s: float) -> None:
    await asyncio.wait_for(work, within_s)


def _processes(ground: Ground, happened: list[Happened]) -> dict[str, int]:
    killed = Counter(one.kind for one in happened)
    deaths = {
        role: sum(code == -9 for (of, _), member in ground.members.items() if of == role for code in member.exits)
        for role in ("worker", "client")
    }
    return {
        "workers started": sum(member.lives for (role, _), member in ground.members.items() if role == "worker"),
        "replica commands started": ground.members[REPLICA, 0].lives,
        "clients started": sum(member.lives for (role, _), member in ground.members.items() if role == "client"),
        "workers died at failpoints": max(0, deaths["worker"] - killed["kill-worker"]),
    }
