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
SERVER_NAME: Final = "sexton.test"
"""What the servers' certificates name beside the address."""


@dataclass(frozen=True, slots=True)
class TlsCertificateFiles:
    """Files of a certificate with its chain, and of its key."""

    cert: Path
    key: Path


class TlsCertificateAuthority:
    """A CA, and certificates of it as files in a folder."""

    def __init__(self, folder: Path) -> None:
        """Make the CA."""
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def pair(
        self,
        file_stem: str,
        *identities: str,
        expired: bool = False,
        remaining: timedelta | None = None,
        age: timedelta = _DAY,
    ) -> TlsCertificateFiles:
        """A certificate for these names and addresses; it expired yesterday, or is so old and has so much left."""
        now = datetime.now(UTC)
        since, until = (now - 2 * _DAY, now - _DAY) if expired else (now - age, now + remaining if remaining else None)
        certificate = self._ca.issue_cert(*identities, not_before=since, not_after=until)
        pair = TlsCertificateFiles(self._folder / f"{file_stem}.pem", self._folder / f"{file_stem}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        certificate.private_key_pem.write_to_path(pair.key)
        pair.key.chmod(0o600)  # libpq refuses one that others may read
        return pair

    def server(self) -> TlsCertificateFiles:
        """The certificate of a server at `HOST`, which is called `NAME`, too."""
        return self.pair("server", HOST, "localhost", SERVER_NAME)


class TlsProxy:
    """Passes what comes by TLS on to a server that speaks without; ask for a client's certificate with `clients`."""

    def __init__(self, target: str, server_files: TlsCertificateFiles, *, client_ca: Path | None = None) -> None:
        """Listen on a free port; `target` is the server's `host:port`, or the socket of a PostgreSQL."""
        self._target, self._is_postgresql = target, target.startswith("/")
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(server_files.cert, server_files.key)
        if client_ca is not None:
            self._context.load_verify_locations(client_ca)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = _LoopThread()
        self._server = self._loop.run(
            asyncio.start_server(self._join, HOST, 0, ssl=None if self._is_postgresql else self._context)
        )
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """End it, and all that goes through it."""
        self._loop.run(_close_server(self._server))
        self._loop.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections = [writer]
        try:
            if self._is_postgresql:
                if await reader.readexactly(8) != _SSL_REQUEST:
                    return
                writer.write(b"S")
                await writer.start_tls(self._context)
            inner_reader, inner_writer = await self._connect_to_target()
            connections.append(inner_writer)
            await asyncio.gather(_forward_bytes(reader, inner_writer), _forward_bytes(inner_reader, writer))
        except (OSError, EOFError, asyncio.CancelledError):  # one of the two has gone, or all end
            pass
        finally:
            for connection in connections:
                connection.transport.abort()

    async def _connect_to_target(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._is_postgresql:
            return await asyncio.open_unix_connection(self._target)
        host, _, port = self._target.partition(":")
        return await asyncio.open_connection(host, int(port))


async def _forward_bytes(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, recorded: bytearray | None = None
) -> None:
    while data := await source.read(65_536):
        if recorded is not None:
            recorded += data
        sink.write(data)
        await sink.drain()
    raise EOFError


class RecordingProxy:
    """Passes on what comes as it comes, and keeps it: what somebody between us and a server could read."""

    def __init__(self, target: str) -> None:
        """Listen on a free port; `target` is `host:port`."""
        self._target, self._loop = target, _LoopThread()
        self.heard: list[tuple[bytearray, bytearray]] = []  # of each connection: from the client, from the server
        self._server = self._loop.run(asyncio.start_server(self._join, HOST, 0))
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """End it, and all that goes through it."""
        self._loop.run(_close_server(self._server))
        self._loop.close()

    def plain(self) -> list[bytes]:
        """How connections began that are not TLS from their first byte on, but for PostgreSQL's question for it."""
        openings = [bytes(sent).removeprefix(_SSL_REQUEST) for sent, _ in self.heard]
        return [opening[:64] for opening in openings if opening and not opening.startswith(b"\x16\x03")]

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections, (sent, answered) = [writer], (bytearray(), bytearray())
        self.heard.append((sent, answered))
        try:
            host, _, port = self._target.partition(":")
            inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
            connections.append(inner_writer)
            await asyncio.gather(
                _forward_bytes(reader, inner_writer, sent), _forward_bytes(inner_reader, writer, answered)
            )
        except (OSError, EOFError, asyncio.CancelledError):  # one of the two has gone, or all end
            pass
        finally:
            for connection in connections:
                connection.transport.abort()


async def _close_server(server: asyncio.Server) -> None:
    server.close()


class TemporalTlsProxy:
    """A Temporal server behind TLS: passes calls on that bear the API key, and refuses all others."""

    def __init__(
        self, target: str, server_files: TlsCertificateFiles, *, client_ca: Path | None = None, api_key: str = ""
    ) -> None:
        """Listen on a free port; `target` is the server's `host:port`, an empty key lets every call pass."""
        self.keys = {api_key} if api_key else set()
        self.refused = 0
        self._target, self._loop = target, _LoopThread()
        trusted = client_ca.read_bytes() if client_ca else None
        credentials = grpc.ssl_server_credentials(
            [(server_files.key.read_bytes(), server_files.cert.read_bytes())],
            trusted,
            require_client_auth=client_ca is not None,
        )
        self.address = self._loop.run(self._start(credentials))

    def close(self) -> None:
        """End it, and what waits in it."""
        self._loop.run(self._stop())
        self._loop.close()

    async def _start(self, credentials: Any) -> str:
        self._channel = grpc.aio.insecure_channel(self._target)
        self._server = grpc.aio.server(handlers=[_ForwardedCalls(self._answer)])
        port = self._server.add_secure_port(f"{HOST}:0", credentials)
        await self._server.start()
        return f"{HOST}:{port}"

    async def _stop(self) -> None:
        await self._server.stop(None)
        await self._channel.close()

    async def _answer(self, method: str, request: bytes, context: Any) -> bytes:
        metadata = {key: value for key, value in context.invocation_metadata() if not key.startswith(("grpc-", ":"))}
        if self.keys and metadata.get("authorization", "").removeprefix("Bearer ") not in self.keys:
            self.refused += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request unauthorized.")
        forwarded_metadata = [
            (key, value) for key, value in metadata.items() if key not in {"user-agent", "content-type", "te"}
        ]
        try:
            answer: bytes = await self._channel.unary_unary(method)(
                request, metadata=forwarded_metadata, timeout=context.time_remaining()
            )
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            await context.abort(error.code(), error.details() or "")
        return answer


class _ForwardedCalls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, answer: Callable[[str, bytes, Any], Awaitable[bytes]]) -> None:
        self._answer = answer

    def service(self, details: Any) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            return await self._answer(details.method, request, context)

        return grpc.unary_unary_rpc_method_handler(answer)


class _LoopThread:
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
