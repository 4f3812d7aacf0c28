"""Read-only pages `/status` and `/status.json`: the state of the store, for people and for programs.

The state is read at most once in ten seconds, for all clients together. A page may therefore be ten seconds old.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from temporalio.client import Client
from temporalio.service import RPCError

from workers.client.workflow_search import query_workflows
from workers.hosting.page_server import PageRouter
from workers.hosting.readiness import Readiness
from workers.hosting.store_status import MAX_ROWS_PER_LIST, StoreStatusReader, WebUiLinks
from workers.human_readable_values import format_time_to_second
from workers.pages.html_templates import CONTENT_SECURITY_POLICY, render_template

_MAX_AGE_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 5.0  # for the answer of each service
_POLICY: Final = {
    "Content-Security-Policy": f"{CONTENT_SECURITY_POLICY}; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

Read = Callable[[], Awaitable[dict[str, Any]]]


class CachedDocument:
    """Cache of a document for some seconds. Concurrent callers share one read. Use it only on one event loop."""

    def __init__(
        self, read: Read, *, max_age_s: float = _MAX_AGE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._max_age_s, self._clock = read, max_age_s, clock
        self._lock = asyncio.Lock()
        self._cached: tuple[float, dict[str, Any]] | None = None

    async def get(self) -> dict[str, Any]:
        async with self._lock:
            if self._cached is None or self._clock() - self._cached[0] >= self._max_age_s:
                self._cached = self._clock(), await self._read()
            return self._cached[1]


class TimeLimitedReader:
    """Reader in a thread, with a timeout. While a read hangs, no other read starts. Use it only on one event loop."""

    def __init__(self, read: Callable[[], dict[str, Any]], timeout_s: float) -> None:
        self._read, self._timeout_s = read, timeout_s
        self._running: asyncio.Task[dict[str, Any]] | None = None

    async def get(self) -> dict[str, Any] | None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(self._read))
        done, _ = await asyncio.wait([self._running], timeout=self._timeout_s)
        return self._running.result() if done else None


class StatusReader:
    def __init__(
        self,
        worker_id: str,
        store: StoreStatusReader,
        client: Client,
        readiness: Readiness,
        ui: WebUiLinks,
        *,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> None:
        self._worker_id, self._client, self._sections = worker_id, client, store.section_names
        self._readiness, self._ui, self._answer_timeout_s = readiness, ui, answer_timeout_s
        self._catalog = TimeLimitedReader(store.read, answer_timeout_s)
        self._replicas = TimeLimitedReader(store.read_replicas, answer_timeout_s)

    async def read(self) -> dict[str, Any]:
        timeout = {"error": f"no answer within {self._answer_timeout_s:g} s"}
        catalog, replicas, jobs = await asyncio.gather(
            self._catalog.get(), self._replicas.get(), self._read_running_jobs()
        )
        return {
            "at": format_time_to_second(time.time_ns() // 1000),
            "worker": {
                "worker_id": self._worker_id,
                "ready": self._readiness.is_ready,
                "phase": self._readiness.phase.value,
                "checks": [result.to_json() for result in self._readiness.latest_results_failing_if_stale()],
            },
            **(catalog or dict.fromkeys(self._sections, timeout)),
            "replicas": replicas or timeout,
            "jobs": jobs,
        }

    async def _read_running_jobs(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                rows = await query_workflows(self._client, None, "Running", None, limit=MAX_ROWS_PER_LIST)
        except (RPCError, TimeoutError) as error:
            return {
                "error": f"Temporal does not answer: {str(error) or f'nothing within {self._answer_timeout_s:g} s'}"
            }
        running = [
            {"type": row.type, "began": format_time_to_second(int(row.started.timestamp() * 1e6))}
            | self._ui.link_job(row.workflow_id, row.run_id)
            for row in rows
        ]
        return {"running": running}


def add_status_pages(pages: PageRouter, status_reader: StatusReader) -> None:
    cached = CachedDocument(status_reader.read)

    async def respond_json(_: web.Request) -> web.StreamResponse:
        return web.json_response(await cached.get())

    async def respond_page(_: web.Request) -> web.StreamResponse:
        text = render_template("status.html", status=await cached.get(), most=MAX_ROWS_PER_LIST)
        return web.Response(text=text, content_type="text/html", headers=_POLICY)

    pages.add("/status", respond_page)
    pages.add("/status.json", respond_json)
