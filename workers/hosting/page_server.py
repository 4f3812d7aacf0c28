"""HTTP server of a worker: probes, metrics, read-only pages, and a codec server for Temporal's Web UI.

Pages may show names of topics. Only people who may see these names may have access to the address. On a loopback
address, a request must name `localhost` or an IP address as its host. Otherwise a web site could read pages through a
visitor's browser by DNS rebinding. A connection ends after one request, to free its file descriptor.

A browser asks the codec server to decrypt workflow payloads (`POST /codec/decode`):

1. The endpoint exists only if `codec_origin` names the Web UI. It is served only on loopback addresses and refuses
   other origins. Everyone who can send a request can read workflow payloads.
2. The endpoint encrypts nothing, so nobody can start jobs through it.

Source: Kubernetes, "Liveness, Readiness, and Startup Probes"; OWASP, "DNS rebinding"; Temporal, "Codec Server"; WHATWG
Fetch, "CORS protocol".
"""

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from aiohttp.http_exceptions import HttpProcessingError
from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads

from infra.telemetry.metrics_endpoint import format_host_port, resolve_ip_address_and_port
from logstore.errors import InvalidInput
from workers.client.data_converter import EncryptingCodec
from workers.hosting.readiness import Readiness
from workers.settings import OFF, Settings

_SETTING: Final = "http_address"
MAX_REQUEST_BYTES: Final = 1024 * 1024  # the codec server gets all workflow payloads of a page in one request
_RELAY_TIMEOUT: Final = ClientTimeout(total=10)
_SHUTDOWN_TIMEOUT_S: Final = 1.0  # time for running requests when the process ends
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

_log = logging.getLogger(__name__)
_server_log: Final = logging.getLogger(f"{__name__}.server")


def _is_not_about_malformed_request(record: logging.LogRecord) -> bool:
    """Return False for log records about malformed requests. Otherwise clients could fill the log with tracebacks."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_server_log.addFilter(_is_not_about_malformed_request)

RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Handler of one request, on the worker's event loop. Handlers must make blocking calls in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_connections: int = 100  # above it, the oldest connections without a complete request are closed
    read_timeout_s: float = 10.0  # from the connection to the end of the request's head, and once more for the body
    response_timeout_s: float = 60.0  # from the complete request to the end of the response


class PageRouter:
    def __init__(self) -> None:
        self._page_by_path: dict[str, tuple[RequestHandler, Collection[str]]] = {}

    def add(self, path: str, page: RequestHandler, *, methods: Collection[str] = ("GET", "HEAD")) -> None:
        if path in self._page_by_path:
            raise ValueError(f"a page at {path} was added before")
        self._page_by_path[path] = page, methods

    async def respond(self, request: web.Request) -> web.StreamResponse:
        if request.path not in self._page_by_path:
            raise web.HTTPNotFound(text=f"no page {request.path}; there are: {', '.join(sorted(self._page_by_path))}\n")
        page, methods = self._page_by_path[request.path]
        if request.method not in methods:
            raise web.HTTPMethodNotAllowed(request.method, methods)
        return await page(request)


def create_page_router(readiness: Readiness, metrics_url: str) -> PageRouter:
    """Return a router with the probes, and with the metrics unless `metrics_url` is empty."""
    pages = PageRouter()

    async def report_health(_: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def report_readiness(_: web.Request) -> web.StreamResponse:
        checks = [asdict(result) for result in readiness.latest_results_failing_if_stale()]
        document = {"ready": readiness.is_ready, "phase": readiness.phase, "checks": checks}
        return web.json_response(document, status=200 if readiness.is_ready else 503)

    pages.add("/healthz", report_health)
    pages.add("/readyz", report_readiness)
    if metrics_url:
        pages.add("/metrics", _make_forwarding_handler(metrics_url))
    return pages


_LIMITS: Final = ConnectionLimits()


@asynccontextmanager
async def serve_pages(address: str, pages: PageRouter, limits: ConnectionLimits = _LIMITS) -> AsyncIterator[str]:
    """Serve the pages while the block runs. Yield their base URL, or "" if the server is off.

    `address` is `host:port` or `off`. Port 0 means any free port. If the port is taken, a warning is logged and a free
    port is used, so several workers of one machine may share the setting. Pages may be added during the block.

    Raises:
        InvalidInput: The host is not an address of this machine, or this user may not use the port.
    """
    if address == OFF:
        yield ""
        return
    listener = _listen_at_address_or_free_port(address)
    host, port = listener.getsockname()[:2]
    gate = _ConnectionLimiter(limits)
    app = web.Application(
        middlewares=[_add_security_headers_and_close, gate.limit_request_and_response_time],
        client_max_size=MAX_REQUEST_BYTES,
    )
    if ipaddress.ip_address(host).is_loopback:
        app.middlewares.append(_refuse_host_names_except_localhost)
    app.router.add_route("*", "/{path:.*}", pages.respond)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_server_log,
        handle_signals=False,
        shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        keepalive_timeout=limits.read_timeout_s,  # aiohttp also applies this timeout to the first request
        lingering_time=_SHUTDOWN_TIMEOUT_S,  # time to read the rest of a refused request
    )
    await runner.setup()
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: gate.accept_and_close_oldest(runner), sock=listener
        )
        with closing(server):
            yield f"http://{format_host_port(host, port)}"
    finally:
        await runner.cleanup()


class _ConnectionLimiter:
    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._deadline_by_connection: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}  # after a whole request

    def accept_and_close_oldest(self, runner: web.AppRunner) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection. Above the limit, close the oldest with an incomplete request."""
        server = runner.server
        if server is None:
            return _ClosedConnection()
        connections = [connection for connection in server.connections if connection.transport is not None]
        for closed in self._deadline_by_connection.keys() - set(connections):
            self._deadline_by_connection.pop(closed).cancel()
        excess = len(connections) - self._limits.max_connections + 1
        waiting = [connection for connection in connections if connection not in self._deadline_by_connection]
        oldest = waiting[: max(excess, 0)]  # the server keeps connections in the order of their start
        for connection in oldest:
            connection.force_close()
        return _ClosedConnection() if len(oldest) < excess else server()

    @web.middleware
    async def limit_request_and_response_time(
        self, request: web.Request, handler: RequestHandler
    ) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._limits.read_timeout_s):
                await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the request was not there in time\n") from None
        except (web.RequestPayloadError, ConnectionError):
            raise web.HTTPBadRequest(text="the request cannot be read\n") from None
        if request.transport is not None:  # the timer also ends the connection of a client that does not read
            call_later = asyncio.get_running_loop().call_later
            deadline = call_later(self._limits.response_timeout_s, request.transport.abort)
            self._deadline_by_connection[request.protocol] = deadline
        return await handler(request)


