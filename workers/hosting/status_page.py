"""`/status` and `/status.json`: the state of the store, for people and for programs. Nothing there changes anything.

It is some seconds old: however many look, the store is asked once in that time, and by one thread.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from temporalio.client import Client
from temporalio.service import RPCError

from workers.client.visibility import query_workflows
from workers.hosting.http import Pages
from workers.hosting.readiness import Readiness
from workers.hosting.store_status import MOST_ROWS, StoreStatus, WebUi
from workers.pages.texts import CONTENT_SECURITY_POLICY, format_time_s, render_template

KEPT_S: Final = 10.0
_ANSWER_S: Final = 5.0  # of each service: a page that hangs says nothing
_POLICY: Final = {
    "Content-Security-Policy": f"{CONTENT_SECURITY_POLICY}; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

Read = Callable[[], Awaitable[dict[str, Any]]]


class Kept:
    """An answer that is good for some seconds; those who ask while it is being made wait for the same one."""

    def __init__(self, read: Read, *, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Read nothing yet. It belongs to one event loop."""
        self._read, self._kept_s, self._clock = read, kept_s, clock
        self._one_at_a_time = asyncio.Lock()
        self._found: tuple[float, dict[str, Any]] | None = None

    async def get(self) -> dict[str, Any]:
        """The answer."""
        async with self._one_at_a_time:
            if self._found is None or self._clock() - self._found[0] >= self._kept_s:
                self._found = self._clock(), await self._read()
            return self._found[1]


class Bounded:
    """A read in a thread that is waited for some seconds; one that hangs holds its thread, and no other is begun."""

    def __init__(self, read: Callable[[], dict[str, Any]], within_s: float) -> None:
        """Read nothing yet. It belongs to one event loop."""
        self._read, self._within_s = read, within_s
        self._begun: asyncio.Task[dict[str, Any]] | None = None

    async def get(self) -> dict[str, Any] | None:
        """The answer; None where that takes too long."""
        if self._begun is None or self._begun.done():
            self._begun = asyncio.create_task(asyncio.to_thread(self._read))
        done, _ = await asyncio.wait([self._begun], timeout=self._within_s)
        return self._begun.result() if done else None


class StatusDocument:
    """The content of the page, read anew."""

    def __init__(
        self,
        worker_id: str,
        store: StoreStatus,
        client: Client,
        readiness: Readiness,
        ui: WebUi,
        *,
        answer_s: float = _ANSWER_S,
    ) -> None:
        """Take which worker shows it, what it asks, and how many seconds each may take to answer."""
        self._worker_id, self._client, self._sections = worker_id, client, store.names
        self._readiness, self._ui, self._answer_s = readiness, ui, answer_s
        self._catalog, self._replicas = Bounded(store.read, answer_s), Bounded(store.read_replicas, answer_s)

    async def read(self) -> dict[str, Any]:
        """All of it."""
        late = {"error": f"no answer within {self._answer_s:g} s"}
        catalog, replicas, jobs = await asyncio.gather(self._catalog.get(), self._replicas.get(), self._jobs())
        return {
            "at": format_time_s(time.time_ns() // 1000),
            "worker": self._worker(),
            **(catalog or dict.fromkeys(self._sections, late)),
            "replicas": replicas or late,
            "jobs": jobs,
        }

    def _worker(self) -> dict[str, Any]:
        checks = [
            {"name": seen.name, "ok": seen.ok, "detail": seen.detail, "required": seen.required}
            for seen in self._readiness.seen()
        ]
        return {
            "worker_id": self._worker_id,
            "ready": self._readiness.ready,
            "phase": self._readiness.phase.value,
            "checks": checks,
        }

    async def _jobs(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._answer_s):
                rows = await query_workflows(self._client, None, "Running", None, limit=MOST_ROWS)
        except (RPCError, TimeoutError) as error:
            return {"error": f"Temporal does not answer: {str(error) or f'nothing within {self._answer_s:g} s'}"}
        running = [
            {"type": one.type, "began": format_time_s(int(one.started.timestamp() * 1e6))}
            | self._ui.job(one.workflow_id, one.run_id)
            for one in rows
        ]
        return {"running": running}


def add_status(pages: Pages, document: StatusDocument) -> None:
    """Show both from now on."""
    kept = Kept(document.read)

    async def as_json(_: web.Request) -> web.StreamResponse:
        return web.json_response(await kept.get())

    async def as_page(_: web.Request) -> web.StreamResponse:
        text = render_template("status.html", status=await kept.get(), most=MOST_ROWS)
        return web.Response(text=text, content_type="text/html", headers=_POLICY)

    pages.add("/status", as_page)
    pages.add("/status.json", as_json)
