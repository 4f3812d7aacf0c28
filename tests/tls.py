"""Servers behind TLS for tests: certificates of a CA of the test's own, and what ends TLS before a real server."""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import grpc
import trustme

HOST: Final = "127.0.0.1"
_DAY: Final = timedelta(days=1)
_SSL_REQUEST: Final = b"\0\0\0\x08\x04\xd2\x16\x2f"  # of PostgreSQL's protocol: 80877103 after its length
NAME: Final = "sexton.test"
"""What the servers' certificates name beside the address."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Files of a certificate with its chain, and of its key."""

    cert: Path
    key: Path


class Authority:
    """A CA, and certificates of it as files in a folder."""

    def __init__(self, folder: Path) -> None:
        """Make the CA."""
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def pair(
        self, name: str, *identities: str, expired: bool = False, left: timedelta | None = None, age: timedelta = _DAY
    ) -> Pair:
        """A certificate for these names and addresses; it expired yesterday, or is so old and has so much left."""
        now = datetime.now(UTC)
        since, until = (now - 2 * _DAY, now - _DAY) if expired else (now - age, now + left if left else None)
        made = self._ca.issue_cert(*identities, not_before=since, not_after=until)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(pair.key)
        pair.key.chmod(0o600)  # libpq refuses one that others may read
        return pair

    def server(self) -> Pair:
        """The certificate of a server at `HOST`, which is called `NAME`, too."""
        return self.pair("server", HOST, "localhost", NAME)


class TlsFront:
    """Passes what comes by TLS on to a server that speaks without; ask for a client's certificate with `clients`."""

    def __init__(self, target: str, pair: Pair, *, clients: Path | None = None) -> None:
        """Listen on a free port; `target` is the server's `host:port`, or the socket of a PostgreSQL."""
        self._target, self._asked = target, target.startswith("/")
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(pair.cert, pair.key)
        if clients is not None:
            self._context.load_verify_locations(clients)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = _Loop()
        self._server = self._loop.run(
            asyncio.start_server(self._join, HOST, 0, ssl=None if self._asked else self._context)
        )
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """End it, and all that goes through it."""
        self._loop.run(_closed(self._server))
        self._loop.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined = [writer]
        try:
            if self._asked:
                if await reader.readexactly(8) != _SSL_REQUEST:
                    return
                writer.write(b"S")
                await writer.start_tls(self._context)
            inner_reader, inner_writer = await self._inner()
            joined.append(inner_writer)
            await asyncio.gather(_pass(reader, inner_writer), _pass(inner_reader, writer))
        except (OSError, EOFError, asyncio.CancelledError):  # one of the two has gone, or all end
            pass
        finally:
            for one in joined:
                one.transport.abort()

    async def _inner(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._asked:
            return await asyncio.open_unix_connection(self._target)
        host, _, port = self._target.partition(":")
        return await asyncio.open_connection(host, int(port))


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, heard: bytearray | None = None) -> None:
    while said := await source.read(65_536):
        if heard is not None:
            heard += said
        sink.write(said)
        await sink.drain()
    raise EOFError


class Wire:
    """Passes on what comes as it comes, and keeps it: what somebody between us and a server could read."""

    def __init__(self, target: str) -> None:
        """Listen on a free port; `target` is `host:port`."""
        self._target, self._loop = target, _Loop()
        self.heard: list[tuple[bytearray, bytearray]] = []  # of each connection: from the client, from the server
        self._server = self._loop.run(asyncio.start_server(self._join, HOST, 0))
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """End it, and all that goes through it."""
        self._loop.run(_closed(self._server))
        self._loop.close()

    def plain(self) -> list[bytes]:
        """How connections began that are not TLS from their first byte on, but for PostgreSQL's question for it."""
        said = [bytes(sent).removeprefix(_SSL_REQUEST) for sent, _ in self.heard]
        return [one[:64] for one in said if one and not one.startswith(b"\x16\x03")]

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined, (sent, answered) = [writer], (bytearray(), bytearray())
        self.heard.append((sent, answered))
        try:
            host, _, port = self._target.partition(":")
            inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
            joined.append(inner_writer)
            await asyncio.gather(_pass(reader, inner_writer, sent), _pass(inner_reader, writer, answered))
        except (OSError, EOFError, asyncio.CancelledError):  # one of the two has gone, or all end
            pass
        finally:
            for one in joined:
                one.transport.abort()


async def _closed(server: asyncio.Server) -> None:
    server.close()


class TemporalFront:
    """A Temporal server behind TLS: passes calls on that bear the API key, and refuses all others."""

    def __init__(self, target: str, pair: Pair, *, clients: Path | None = None, api_key: str = "") -> None:
        """Listen on a free port; `target` is the server's `host:port`, an empty key lets every call pass."""
        self.keys = {api_key} if api_key else set()
        self.refused = 0
        self._target, self._loop = target, _Loop()
        trusted = clients.read_bytes() if clients else None
        credentials = grpc.ssl_server_credentials(
            [(pair.key.read_bytes(), pair.cert.read_bytes())], trusted, require_client_auth=clients is not None
        )
        self.address = self._loop.run(self._started(credentials))

    def close(self) -> None:
        """End it, and what waits in it."""
        self._loop.run(self._stopped())
        self._loop.close()

    async def _started(self, credentials: Any) -> str:
        self._channel = grpc.aio.insecure_channel(self._target)
        self._server = grpc.aio.server(handlers=[_Calls(self._answer)])
        port = self._server.add_secure_port(f"{HOST}:0", credentials)
        await self._server.start()
        return f"{HOST}:{port}"

    async def _stopped(self) -> None:
        await self._server.stop(None)
        await self._channel.close()

    async def _answer(self, method: str, request: bytes, context: Any) -> bytes:
        told = {key: value for key, value in context.invocation_metadata() if not key.startswith(("grpc-", ":"))}
        if self.keys and told.get("authorization", "").removeprefix("Bearer ") not in self.keys:
            self.refused += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request unauthorized.")
        passed = [(key, value) for key, value in told.items() if key not in {"user-agent", "content-type", "te"}]
        try:
            answer: bytes = await self._channel.unary_unary(method)(
                request, metadata=passed, timeout=context.time_remaining()
            )
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            await context.abort(error.code(), error.details() or "")
        return answer


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, answer: Callable[[str, bytes, Any], Awaitable[bytes]]) -> None:
        self._answer = answer

    def service(self, details: Any) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            return await self._answer(details.method, request, context)

        return grpc.unary_unary_rpc_method_handler(answer)


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Any) -> Any:
        """The result of a coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def close(self) -> None:
        """Cancel what is left, and end."""

        async def cancelled() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for _ in range(5):  # transports that were aborted close their sockets in the loop's next turns
                await asyncio.sleep(0)

        self.run(cancelled())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
