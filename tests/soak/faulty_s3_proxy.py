"""A wire between the product and S3 that fails as networks and stores do: errors, lost answers, slowness, lies.

It speaks just enough HTTP to know where a request ends. Signatures stay valid, because the host that a client signed
is passed on as it is.
"""

import asyncio
import random
import re
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

_MAX_HEAD_BYTES: Final = 1 << 20
_ERROR_BODY: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>a fault of the soak</Message></Error>'
)
_ERRORS: Final = ((503, b"SlowDown"), (500, b"InternalError"), (503, b"ServiceUnavailable"))


@dataclass
class ProxyFaults:
    """What the wire does to requests; any thread may change it."""

    errors: float = 0.0  # share of requests that are answered with an error, and not passed on
    lost: float = 0.0  # share of requests that are passed on, and whose answer is not
    max_delay_s: float = 0.0  # before each request is passed on, up to so long
    unlisted: dict[str, int] = field(default_factory=dict)  # by prefix of keys: so many listings answer without them
    met: Counter[str] = field(default_factory=Counter)  # requests, by what became of them


class FaultyS3Proxy:
    """Listens on a port of this machine and passes requests on to an S3 server."""

    def __init__(self, target: str, *, seed: int = 0) -> None:
        """Begin; `target` is `host:port`."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.weather = ProxyFaults()
        self._dice = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    def close(self) -> None:
        """End it and all that goes through it."""
        asyncio.run_coroutine_threadsafe(self._stop_serving(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve_connection, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)

    async def _stop_serving(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client; a server that goes away takes it along."""
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        server_connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            server_connection = await asyncio.open_connection(*self._target, limit=_MAX_HEAD_BYTES)
            while await self._exchange_request(reader, writer, *server_connection):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            self.weather.met["cut off"] += 1
        except asyncio.CancelledError:
            pass  # the end of the wire
        finally:
            self._tasks.discard(task)
            for connection in (writer, *(server_connection[1:] if server_connection else ())):
                with suppress(OSError):
                    connection.close()

    async def _exchange_request(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False where the connection is to be closed."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False  # between two requests a client may go
        fields = _parse_header_fields(head)
        if "100-continue" in fields.get("expect", ""):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
            head = _remove_expect_header(head)
        body = await _read_body(reader, fields)
        fate = self._draw_fate()
        if self.weather.max_delay_s:
            await asyncio.sleep(self._dice.uniform(0, self.weather.max_delay_s))
        self.weather.met[fate] += 1
        if fate == "answered with an error":
            writer.write(self._error_answer(head))
            await writer.drain()
            return True
        requests.write(head + body)
        await requests.drain()
        answer, keeps_connection = await _read_answer(answers, bodiless=head.startswith(b"HEAD "))
        if fate == "answer lost":
            return False
        if hidden_prefixes := self._take_hidden_prefixes(head):
            answer = _remove_listed_keys(answer, hidden_prefixes)
        writer.write(answer)
        await writer.drain()
        return keeps_connection

    def _draw_fate(self) -> str:
        drawn = self._dice.random()
        if drawn < self.weather.errors:
            return "answered with an error"
        return "answer lost" if drawn < self.weather.errors + self.weather.lost else "passed on"

    def _take_hidden_prefixes(self, head: bytes) -> tuple[str, ...]:
        """Return the prefixes of keys that this request, if it is a listing, does not show, and count it."""
        method, target = head.split(b" ", 2)[:2]
        query = parse_qs(urlsplit(target.decode()).query)
        if method != b"GET" or "list-type" not in query:
            return ()
        prefix = query.get("prefix", [""])[0]
        hidden_prefixes = [
            hidden_prefix
            for hidden_prefix in self.weather.unlisted
            if hidden_prefix.startswith(prefix) or prefix.startswith(hidden_prefix)
        ]
        for hidden_prefix in hidden_prefixes:
            self.weather.unlisted[hidden_prefix] -= 1
            if not self.weather.unlisted[hidden_prefix]:
                del self.weather.unlisted[hidden_prefix]
        self.weather.met["listings that hide objects"] += bool(hidden_prefixes)
        return tuple(hidden_prefixes)

    def _error_answer(self, head: bytes) -> bytes:
        status, code = self._dice.choice(_ERRORS)
        body = b"" if head.startswith(b"HEAD ") else _ERROR_BODY % code
        lines = f"HTTP/1.1 {status} Fault\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        return lines.encode() + body


def _remove_listed_keys(answer: bytes, prefixes: tuple[str, ...]) -> bytes:
    """Return the answer to a listing without the objects and folders whose keys begin with one of the prefixes."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if "chunked" in _parse_header_fields(head).get("transfer-encoding", ""):
        body = _join_chunks(body)
    for tag, name in (("Contents", "Key"), ("CommonPrefixes", "Prefix")):
        pattern = rf"<{tag}>(?:(?!</{tag}>).)*?<{name}>(.*?)</{name}>.*?</{tag}>"
        listed_element = re.compile(pattern.encode(), re.DOTALL)
        body = listed_element.sub(lambda match: b"" if match[1].decode().startswith(prefixes) else match[0], body)
    framing = (b"content-length:", b"transfer-encoding:")
    kept_lines = [line for line in lines if not line.lower().startswith(framing)]
    return b"\r\n".join([*kept_lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body


def _join_chunks(body: bytes) -> bytes:
    parts = []
    while body:
        line, _, body = body.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        parts.append(body[:size])
        body = body[size + 2 :]
    return b"".join(parts)


def _parse_header_fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {
        name.strip().lower(): value.strip().lower() for name, colon, value in (line.partition(":") for line in lines)
    }


def _remove_expect_header(head: bytes) -> bytes:
    return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))


async def _read_body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    """As it travels, chunks with their lengths."""
    if "chunked" not in fields.get("transfer-encoding", ""):
        return await reader.readexactly(int(fields.get("content-length", "0")))
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        parts += [line, await reader.readexactly(size + 2)]
        if not size:
            return b"".join(parts)


async def _read_answer(answers: asyncio.StreamReader, *, bodiless: bool) -> tuple[bytes, bool]:
    """An answer as it travels, and whether the connection goes on behind it."""
    while True:
        head = await answers.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status >= 200:
            break
    fields = _parse_header_fields(head)
    keeps_connection = fields.get("connection") != "close"
    if bodiless or status in {204, 304}:
        return head, keeps_connection
    if "content-length" not in fields and "chunked" not in fields.get("transfer-encoding", ""):
        return head + await answers.read(), False
    return head + await _read_body(answers, fields), keeps_connection
