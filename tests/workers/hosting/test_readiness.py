"""What the probes are told of a worker's services."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.errors import ServiceFailed
from tests.faults.real_world import wait_until_true
from workers.client.schedules import StuckRun
from workers.hosting.readiness import FRESH_S, Readiness, WorkerPhase, make_schedules_check, make_threaded_checks
from workers.hosting.worker_process import run_in_background


class Service:
    """One that answers, refuses, or says nothing."""

    def __init__(self) -> None:
        """It answers."""
        self.fault: Exception | None = None
        self.silent = False
        self.asked = 0

    async def ask(self) -> None:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.fault:
            raise self.fault


async def _until(condition: Callable[[], bool]) -> None:
    await wait_until_true(condition, "the condition")


def _details(readiness: Readiness) -> dict[str, str]:
    return {seen.name: seen.detail for seen in readiness.latest_results_failing_if_stale()}


def test_worker_is_ready_while_it_serves_and_all_services_answer() -> None:
    """Neither before it serves nor while it drains, and not while one of its services refuses: that one is named."""

    async def check() -> None:
        readiness, one, other = Readiness(interval_s=0.001), Service(), Service()
        async with run_in_background(readiness.repeat_checks({"one": one.ask, "other": other.ask})):
            await _until(lambda: all(seen.ok for seen in readiness.latest_results_failing_if_stale()) and one.asked > 0)
            before = readiness.is_ready
            readiness.phase = WorkerPhase.SERVING
            assert (before, readiness.is_ready) == (False, True), readiness.latest_results_failing_if_stale()
            other.fault = ServiceFailed("other", "it is away", advice="wait")
            await _until(lambda: not readiness.is_ready)
            assert "it is away" in _details(readiness)["other"]
            assert _details(readiness)["one"] == ""
            other.fault = RuntimeError("a bug")
            await _until(lambda: _details(readiness)["other"] == "RuntimeError")
            other.fault = None
            await _until(lambda: readiness.is_ready)
            readiness.phase = WorkerPhase.DRAINING
            assert not readiness.is_ready

    asyncio.run(check())


def test_problem_is_logged_once_the_worker_has_started(caplog: pytest.LogCaptureFixture) -> None:
    """Before that it does not poll yet, which is no fault; a problem that stays is told then."""

    async def check() -> None:
        readiness, service = Readiness(interval_s=0.001), Service()
        service.fault = ServiceFailed("worker", "it does not poll", advice="read its log")
        async with run_in_background(readiness.repeat_checks({"worker": service.ask})):
            await _until(lambda: service.asked > 2)
            assert not caplog.records
            readiness.phase = WorkerPhase.SERVING
            await _until(lambda: bool(caplog.records))
            service.fault = None
            await _until(lambda: readiness.is_ready and "ready again" in caplog.text)

    caplog.set_level("INFO", "workers.hosting.readiness")
    asyncio.run(check())
    assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]


def test_worker_whose_service_has_not_been_asked_is_not_ready() -> None:
    """No answer yet is no good answer."""

    async def check() -> None:
        readiness, service = Readiness(), Service()
        readiness.phase, service.silent = WorkerPhase.SERVING, True
        async with run_in_background(readiness.repeat_checks({"one": service.ask})):
            await _until(lambda: service.asked == 1)
            assert not readiness.is_ready
            assert _details(readiness) == {"one": "not asked yet"}

    asyncio.run(check())


def test_service_that_hangs_makes_its_worker_unready_after_a_while_and_hides_no_other() -> None:
    """Its last good answer counts for so long and no longer, whatever the question waits for."""

    async def check() -> None:
        now = [0.0]
        readiness, hangs, lives = Readiness(interval_s=0.001, clock=lambda: now[0]), Service(), Service()
        readiness.phase = WorkerPhase.SERVING
        async with run_in_background(readiness.repeat_checks({"hangs": hangs.ask, "lives": lives.ask})):
            await _until(lambda: readiness.is_ready)
            hangs.silent = True
            before = hangs.asked
            await _until(lambda: hangs.asked > before)
            now[0] += FRESH_S
            asked = lives.asked
            await _until(lambda: lives.asked > asked + 1)
            assert readiness.is_ready, readiness.latest_results_failing_if_stale()
            now[0] += 1
            assert _details(readiness)["hangs"] == f"no answer for {FRESH_S + 1:.0f} s"
            await _until(lambda: _details(readiness)["lives"] == "")
            await _until(lambda: not readiness.is_ready)

    asyncio.run(check())


def test_requests_that_hang_elsewhere_hide_no_service() -> None:
    """A page or a gauge that waits for a server that hangs holds a thread of the loop, in the end each of them."""
    mended = threading.Event()

    async def check() -> None:
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        hangs = loop.run_in_executor(None, mended.wait)
        questions: dict[str, Callable[[], object]] = {
            "hangs": mended.wait,
            "lives": lambda: loop.call_soon_threadsafe(answered.set),
        }
        readiness = Readiness()
        try:
            async with run_in_background(readiness.repeat_checks(make_threaded_checks(questions))):
                await asyncio.wait_for(answered.wait(), 60)
        finally:
            mended.set()
            await hangs

    asyncio.run(check())


def test_probes_ask_no_service() -> None:
    """However many come, the services are asked at their own pace."""

    async def check() -> None:
        readiness, service = Readiness(), Service()
        async with run_in_background(readiness.repeat_checks({"one": service.ask})):
            await _until(lambda: service.asked == 1)
            for _ in range(100):
                readiness.latest_results_failing_if_stale()
                await asyncio.sleep(0)
            assert service.asked == 1

    asyncio.run(check())


def test_what_is_only_reported_is_named_and_leaves_the_worker_ready() -> None:
    """A scheduled job that is stuck is no fault of a worker: none could be replaced by one that mends it."""

    async def check() -> None:
        readiness, needed, other = Readiness(interval_s=0.001), Service(), Service()
        other.fault = ServiceFailed("schedules", "a run is stuck", advice="start it anew")
        readiness.phase = WorkerPhase.SERVING
        async with run_in_background(readiness.repeat_checks({"needed": needed.ask}, {"other": other.ask})):
            await _until(lambda: readiness.is_ready and other.asked > 1)
            assert "a run is stuck" in _details(readiness)["other"]
            assert [seen.required for seen in readiness.latest_results_failing_if_stale()] == [True, False]
            needed.fault = ServiceFailed("needed", "it is away", advice="wait")
            await _until(lambda: not readiness.is_ready)

    asyncio.run(check())


def test_schedules_are_looked_at_once_in_a_while_and_the_answer_stays() -> None:
    """Each look asks Temporal a dozen questions. A look that fails is repeated at once."""
    now, looks = [0.0], list[float]()
    stuck = StuckRun(schedule_id="sexton-sweep", workflow_id="sweep-1", run_id="r", problem="it fails")
    found: list[StuckRun] = []

    async def find() -> list[StuckRun]:
        looks.append(now[0])
        if now[0] == 120:
            raise TimeoutError
        return list(found)

    (check,) = make_schedules_check(find, interval_s=60, clock=lambda: now[0]).values()

    async def answers() -> None:
        await check()
        found.append(stuck)
        now[0] = 59
        await check()
        now[0] = 60
        for _ in range(2):
            with pytest.raises(ServiceFailed, match="sexton-sweep: it fails; `sexton schedule restart sexton-sweep`"):
                await check()
        now[0] = 120
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await check()
        found.clear()
        now[0] = 121
        await check()

    asyncio.run(answers())
    assert looks == [0, 60, 120, 120, 121]
