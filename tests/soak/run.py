"""One soak from start to end: faults while all are at work, rest, last jobs, and the judgement."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from logstore import errors
from logstore.errors import SextonError
from tests.soak.audit.promises import Violation, sets, violations
from tests.soak.auditor import Auditor
from tests.soak.client import BORNE
from tests.soak.ground import Ground
from tests.soak.plan import Fault, Plan, plan
from tests.soak.report import Happened, Report
from tests.soak.scene import DELAYED, LISTS, PLAIN, SOURCE, Said, set_phase
from workers.assembly.adapters import open_log
from workers.client import Sexton
from workers.client.connections import connect_client

REST_WITHIN_S: Final = 900.0
"""After the last fault: longer than the longest back-off of an activity, with room for a busy machine."""

_SAMPLE_S: Final = 3.0
_LOOK_S: Final = 20.0
_LASTING: Final = {"transaction-coordinator", "flush-records", "follow-records"}
"""Workflows that run while there is a store."""

_REFUSALS: Final = {"STILL_IN_USE", "INVALID", "METADATA_MISMATCH", "STALE_CATALOG"}
"""Of deletions, which stay listed as dead letters: among what others have planted is an object in a ledger's place."""

Say = Callable[[str], None]


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
        try:
            return self._on(ground)
        finally:
            ground.down()

    def _look_at(self, ground: Ground) -> None:
        """Before anything of the product runs."""
        self.auditor = Auditor.of(ground.direct)
        self.auditor.plant()
        self.said = Said(self.home)

    def _on(self, ground: Ground) -> Report:
        asyncio.run(_schedules(ground, paused=False))
        self._faults(ground)
        waits = self._come_to_rest(ground)
        seen = self._last_look(ground, waits)
        found = violations(seen) + [Violation(1, one) for one in self.auditor.lost]
        return Report(
            seed=self.wish.seed,
            seconds=self.wish.seconds,
            database=self.wish.database,
            workers=self.wish.workers,
            clients=self.wish.clients,
            happened=sorted(self.happened, key=lambda one: one.began_s),
            ops=seen.ops,
            sets=sets(seen),
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
            for one in done:
                one.result()

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
        ground.revive()
        set_phase(self.home, "drain")
        began = time.monotonic()
        asyncio.run(_redrive(ground))
        waits = self._wait(
            lambda: asyncio.run(_unended(ground)) + self.auditor.unrest(self.said.entries(), flushed=False)
        )
        ground.end_clients()
        self.say("last jobs: trim, reconcile, flush")
        asyncio.run(_schedules(ground, paused=True))
        try:
            asyncio.run(asyncio.wait_for(_last_jobs(ground), REST_WITHIN_S))
        except (TimeoutError, *BORNE) as error:
            waits.append(f"the last jobs did not end: {type(error).__name__}: {error} ({error.__cause__})")
        waits += self._wait(
            lambda: asyncio.run(_unended(ground)) + self.auditor.unrest(self.said.entries(), flushed=True)
        )
        self._rest_s = time.monotonic() - began
        return waits

    def _wait(self, unrest: Callable[[], list[str]]) -> list[str]:
        """Sentences on what is not at rest when the time is over; none else."""
        give_up, told = time.monotonic() + REST_WITHIN_S, 0.0
        while left := unrest():
            if time.monotonic() > give_up:
                return [f"not at rest within {REST_WITHIN_S:.0f} s: {one}" for one in left]
            if time.monotonic() - told > 15:
                told = time.monotonic()
                self.say(f"waits for {len(left)}: {left[0]}")
            time.sleep(1.0)
        return []

    def _last_look(self, ground: Ground, waits: list[str]) -> Any:
        self.say("reading all there is")
        owners = self.auditor.owners_at_rest()
        with open_log(ground.direct) as log:
            topics = [log.catalog.topics.get(name) for name in (*PLAIN, *LISTS, SOURCE, *DELAYED)]
            read = {
                topic.topic_id: [
                    ((one.position.ledger_id, one.position.entry_id), (one.payload or b"").decode())
                    for one in log.managed.scan(topic)
                ]
                for topic in topics
            }
        failed = asyncio.run(_failed(ground))
        ground.end_workers()
        exits = {f"{role} {number}": member.exits[-1] for (role, number), member in ground.members.items()}
        said = self.said.entries()
        for one in said:
            if one["what"] == "received":
                one["client"] = int(one["by"].split("-")[1])
        return self.auditor.collect(
            said,
            seen=read,
            steps=self.steps,
            owners=owners,
            failed_workflows=failed,
            waits=waits,
            exits=exits,
            ended_s=time.time() - self._rest_s,
        )


def _processes(ground: Ground, happened: list[Happened]) -> dict[str, int]:
    killed = Counter(one.kind for one in happened)
    deaths = {
        role: sum(code == -9 for (of, _), member in ground.members.items() if of == role for code in member.exits)
        for role in ("worker", "client")
    }
    return {
        "workers started": sum(member.lives for (role, _), member in ground.members.items() if role == "worker"),
        "clients started": sum(member.lives for (role, _), member in ground.members.items() if role == "client"),
        "workers died at failpoints": max(0, deaths["worker"] - killed["kill-worker"]),
    }


async def _patiently(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Servers have just come back."""
    give_up = time.monotonic() + 60
    while True:
        try:
            return await work()
        except BORNE:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(1)


async def _schedules(ground: Ground, *, paused: bool) -> None:
    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await sexton.apply_schedules()
            for row in await sexton.list_schedules():
                if paused:
                    await sexton.client.get_schedule_handle(row.schedule_id).pause(note="the soak is over")

    await _patiently(work)


async def _redrive(ground: Ground) -> None:
    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await sexton.redrive(None, reason="soak", actor="soak")

    await _patiently(work)


async def _last_jobs(ground: Ground) -> None:
    """Nobody writes any more: so every object that is younger than the floor is judged, too."""
    why: dict[str, str] = {"reason": "soak", "actor": "soak"}

    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await (await sexton.trim_topics(**why)).result()
            found = await (await sexton.plan_orphans(older_than_s=0, unsafe_age=True, **why)).result()
            await (await sexton.apply_orphans(found.run_id, max_orphan_share=1.0, **why)).result()
            await (await sexton.sweep_deletions(**why)).result()
            await (await sexton.flush_records(**why)).result()

    await _patiently(work)


async def _unended(ground: Ground) -> list[str]:
    """Jobs that run, but those that always do and those that a schedule has just begun."""

    async def work() -> list[str]:
        client = await connect_client(ground.direct)
        found = []
        async for one in client.list_workflows("ExecutionStatus = 'Running'"):
            scheduled = one.search_attributes.get("TemporalScheduledById")
            if one.workflow_type not in _LASTING and not scheduled and not one.id.startswith("temporal-sys"):
                found.append(f"{one.id} runs")
        return found

    result: list[str] = await _patiently(work)
    return result


async def _failed(ground: Ground) -> list[tuple[str, str]]:
    """Workflows that ended otherwise than well, by an error that is none of ours."""
    known = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, SextonError)}
    known |= _REFUSALS | {"TimeoutError"}  # the latter where attempts are bounded, because the next run is soon due
    client = await connect_client(ground.direct)
    found = []
    async for one in client.list_workflows("ExecutionStatus IN ('Failed', 'TimedOut', 'Terminated', 'Canceled')"):
        error = await _error_of(client, one.id, one.run_id, one.status)
        if error not in known:
            found.append((one.id, error))
    return found


async def _error_of(
    client: Client, workflow_id: str, run_id: str | None, status: WorkflowExecutionStatus | None
) -> str:
    try:
        await client.get_workflow_handle(workflow_id, run_id=run_id).result(follow_runs=False)
    except WorkflowFailureError as failure:
        cause: BaseException | None = failure
        while cause is not None and cause.__cause__ is not None:
            cause = cause.__cause__
        return cause.type or "ApplicationError" if isinstance(cause, ApplicationError) else type(cause).__name__
    except RPCError as error:
        return str(error)
    return str(status)
