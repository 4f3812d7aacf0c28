"""What a worker shows over HTTP, asked as a probe and as a browser would."""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import psutil
import pytest
from aiohttp import ClientSession, web

from infra.telemetry.metrics_endpoint import start_metrics_endpoint
from logstore.errors import InvalidInput
from tests.faults.real_world import wait_until_true
from workers.hosting.page_server import ConnectionLimits, PageRouter, create_page_router, serve_pages
from workers.hosting.readiness import Readiness, WorkerPhase
from workers.hosting.worker_process import run_in_background
from workers.settings import OFF


def _shown(
    ask: Callable[[ClientSession, str], Awaitable[None]],
    *,
    address: str = "127.0.0.1:0",
    pages: PageRouter | None = None,
    bounds: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - frozen
) -> None:
    """Ask of the pages while they are served."""

    async def run() -> None:
        async with (
            serve_pages(address, pages or create_page_router(Readiness(), ""), bounds) as url,
            ClientSession() as session,
        ):
            await ask(session, url)

    asyncio.run(run())


def test_probes_tell_life_and_readiness_apart() -> None:
    """A worker that is not ready is alive: a supervisor must not restart it for that."""
    readiness = Readiness()

    async def well() -> None:
        pass

    async def ask(session: ClientSession, url: str) -> None:
        async with run_in_background(readiness.repeat_checks({"one": well})):
            await wait_until_true(
                lambda: any(seen.ok for seen in readiness.latest_results_failing_if_stale()), "the first answer"
            )
            await ask_in_each_phase(session, url)

    async def ask_in_each_phase(session: ClientSession, url: str) -> None:
        for phase, expected in ((WorkerPhase.STARTING, 503), (WorkerPhase.SERVING, 200), (WorkerPhase.DRAINING, 503)):
            readiness.phase = phase
            async with session.get(f"{url}/readyz") as answer:
                said = json.loads(await answer.text())
                assert (answer.status, said["phase"], said["ready"]) == (expected, phase, expected == 200)
            async with session.get(f"{url}/healthz") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
                assert answer.headers["Cache-Control"] == "no-store"

    _shown(ask, pages=create_page_router(readiness, ""))


