"""Readiness of a worker. A worker is ready if it polls its queues and all required services answer.

Each service has its own check, so that one hanging service does not hide other faults. ZooKeeper is not checked,
because a worker without a session can still work on topics without a bundle owner.
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

from logstore.catalog.sql_catalog import Catalog
from logstore.errors import ServiceFailed, SextonError
from logstore.identity.bucket_markers import MARKER_KEY
from workers.assembly.checked_buckets import open_primary_bucket
from workers.client.schedules import StuckRun
from workers.client.temporal_connection import explain_server_fault
from workers.settings import Settings

FRESH_S: Final = 30.0
_CHECK_INTERVAL_S: Final = 10.0
_RPC_TIMEOUT: Final = timedelta(seconds=5)

_log = logging.getLogger(__name__)

AsyncCheck = Callable[[], Awaitable[object]]
"""Check that raises an error if something is wrong."""

_NO_CHECKS: Final[Mapping[str, AsyncCheck]] = {}


class WorkerPhase(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessCheckResult:
    name: str
    ok: bool
    detail: str  # empty if `ok`
    required: bool = True  # whether the worker is unready while this check fails


class Readiness:
    """Latest check results of one process. Not thread-safe: use it only on the process's event loop."""

    def __init__(self, *, interval_s: float = _CHECK_INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase = WorkerPhase.STARTING
        self.started_s = int(time.time())
        self._interval_s, self._clock = interval_s, clock
        self._result_by_name: dict[str, tuple[float, ReadinessCheckResult]] = {}  # time and result of the check

    @property
    def is_ready(self) -> bool:
        """Whether the worker is SERVING and each required check succeeded recently. False before the first check."""
        results = self.latest_results_failing_if_stale()
        return (
            self.phase is WorkerPhase.SERVING and bool(results) and all(check.ok for check in results if check.required)
        )

    def latest_results_failing_if_stale(self) -> Sequence[ReadinessCheckResult]:
        """Return the latest results in the order of the checks. Results older than `FRESH_S` count as failed."""
        now_s = self._clock()
        return [
            result
            if now_s - checked_s <= FRESH_S
            else replace(result, ok=False, detail=f"no answer for {now_s - checked_s:.0f} s")
            for checked_s, result in self._result_by_name.values()
        ]

    async def repeat_checks(
        self, required_checks: Mapping[str, AsyncCheck], optional_checks: Mapping[str, AsyncCheck] = _NO_CHECKS
    ) -> None:
        """Repeat all checks until cancelled.

        If a check of `optional_checks` fails, the worker stays ready. These checks find problems that all workers
        share. New workers, which may solve the problem, must be able to replace the present workers.
        """
        now_s = self._clock()
        for name in [*required_checks, *optional_checks]:
            result = ReadinessCheckResult(name=name, ok=False, detail="not asked yet", required=name in required_checks)
            self._result_by_name[name] = now_s, result
        async with asyncio.TaskGroup() as tasks:
            for name, check in [*required_checks.items(), *optional_checks.items()]:
                tasks.create_task(self._repeat_check(name, check, required=name in required_checks))

    async def _repeat_check(self, name: str, check: AsyncCheck, *, required: bool) -> None:
        logged_problem = ""
        while True:
            problem = await _find_problem_of_check(check)
            result = ReadinessCheckResult(name=name, ok=not problem, detail=problem, required=required)
            self._result_by_name[name] = self._clock(), result
            # A starting worker does not poll yet. This is no fault.
            if problem and problem != logged_problem and self.phase is not WorkerPhase.STARTING:
                logged_problem = problem
                _log.warning("%s, %s: %s", "not ready" if required else "not well", name, problem)
            elif logged_problem and not problem:
                logged_problem = ""
                _log.info("%s again, %s", "ready" if required else "well", name)
            await asyncio.sleep(self._interval_s)


async def _find_problem_of_check(check: AsyncCheck) -> str:
    try:
        await check()
    except RPCError as error:
        return str(explain_server_fault(error) or error.message)
    except (SextonError, OSError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - an unexpected fault must not end the worker
        _log.exception("a check met a fault that nothing here expects")
        return type(error).__name__
    return ""


def list_required_checks(
    client: Client, settings: Settings, catalog: Catalog, workers: Sequence[Worker]
) -> dict[str, AsyncCheck]:
    """Return the checks by name: the worker polls, and Temporal, the database and the primary bucket answer."""
    bucket = open_primary_bucket(settings, fails_fast=True)

    async def require_polling() -> None:
        if not all(worker.is_running for worker in workers):
            raise ServiceFailed("worker", "it does not poll every one of its queues", advice="read its log")

    async def ask_temporal() -> None:
        request = DescribeNamespaceRequest(namespace=client.namespace)
        await client.workflow_service.describe_namespace(request, timeout=_RPC_TIMEOUT)

    blocking: dict[str, Callable[[], object]] = {
        "database": catalog.identities.catalog_id,
        "primary bucket": lambda: bucket.head(MARKER_KEY),
    }
    return {"worker": require_polling, "temporal": ask_temporal, **make_threaded_checks(blocking)}


def make_threaded_checks(blocking: Mapping[str, Callable[[], object]]) -> dict[str, AsyncCheck]:
    """Convert blocking functions to checks. Each check has its own thread, because a call may hang."""
    threads = ThreadPoolExecutor(len(blocking), "readiness")

    def to_check(function: Callable[[], object]) -> AsyncCheck:
        return lambda: asyncio.get_running_loop().run_in_executor(threads, function)

    return {name: to_check(function) for name, function in blocking.items()}


SCHEDULES: Final = "schedules"
_SCHEDULES_INTERVAL_S: Final = 60.0
_SCHEDULES_TIMEOUT_S: Final = 20.0  # less than `FRESH_S`


def make_schedules_check(
    find_stuck: Callable[[], Awaitable[Sequence[StuckRun]]],
    *,
    interval_s: float = _SCHEDULES_INTERVAL_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, AsyncCheck]:
    """Return a check, by name, that fails while a scheduled job is stuck. It asks Temporal once per interval."""
    next_check_s, problem = -math.inf, ""

    async def check() -> None:
        nonlocal next_check_s, problem
        if clock() >= next_check_s:
            async with asyncio.timeout(_SCHEDULES_TIMEOUT_S):
                stuck = await find_stuck()
            next_check_s, problem = clock() + interval_s, "; ".join(map(str, stuck))
        if problem:
            raise ServiceFailed(SCHEDULES, problem, advice="see `sexton doctor`")

    return {SCHEDULES: check}
