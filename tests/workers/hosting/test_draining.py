"""A worker process that is told to end while it has an activity in hand: it ends that, or leaves it to another."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from infra.stack import embedded_stack
from infra.stack.stack_home import StackHome, read_live_workers
from logstore.deletion.retention import RetentionPolicy
from logstore.validated_names import TopicName
from tests.faults.real_world import MAX_STOP_S, wait_until_true
from tests.ownership.proxy import CuttableProxy
from tests.servers import create_store_settings
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton, workflow_search
from workers.client.temporal_connection import connect_client
from workers.settings import Settings

pytestmark = pytest.mark.external_service

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def storage(servers: embedded_stack.StackAddresses) -> Iterator[CuttableProxy]:
    """The object store behind a wire that can be cut."""
    proxy = CuttableProxy(servers.s3.removeprefix("http://"))
    yield proxy
    proxy.close()


@pytest.fixture
def settings(servers: embedded_stack.StackAddresses, tmp_path: Path) -> Settings:
    """A log store of this test's own."""
    return create_store_settings(servers, tmp_path, metrics_address="off", http_address="127.0.0.1:0")


@pytest.fixture
def start(settings: Settings, storage: CuttableProxy) -> Iterator[Start]:
    """Starts `sexton worker run` in a process, which reaches storage over the wire; all are killed at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def start(worker_id: str, **changes: object) -> subprocess.Popen[bytes]:
        told = settings.model_copy(update={"s3_endpoint": f"http://{storage.address}", **changes}).environment()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
        argv = [sys.executable, "-m", "workers", "worker", "run", "--worker-id", worker_id]
        log = (settings.home / f"{worker_id}.log").open("wb")
        running.append(subprocess.Popen(argv, env=inherited | told, stdout=log, stderr=log))
        log.close()
        return running[-1]

    yield start
    for one in running:
        one.kill()
        one.wait()


def _asked(settings: Settings, worker_id: str, path: str) -> tuple[int, str]:
    """Status and text of a page of the worker; 0 where nobody answers."""
    urls = [one.http_url for one in read_live_workers(StackHome.at(settings.home)) if one.worker_id == worker_id]
    with suppress(urllib.error.URLError, IndexError):
        try:
            with urllib.request.urlopen(urls[0] + path, timeout=10) as answer:  # noqa: S310 - our own worker
                return answer.status, str(answer.read(), "utf-8")
        except urllib.error.HTTPError as refused:
            return refused.code, str(refused.read(), "utf-8")
    return 0, ""


async def _ready(settings: Settings, worker_id: str) -> None:
    await wait_until_true(lambda: _asked(settings, worker_id, "/readyz")[0] == 200, f"{worker_id} is ready")


async def _flush_in_hand(settings: Settings, storage: CuttableProxy, topic: str) -> WorkflowHandle[Any, Any]:
    """Change the catalog and start a flush of it, whose request to storage hangs."""
    with open_log_store(settings) as log:
        log.catalog.topics.create_topic(TopicName.parse(topic).encoded, RetentionPolicy())
    storage.cut()
    handle = await (await Sexton.connect(settings)).flush_records("a test", "tests")
    # one is of the flush, the other of the look, every few seconds, whether the catalog is still the newest
    await wait_until_true(lambda: sum(said.startswith(b"GET /") for said in storage.held) >= 2, "its request hangs")
    return handle


async def _attempts(handle: WorkflowHandle[Any, Any]) -> list[int]:
    """Of each activity that completed, which attempt that was."""
    events = [one async for one in handle.fetch_history_events()]
    return [
        one.activity_task_started_event_attributes.attempt
        for one in events
        if one.HasField("activity_task_started_event_attributes")
    ]


def test_worker_that_drains_is_not_ready_and_ends_what_it_has_in_hand(
    settings: Settings, storage: CuttableProxy, start: Start
) -> None:
    """Its storage comes back in time: the attempt ends, and then the worker in peace."""

    async def drain() -> None:
        await workflow_search.register_search_attributes(await connect_client(settings))
        first = start("w1")
        await _ready(settings, "w1")
        handle = await _flush_in_hand(settings, storage, "persistent://a/b/one")
        first.send_signal(signal.SIGTERM)
        await wait_until_true(lambda: _asked(settings, "w1", "/readyz")[0] == 503, "it is not ready")
        assert json.loads(_asked(settings, "w1", "/readyz")[1])["phase"] == "draining"
        assert _asked(settings, "w1", "/healthz") == (200, "ok\n")
        assert first.poll() is None
        storage.mend()
        assert await asyncio.to_thread(first.wait, MAX_STOP_S) == 0
        start("w2")
        assert (await handle.result()).done.blocks > 0
        assert await _attempts(handle) == [1]

    asyncio.run(drain())


@pytest.mark.all_faults
def test_worker_that_cannot_end_what_it_has_in_hand_leaves_it_to_another(
    settings: Settings, storage: CuttableProxy, start: Start
) -> None:
    """Storage stays away for longer than the worker may drain: it ends all the same, and the next one does it."""

    async def drain() -> None:
        await workflow_search.register_search_attributes(await connect_client(settings))
        first = start("w1", drain_timeout=0)
        await _ready(settings, "w1")
        handle = await _flush_in_hand(settings, storage, "persistent://a/b/two")
        first.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, MAX_STOP_S) == 1
        assert "1 activities did not end" in (settings.home / "w1.log").read_text(encoding="utf-8")
        starting = start("w3", drain_timeout=0)
        await wait_until_true(lambda: _asked(settings, "w3", "/healthz")[0] == 200, "it starts, and storage hangs")
        starting.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(starting.wait, MAX_STOP_S) == 1
        storage.mend()
        start("w2")
        assert (await handle.result()).done.blocks > 0
        assert await _attempts(handle) == [2]

    asyncio.run(drain())


_HANGS = """
import asyncio, sys, threading
from workers.hosting.worker_process import ForcedExitTimer
from workers.hosting.error_and_subject_interceptors import RunningActivityCounter

async def work():
    asyncio.create_task(asyncio.to_thread(threading.Event().wait))
    await asyncio.sleep(0)
    end = ForcedExitTimer(0, RunningActivityCounter(), delay_s=0.1)
    end.start()
    end.start()

asyncio.run(work())
"""


def test_process_ends_although_a_request_of_no_activity_hangs() -> None:
    """Python waits for the thread of such a request, when all work is over already: without the bound for ever."""
    done = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "0 activities did not end, or a request hangs" in done.stderr
