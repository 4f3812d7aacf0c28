"""What a worker shows over HTTP: probes, metrics, and pages that only read.

`/healthz` answers 200 while the process and its event loop live: a supervisor restarts what does not answer it.
`/readyz` answers 200 while the worker takes work and its services answer, otherwise 503:
`workers/hosting/readiness.py`. `/metrics` is what the Prometheus endpoint of the runtime says. Other modules add pages
of their own: `Pages`.

Pages may show names of topics, so persons who may not see these must not reach the address. Where it is a loopback
address, a request by any other name than `localhost` or an IP address is refused: a web site whose name was made to
mean this machine could otherwise have its visitors' browsers read it.

A connection holds a file of the process. So it serves one request, which must be there whole within seconds, and there
are only so many connections at once: `Bounds`.

Source: Kubernetes, "Liveness, Readiness, and Startup Probes"; OWASP, "DNS rebinding".
"""

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from aiohttp.http_exceptions import HttpProcessingError

from infra.telemetry.endpoints import format_host_port, resolve_address
from logstore.errors import InvalidInput
from workers.hosting.readiness import Readiness
from workers.settings import OFF

_SETTING: Final = "http_address"
MAX_REQUEST_BYTES: Final = 1024 * 1024  # payloads that are to be decrypted come in one request
_RELAY_WITHIN: Final = ClientTimeout(total=10)
_LEAVE_S: Final = 1.0  # for requests in hand, when the process ends
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

_log = logging.getLogger(__name__)
_server_log: Final = logging.getLogger(f"{__name__}.server")


def _is_fault_of_ours(record: logging.LogRecord) -> bool:
    """Whether a log record of the server is about anything but a request that is no HTTP.

    The server logs a traceback for each such request, so that any client could fill the log.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_server_log.addFilter(_is_fault_of_ours)

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Answers one request. It runs on the worker's event loop: what blocks goes to a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What clients may hold of a process. A probe needs none of it for longer than a moment."""

    connections: int = 100  # beyond these, the oldest one that has sent no whole request ends
    read_within_s: float = 10.0  # a request, from the connection's start on; the same again for its body
    answered_within_s: float = 60.0  # from the request on, until the client has taken all


class Pages:
    """The pages of one process, by path; none changes anything."""

    def __init__(self) -> None:
        """None yet."""
        self._pages: dict[str, tuple[Page, Collection[str]]] = {}

    def add(self, path: str, page: Page, *, methods: Collection[str] = ("GET", "HEAD")) -> None:
        """Show a page at a path such as `/status`, from now on, also where the server runs already."""
        if path in self._pages:
            raise ValueError(f"a page at {path} was added before")
        self._pages[path] = page, methods

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The page at the request's path.

        Raises:
            HTTPNotFound: There is none; names those that exist.
            HTTPMethodNotAllowed: The page is not asked in this way.
        """
        if request.path not in self._pages:
            raise web.HTTPNotFound(text=f"no page {request.path}; there are: {', '.join(sorted(self._pages))}\n")
        page, methods = self._pages[request.path]
        if request.method not in methods:
            raise web.HTTPMethodNotAllowed(request.method, methods)
        return await page(request)


def new_pages(readiness: Readiness, metrics_url: str) -> Pages:
    """The pages that every worker has: probes, and metrics where there are any."""
    pages = Pages()
    pages.add("/healthz", _healthz)
    pages.add("/readyz", _readyz(readiness))
    if metrics_url:
        pages.add("/metrics", _relayed(metrics_url))
    return pages


_BOUNDS: Final = Bounds()


@asynccontextmanager
async def serving(address: str, pages: Pages, bounds: Bounds = _BOUNDS) -> AsyncIterator[str]:
    """Serve the pages while the block runs; what it is given is the base of their URLs, "" where nothing listens.

    Args:
        address: `host:port`, or `off`. Port 0 is any free one, and a port that is taken gives way to a free one, with a
            warning: several workers on one machine are told the same address.
        pages: What is shown; more may be added later.
        bounds: Of its connections.

    Raises:
        InvalidInput: The host is none of this machine, or the port may not be used by this user.
    """
    if address == OFF:
        yield ""
        return
    listener = _listener(address)
    host, port = listener.getsockname()[:2]
    gate = _Gate(bounds)
    app = web.Application(middlewares=[_plain, gate.read_whole], client_max_size=MAX_REQUEST_BYTES)
    if ipaddress.ip_address(host).is_loopback:
        app.middlewares.append(_by_address)
    app.router.add_route("*", "/{path:.*}", pages.answer)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_server_log,
        handle_signals=False,
        shutdown_timeout=_LEAVE_S,
        keepalive_timeout=bounds.read_within_s,  # of the first request as well
        lingering_time=_LEAVE_S,  # for the rest of a request that was refused
    )
    await runner.setup()
    try:
        server = await asyncio.get_running_loop().create_server(lambda: gate.admitted(runner), sock=listener)
        with closing(server):
            yield f"http://{format_host_port(host, port)}"
    finally:
        await runner.cleanup()


class _Gate:
    """Lets connections in, and ends those that take too long."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._answered: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}  # whose request is there, and their ends

    def admitted(self, runner: web.AppRunner) -> asyncio.BaseProtocol:
        """The protocol of a new connection; room for it is made among those that wait for a request."""
        server = runner.server
        if server is None:
            return _Refused()
        found = [one for one in server.connections if one.transport is not None]  # the oldest first
        for gone in self._answered.keys() - set(found):
            self._answered.pop(gone).cancel()
        excess = len(found) - self._bounds.connections + 1
        waiting = [one for one in found if one not in self._answered][: max(excess, 0)]
        for one in waiting:
            one.force_close()
        return _Refused() if len(waiting) < excess else server()

    @web.middleware
    async def read_whole(self, request: web.Request, handler: Page) -> web.StreamResponse:
        """Read the request before it is answered, and see that the connection ends."""
        try:
            async with asyncio.timeout(self._bounds.read_within_s):
                await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the request was not there in time\n") from None
        except (web.RequestPayloadError, ConnectionError):
            raise web.HTTPBadRequest(text="the request cannot be read\n") from None
        if request.transport is not None:  # the end is also for a client that does not take what it asked for
            end = asyncio.get_running_loop().call_later(self._bounds.answered_within_s, request.transport.abort)
            self._answered[request.protocol] = end
        return await handler(request)