def test_metrics_are_those_of_the_runtime() -> None:
    """One address is enough for probes and for Prometheus; where no metrics are, none are shown."""
    metrics = start_metrics_endpoint("127.0.0.1:0")
    metrics.runtime.metric_meter.create_counter("sexton_test_total", "A test.").add(3)

    async def ask(session: ClientSession, url: str) -> None:
        async with session.get(f"{url}/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert 'sexton_test_total{service_name="temporal-core-sdk"} 3' in await answer.text()

    async def ask_without(session: ClientSession, url: str) -> None:
        async with session.get(f"{url}/metrics") as answer:
            assert (answer.status, await answer.text()) == (404, "no page /metrics; there are: /healthz, /readyz\n")

    _shown(ask, pages=create_page_router(Readiness(), metrics.url))
    _shown(ask_without)


def test_metrics_that_do_not_answer_are_said_to_be_away() -> None:
    """The probes go on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]

    async def ask(session: ClientSession, url: str) -> None:
        async with session.get(f"{url}/metrics") as answer:
            assert answer.status == 502
            assert "do not answer" in await answer.text()
        async with session.get(f"{url}/healthz") as answer:
            assert answer.status == 200

    _shown(ask, pages=create_page_router(Readiness(), f"http://127.0.0.1:{port}/metrics"))


def test_page_that_is_added_while_the_server_runs_is_shown_and_only_read() -> None:
    """A page may need what is opened later; none takes anything, and none hides another."""
    pages = create_page_router(Readiness(), "")

    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text=request.query["name"])

    async def ask(session: ClientSession, url: str) -> None:
        pages.add("/late", page)
        async with session.get(f"{url}/late", params={"name": "x"}) as answer:
            assert (answer.status, await answer.text()) == (200, "x")
        for method in ("POST", "PUT", "DELETE"):
            async with session.request(method, f"{url}/late") as answer:
                assert answer.status == 405

    _shown(ask, pages=pages)
    with pytest.raises(ValueError, match="/late was added before"):
        pages.add("/late", page)


def test_request_by_a_foreign_name_is_refused_at_a_loopback_address() -> None:
    """A web site whose name was made to mean 127.0.0.1 reads nothing; names of this machine and addresses do."""

    async def ask(session: ClientSession, url: str) -> None:
        for name, expected in (
            ("evil.example", 403),
            ("evil.example:99999", 400),
            ("127.0.0.1:x", 400),
            ("localhost", 200),
            ("127.0.0.1:1", 200),
            ("[::1]:1", 200),
        ):
            async with session.get(f"{url}/healthz", headers={"Host": name}) as answer:
                assert answer.status == expected, name
                assert answer.headers["X-Content-Type-Options"] == "nosniff"

    _shown(ask)


def test_port_that_is_taken_gives_way_to_a_free_one_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Several workers of one machine are told the same address; `off` listens nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        port = taken.getsockname()[1]

        async def ask(session: ClientSession, url: str) -> None:
            assert not url.endswith(f":{port}")
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200

        _shown(ask, address=f"localhost:{port}")
    assert f"port {port} is taken" in caplog.text

    async def nowhere(_: ClientSession, url: str) -> None:
        assert url == ""

    _shown(nowhere, address=OFF)


@pytest.mark.parametrize("address", ["no-such-host.invalid:9465", "192.0.2.1:9465", "192.0.2.1:0"])
def test_host_that_is_not_ours_is_refused(address: str) -> None:
    """Only a taken port gives way: a wrong host is bad input, named as the setting that it is."""

    async def never(_: ClientSession, url: str) -> None:
        raise AssertionError(url)

    with pytest.raises(InvalidInput, match="http_address"):
        _shown(never, address=address)


async def _connected(url: str, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(sent)
    return reader, writer


_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", b""),
        (_HEAD, b""),
        (_HEAD + b"Content-Length: 9\r\n\r\nhalf", b"HTTP/1.1 408 "),
        (_HEAD + b"\r\n", b"HTTP/1.1 200 "),
    ],
    ids=["nothing", "half a head", "half a body", "all, and then nothing"],
)
def test_connection_whose_request_does_not_come_whole_is_ended(sent: bytes, answered: bytes) -> None:
    """It holds a file of the process: neither a client that sleeps nor one that dribbles keeps it."""

    async def ask(_session: ClientSession, url: str) -> None:
        reader, writer = await _connected(url, sent)
        told = await asyncio.wait_for(reader.read(), 30)
        assert told.startswith(answered)
        assert bool(told) is bool(answered)
        writer.close()

    _shown(ask, bounds=ConnectionLimits(read_timeout_s=0.2))


def test_client_that_does_not_take_its_answer_is_ended() -> None:
    """What is left of the answer would be kept for it."""
    pages = PageRouter()

    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(body=bytes(64 * 1024 * 1024))

    pages.add("/long", page)

    async def ask(_session: ClientSession, url: str) -> None:
        held = psutil.Process().num_fds
        before = held()
        with socket.create_connection((urlsplit(url).hostname or "", urlsplit(url).port or 0)) as client:
            client.sendall(_HEAD.replace(b"healthz", b"long") + b"\r\n")
            assert await asyncio.to_thread(client.recv, 12) == b"HTTP/1.1 200"
            assert held() == before + 2
            await wait_until_true(lambda: held() == before + 1, "the client's end alone")

    _shown(ask, pages=pages, bounds=ConnectionLimits(response_timeout_s=2))


def test_connections_that_send_nothing_leave_room_for_one_that_asks() -> None:
    """A probe is answered at once, and the oldest that waits has to go; more than the bound stay open at no time."""

    async def ask(_session: ClientSession, url: str) -> None:
        silent = [await _connected(url) for _ in range(20)]
        await wait_until_true(lambda: sum(reader.at_eof() for reader, _ in silent) == 16, "four of the silent ones")
        assert [reader.at_eof() for reader, _ in silent] == [True] * 16 + [False] * 4
        reader, writer = await _connected(url, _HEAD + b"\r\n")
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 200 ")
        await wait_until_true(silent[16][0].at_eof, "the oldest that was left")
        for _, one in [*silent, (reader, writer)]:
            one.close()

    _shown(ask, bounds=ConnectionLimits(max_connections=4, read_timeout_s=600))


def test_connection_for_which_there_is_no_room_among_answers_is_refused() -> None:
    """An answer that is being made is not broken off for a newcomer."""
    pages, held, begun = PageRouter(), asyncio.Event(), list[str]()

    async def page(request: web.Request) -> web.StreamResponse:
        begun.append(request.path)
        await held.wait()
        return web.Response(text="at last")

    pages.add("/slow", page)

    async def ask(_session: ClientSession, url: str) -> None:
        asked = [await _connected(url, _HEAD.replace(b"healthz", b"slow") + b"\r\n") for _ in range(2)]
        await wait_until_true(lambda: len(begun) == 2, "both answers to be made")
        reader, writer = await _connected(url)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        held.set()
        for answer, _ in asked:
            assert (await asyncio.wait_for(answer.read(), 30)).endswith(b"at last")
        for _, one in [*asked, (reader, writer)]:
            one.close()

    _shown(ask, pages=pages, bounds=ConnectionLimits(max_connections=2))


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"nothing that is HTTP\r\n\r\n",
        b"GET /healthz HTTP/9.9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nBad Header\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone",
    ],
    ids=["TLS", "no HTTP", "version", "header", "length", "long", "address", "chunks", "gzip"],
)
def test_request_that_is_no_http_fills_no_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A port scanner, or any other client, could write as much as it likes."""

    async def ask(_session: ClientSession, url: str) -> None:
        reader, writer = await _connected(url, sent)
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.")
        writer.close()

    with caplog.at_level(logging.INFO):
        _shown(ask)
    assert [record.getMessage() for record in caplog.records] == []


def test_fault_of_a_page_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback: it is ours."""
    pages = PageRouter()

    async def page(_: web.Request) -> web.StreamResponse:
        raise RuntimeError("planned")

    pages.add("/faulty", page)

    async def ask(session: ClientSession, url: str) -> None:
        async with session.get(f"{url}/faulty") as answer:
            assert answer.status == 500

    _shown(ask, pages=pages)
    assert "planned" in caplog.text
