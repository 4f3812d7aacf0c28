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

_HEAD_BYTES: Final = 1 << 20
_BUSY: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>a fault of the soak</Message></Error>'
)
_ERRORS: Final = ((503, b"SlowDown"), (500, b"InternalError"), (503, b"ServiceUnavailable"))


@dataclass
class Weather:
    """What the wire does to requests; any thread may change it."""

    errors: float = 0.0  # share of requests that are answered with an error, and not passed on
    lost: float = 0.0  # share of requests that are passed on, and whose answer is not
    slow_s: float = 0.0  # before each request is passed on, up to so long
    unlisted: dict[str, int] = field(default_factory=dict)  # by prefix of keys: so many listings answer without them
    met: Counter[str] = field(default_factory=Counter)  # requests, by what became of them


class Wire:
    """Listens on a port of this machine and passes requests on to an S3 server."""

    def __init__(self, target: str, *, seed: int = 0) -> None:
        """Begin; `target` is `host:port`."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.weather = Weather()
        self._dice = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    def close(self) -> None:
        """End it and all that goes through it."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_BYTES)

    async def _end(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client; a server that goes away takes it along."""
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            server = await asyncio.open_connection(*self._target, limit=_HEAD_BYTES)
            while await self._exchange(reader, writer, *server):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            self.weather.met["cut off"] += 1
        except asyncio.CancelledError:
            pass  # the end of the wire
        finally:
            self._tasks.discard(task)
            for one in (writer, *(server[1:] if server else ())):
                with suppress(OSError):
                    one.close()

    async def _exchange(
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
        fields = _fields(head)
        if "100-continue" in fields.get("expect", ""):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
            head = _without_expect(head)
        body = await _body(reader, fields)
        fate = self._fate()
        if self.weather.slow_s:
            await asyncio.sleep(self._dice.uniform(0, self.weather.slow_s))
        self.weather.met[fate] += 1
        if fate == "answered with an error":
            writer.write(self._error(head))
            await writer.drain()
            return True
        requests.write(head + body)
        await requests.drain()
        answer, goes_on = await _answer(answers, bodiless=head.startswith(b"HEAD "))
        if fate == "answer lost":
            return False
        if hidden := self._hidden_from(head):
            answer = _without_keys(answer, hidden)
        writer.write(answer)
        await writer.drain()
        return goes_on

    def _fate(self) -> str:
        drawn = self._dice.random()
        if drawn < self.weather.errors:
            return "answered with an error"
        return "answer lost" if drawn < self.weather.errors + self.weather.lost else "passed on"

    def _hidden_from(self, head: bytes) -> tuple[str, ...]:
        """Return the prefixes of keys that this request, if it is a listing, does not show, and count it."""
        method, target = head.split(b" ", 2)[:2]
        query = parse_qs(urlsplit(target.decode()).query)
        if method != b"GET" or "list-type" not in query:
            return ()
        prefix = query.get("prefix", [""])[0]
        hidden = [one for one in self.weather.unlisted if one.startswith(prefix) or prefix.startswith(one)]
        for one in hidden:
            self.weather.unlisted[one] -= 1
            if not self.weather.unlisted[one]:
                del self.weather.unlisted[one]
        self.weather.met["listings that hide objects"] += bool(hidden)
        return tuple(hidden)

    def _error(self, head: bytes) -> bytes:
        status, code = self._dice.choice(_ERRORS)
        body = b"" if head.startswith(b"HEAD ") else _BUSY % code
        lines = f"HTTP/1.1 {status} Fault\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        return lines.encode() + body


def _without_keys(answer: bytes, prefixes: tuple[str, ...]) -> bytes:
    """Return the answer to a listing without the objects and folders whose keys begin with one of the prefixes."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if "chunked" in _fields(head).get("transfer-encoding", ""):
        body = _unchunked(body)
    for tag, name in (("Contents", "Key"), ("CommonPrefixes", "Prefix")):
        pattern = rf"<{tag}>(?:(?!</{tag}>).)*?<{name}>(.*?)</{name}>.*?</{tag}>"
        shown = re.compile(pattern.encode(), re.DOTALL)
        body = shown.sub(lambda found: b"" if found[1].decode().startswith(prefixes) else found[0], body)
    framing = (b"content-length:", b"transfer-encoding:")
    kept = [line for line in lines if not line.lower().startswith(framing)]
    return b"\r\n".join([*kept, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body


def _unchunked(body: bytes) -> bytes:
    parts = []
    while body:
        line, _, body = body.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        parts.append(body[:size])
        body = body[size + 2 :]
    return b"".join(parts)


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip().lower() for name, colon, value in (one.partition(":") for one in lines)}


def _without_expect(head: bytes) -> bytes:
    return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
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


async def _answer(answers: asyncio.StreamReader, *, bodiless: bool) -> tuple[bytes, bool]:
    """An answer as it travels, and whether the connection goes on behind it."""
    while True:
        head = await answers.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status >= 200:
            break
    fields = _fields(head)
    goes_on = fields.get("connection") != "close"
    if bodiless or status in {204, 304}:
        return head, goes_on
    if "content-length" not in fields and "chunked" not in fields.get("transfer-encoding", ""):
        return head + await answers.read(), False
    return head + await _body(answers, fields), goes_on