class _Refused(asyncio.Protocol):
    """A connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End it."""
        transport.close()


def _listener(address: str) -> socket.socket:
    host, port = resolve_address(_SETTING, address)
    try:
        return _bound(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise InvalidInput(_SETTING, expected=f"an address to listen at ({error})", found=address) from error
    listener = _bound(host, 0)
    _log.warning("http: port %s is taken, so probes and pages are at port %s", port, listener.getsockname()[1])
    return listener


def _bound(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


@web.middleware
async def _plain(request: web.Request, handler: Page) -> web.StreamResponse:
    """No answer is kept by anybody, nor taken for something else than it says, and no request follows on another."""
    try:
        answer = await handler(request)
    except web.HTTPException as refused:
        refused.headers.update(_HEADERS)
        refused.force_close()
        raise
    answer.force_close()
    for name, value in _HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


@web.middleware
async def _by_address(request: web.Request, handler: Page) -> web.StreamResponse:
    """Refuse a request by a name that is not this machine's own."""
    try:
        name = request.url.host or ""
    except ValueError:
        raise web.HTTPBadRequest(text="the host is none, or its port\n") from None
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if name != "localhost":
            raise web.HTTPForbidden(text="ask by localhost or by an IP address\n") from None
    return await handler(request)


async def _healthz(_: web.Request) -> web.StreamResponse:
    return web.Response(text="ok\n")


def _readyz(readiness: Readiness) -> Page:
    async def page(_: web.Request) -> web.StreamResponse:
        checks = [
            {"name": seen.name, "ok": seen.ok, "detail": seen.detail, "required": seen.required}
            for seen in readiness.seen()
        ]
        document = {"ready": readiness.ready, "phase": readiness.phase, "checks": checks}
        return web.json_response(document, status=200 if readiness.ready else 503)

    return page


def _relayed(url: str) -> Page:
    async def page(_: web.Request) -> web.StreamResponse:
        try:
            async with ClientSession(timeout=_RELAY_WITHIN) as session, session.get(url) as found:
                shown = await found.read()
        except (ClientError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=f"the metrics of this process do not answer: {error}\n") from error
        return web.Response(body=shown, headers={"Content-Type": found.headers["Content-Type"]})

    return page
