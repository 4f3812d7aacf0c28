"""Whether a worker can do its work now: it polls, and what every job needs has answered a short time ago.

A probe is answered from memory. The services are asked every few seconds, each by itself, so that probes cost them
nothing and one that hangs hides no other. An answer that is older than `FRESH_S` counts for nothing.

ZooKeeper is not asked: what a worker owns follows from its session, and a worker without one goes on with all work
that has no owner.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from logstore.errors import ServiceFailed, SextonError
from logstore.identity.markers import MARKER_KEY
from logstore.ports.catalog import Catalog
from workers.assembly.buckets import primary_bucket
from workers.client.scheduled_runs import StuckRun
from workers.client.temporal_faults import service_failure
from workers.settings import Settings

FRESH_S: Final = 30.0
_EVERY_S: Final = 10.0
_ANSWER_WITHIN: Final = timedelta(seconds=5)

_log = logging.getLogger(__name__)

Check = Callable[[], Awaitable[object]]
"""Returns when all is well, and raises where it is not."""


_NO_CHECKS: Final[Mapping[str, Check]] = {}


class Phase(StrEnum):
    """Where a worker process stands between its start and its end."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The answer of one check."""

    name: str
    ok: bool
    detail: str  # "" where all is well
    required: bool = True  # whether the worker is ready only while this is well

    def document(self) -> dict[str, object]:
        """Return what probes and pages show of it."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail, "required": self.required}


class Readiness:
    """The answers to the probes of one process. It belongs to the process's event loop."""

    def __init__(self, *, every_s: float = _EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing serves yet.

        Args:
            every_s: Between two questions to the same service.
            clock: Seconds that never go back.
        """
        self.phase = Phase.STARTING
        self.started_s = int(time.time())
        self._every_s, self._clock = every_s, clock
        self._seen: dict[str, tuple[float, Seen]] = {}

    @property
    def ready(self) -> bool:
        """Whether the worker serves, and every required check was well a short time ago; without any it is not."""
        return (
            self.phase is Phase.SERVING and bool(self._seen) and all(seen.ok for seen in self.seen() if seen.required)
        )

    def seen(self) -> Sequence[Seen]:
        """The last answers of the checks, in their order."""
        return [self._judged(at, seen) for at, seen in self._seen.values()]

    def _judged(self, at: float, seen: Seen) -> Seen:
        age_s = self._clock() - at
        if age_s <= FRESH_S:
            return seen
        return replace(seen, ok=False, detail=f"no answer for {age_s:.0f} s")

    async def watch(self, checks: Mapping[str, Check], reported: Mapping[str, Check] = _NO_CHECKS) -> None:
        """Ask all again and again, without end; a service that has not answered yet is not well.

        Args:
            checks: What the worker needs to be ready.
            reported: What is shown beside these. It is no matter of one worker: if it made all of them unready, none
                could be replaced by one that mends it.
        """
        now = self._clock()
        for name in [*checks, *reported]:
            required = name in checks
            self._seen[name] = now, Seen(name=name, ok=False, detail="not asked yet", required=required)
        async with asyncio.TaskGroup() as all_of_them:
            for name, check in [*checks.items(), *reported.items()]:
                all_of_them.create_task(self._ask(name, check, required=name in checks))

    async def _ask(self, name: str, check: Check, *, required: bool) -> None:
        told = ""  # while it starts, nothing is: that it does not poll yet is no fault
        while True:
            problem = await _problem(check)
            self._seen[name] = self._clock(), Seen(name=name, ok=not problem, detail=problem, required=required)
            if problem and problem != told and self.phase is not Phase.STARTING:
                told = problem
                _log.warning("%s, %s: %s", "not ready" if required else "not well", name, problem)
            elif told and not problem:
                told = ""
                _log.info("%s again, %s", "ready" if required else "well", name)
            await asyncio.sleep(self._every_s)


async def _problem(check: Check) -> str:
    try:
        await check()
    except RPCError as error:
        return str(service_failure(error) or error.message)
    except (SextonError, OSError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - what nothing here expects is a no as well, and ends no worker
        _log.exception("a check met a fault that nothing here expects")
        return type(error).__name__
    return ""


def checks_of(client: Client, settings: Settings, catalog: Catalog, workers: Sequence[Worker]) -> dict[str, Check]:
    """The needs of a worker: to poll, Temporal, the database, the primary bucket."""
    bucket = primary_bucket(settings, hasty=True)

    async def polls() -> None:
        if not all(worker.is_running for worker in workers):
            raise ServiceFailed("worker", "it does not poll every one of its queues", advice="read its log")

    async def temporal() -> None:
        wanted = DescribeNamespaceRequest(namespace=client.namespace)
        await client.workflow_service.describe_namespace(wanted, timeout=_ANSWER_WITHIN)

    blocking: dict[str, Callable[[], object]] = {
        "database": catalog.identities.catalog_id,
        "primary bucket": lambda: bucket.head(MARKER_KEY),
    }
    return {"worker": polls, "temporal": temporal, **in_own_threads(blocking)}


def in_own_threads(questions: Mapping[str, Callable[[], object]]) -> dict[str, Check]:
    """Questions that block, as checks: each has a thread, because requests that hang may hold all those of the loop."""
    threads = ThreadPoolExecutor(len(questions), "readiness")

    def check(question: Callable[[], object]) -> Check:
        return lambda: asyncio.get_running_loop().run_in_executor(threads, question)

    return {name: check(question) for name, question in questions.items()}


SCHEDULES: Final = "schedules"
_SCHEDULES_EVERY_S: Final = 60.0
_SCHEDULES_WITHIN_S: Final = 20.0  # less than `FRESH_S`


def check_of_schedules(
    find: Callable[[], Awaitable[Sequence[StuckRun]]],
    *,
    every_s: float = _SCHEDULES_EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Check]:
    """Return a check that no scheduled job is stuck; it asks Temporal once in `every_s` seconds."""
    next_look, problem = -math.inf, ""

    async def check() -> None:
        nonlocal next_look, problem
        if clock() >= next_look:
            async with asyncio.timeout(_SCHEDULES_WITHIN_S):
                stuck = await find()
            next_look, problem = clock() + every_s, "; ".join(map(str, stuck))
        if problem:
            raise ServiceFailed(SCHEDULES, problem, advice="see `sexton doctor`")

    return {SCHEDULES: check}