class _ClosedConnection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _listen_at_address_or_free_port(address: str) -> socket.socket:
    host, port = resolve_ip_address_and_port(_SETTING, address)
    try:
        return _bind(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise InvalidInput(_SETTING, expected=f"an address to listen at ({error})", found=address) from error
    listener = _bind(host, 0)
    _log.warning("http: port %s is taken, so probes and pages are at port %s", port, listener.getsockname()[1])
    return listener


def _bind(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


@web.middleware
async def _add_security_headers_and_close(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update(_HEADERS)
        error.force_close()
        raise
    response.force_close()
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@web.middleware
async def _refuse_host_names_except_localhost(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
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


def _make_forwarding_handler(url: str) -> RequestHandler:
    async def forward_to_url(_: web.Request) -> web.StreamResponse:
        try:
            async with ClientSession(timeout=_RELAY_TIMEOUT) as session, session.get(url) as response:
                body = await response.read()
        except (ClientError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=f"the metrics of this process do not answer: {error}\n") from error
        return web.Response(body=body, headers={"Content-Type": response.headers["Content-Type"]})

    return forward_to_url


_CODEC_SETTING: Final = "codec_origin"
_CODEC_PATH: Final = "/codec/decode"
_ALLOWED_HEADERS: Final = "content-type, x-namespace, authorization"
_PREFLIGHT_MAX_AGE_S: Final = "600"
_MAX_PAYLOADS: Final = 10_000
_MAX_OPENING_BRACKETS: Final = 2 * _MAX_PAYLOADS + 2  # two per workflow payload; one per document and list


def add_payload_decode_endpoint(pages: PageRouter, codec: EncryptingCodec, settings: Settings) -> None:
    """Add the endpoint if `codec_origin` is set. Raise `InvalidInput` if other machines can reach `http_address`."""
    if not settings.codec_origin:
        return
    address = settings.http_address
    host = "" if address == OFF else resolve_ip_address_and_port("http_address", address)[0]
    if not host or not ipaddress.ip_address(host).is_loopback:
        rule = "none, because http_address is no loopback address"
        raise InvalidInput(_CODEC_SETTING, expected=rule, found=settings.codec_origin)
    parts = urlsplit(settings.codec_origin)
    pages.add(
        _CODEC_PATH,
        _make_payload_decode_handler(codec, f"{parts.scheme}://{parts.netloc}"),
        methods=("OPTIONS", "POST"),
    )


def _decrypt_payloads(codec: EncryptingCodec, body: bytes) -> str:
    if body.count(b"{") + body.count(b"[") > _MAX_OPENING_BRACKETS:  # checked before the parser builds objects
        raise InvalidInput("payloads", expected=f"at most {_MAX_PAYLOADS:,}", found="more")
    decoded = Payloads(payloads=codec.decrypt(json_format.Parse(body, Payloads()).payloads))
    return json_format.MessageToJson(decoded)


def _make_payload_decode_handler(codec: EncryptingCodec, origin: str) -> RequestHandler:
    lock = asyncio.Lock()

    async def page(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Origin") not in {None, origin}:
            raise web.HTTPForbidden(text="this origin may not ask: see the setting codec_origin\n")
        headers = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        if request.method == "OPTIONS":
            allowed = {"Methods": "POST", "Headers": _ALLOWED_HEADERS}
            headers |= {f"Access-Control-Allow-{name}": value for name, value in allowed.items()}
            return web.Response(status=204, headers=headers | {"Access-Control-Max-Age": _PREFLIGHT_MAX_AGE_S})
        body = await request.read()
        try:
            async with lock:
                decoded = await asyncio.to_thread(_decrypt_payloads, codec, body)
        except (json_format.ParseError, InvalidInput) as error:
            raise web.HTTPBadRequest(text=f"{error}\n", headers=headers) from None
        except (ValueError, RecursionError):
            raise web.HTTPBadRequest(text="no payloads as JSON in UTF-8\n", headers=headers) from None
        return web.json_response(text=decoded, headers=headers)

    return page
