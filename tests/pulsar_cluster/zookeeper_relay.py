"""Relay between a client and ZooKeeper that can end the client at an exact write, before ZooKeeper gets the write.

It can also lose the answer to an exact write.

Source: ZooKeeper's client protocol: a frame is a length, and after the handshake a request id, an operation and its
fields.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from infra.stack.service_port_choice import LOOPBACK

CREATE, DELETE, SET = "create", "delete", "set"

_KIND_BY_OPERATION: Final = {1: CREATE, 15: CREATE, 19: CREATE, 21: CREATE, 2: DELETE, 5: SET}
_MULTI: Final = 14


@dataclass(frozen=True, slots=True)
class ZnodeWrite:
    kind: str  # `CREATE`, `DELETE` or `SET`
    path: str
    data: bytes = b""


class ZooKeeperRelay:
    """Relay on a free port. Without a trap it only passes bytes on."""

    def __init__(self, zookeeper_port: int) -> None:
        self._zookeeper_port = zookeeper_port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._trap: Callable[[ZnodeWrite], bool] | None = None
        self._end_client: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self.trapped: ZnodeWrite | None = None
        """Write at which the client was ended, and which ZooKeeper did not get."""
        self._has_trapped = threading.Event()
        self._loses_answer: Callable[[ZnodeWrite], bool] | None = None
        self._before_loss: Callable[[], None] = lambda: None
        threading.Thread(target=self._accept, name="zookeeper-relay", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def set_trap(self, is_fatal: Callable[[ZnodeWrite], bool], end_client: Callable[[], None]) -> None:
        """Call `end_client` at the first write that is fatal. That write and later ones do not reach ZooKeeper."""
        self._has_trapped.clear()
        self._end_client, self._trap = end_client, is_fatal

    def wait_for_trap(self, timeout_s: float) -> ZnodeWrite:
        """Wait until the client has ended, and return the fatal write."""
        if not self._has_trapped.wait(timeout_s) or self.trapped is None:
            raise TimeoutError(f"expected the fatal write within {timeout_s:.0f} s")
        return self.trapped

    def lose_answer(self, is_lost: Callable[[ZnodeWrite], bool], before: Callable[[], None] = lambda: None) -> None:
        """Close the connection of the first write that matches when ZooKeeper has answered. Call `before` just then."""
        self._before_loss, self._loses_answer = before, is_lost

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((LOOPBACK, self._zookeeper_port))
                answer_lost = threading.Event()
                for target, source, sink in (
                    (self._pass_requests, client, server),
                    (self._pass_answers, server, client),
                ):
                    threading.Thread(target=target, args=(source, sink, answer_lost), daemon=True).start()

    def _pass_requests(self, client: socket.socket, server: socket.socket, answer_lost: threading.Event) -> None:
        with suppress(OSError), client, server:
            is_handshake = True
            while frame := _receive_frame(client):
                if not is_handshake and self._is_trapped(frame):
                    return
                if not is_handshake and self._is_answer_lost(frame):
                    answer_lost.set()
                is_handshake = False
                server.sendall(frame)

    def _pass_answers(self, server: socket.socket, client: socket.socket, answer_lost: threading.Event) -> None:
        with suppress(OSError), server, client:
            while part := server.recv(65_536):
                if answer_lost.is_set():
                    self._before_loss()
                    client.shutdown(socket.SHUT_RDWR)
                    server.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(part)

    def _is_answer_lost(self, frame: bytes) -> bool:
        with self._lock:
            if self._loses_answer is None or not any(map(self._loses_answer, parse_writes(frame))):
                return False
            self._loses_answer = None
        return True

    def _is_trapped(self, frame: bytes) -> bool:
        with self._lock:
            if self._trap is None:
                return False
            fatal = next((write for write in parse_writes(frame) if self._trap(write)), None)
            if fatal is None:
                return False
            self._trap = None
            self._end_client()  # under the lock: no other connection passes a write on
            self.trapped = fatal
        self._has_trapped.set()
        return True


def parse_writes(frame: bytes) -> Iterator[ZnodeWrite]:
    """Yield the writes of a request frame, also those inside a transaction."""
    (operation,) = struct.unpack_from(">i", frame, 8)
    if operation in _KIND_BY_OPERATION:
        yield _parse_write(_KIND_BY_OPERATION[operation], frame, 12)[0]
    offset = 12
    while operation == _MULTI:
        part, is_end = struct.unpack_from(">i?", frame, offset)
        if is_end:
            return
        kind = _KIND_BY_OPERATION.get(part, DELETE)  # a check of a version has the fields of a delete
        write, offset = _parse_write(kind, frame, offset + 9, has_ttl=part == 21)
        if part in _KIND_BY_OPERATION:
            yield write


def _parse_write(kind: str, frame: bytes, offset: int, *, has_ttl: bool = False) -> tuple[ZnodeWrite, int]:
    """Return a write and the offset of its end."""
    path, offset = _parse_buffer(frame, offset)
    if kind == DELETE:
        return ZnodeWrite(kind, path.decode()), offset + 4
    data, offset = _parse_buffer(frame, offset)
    if kind == SET:
        return ZnodeWrite(kind, path.decode(), data), offset + 4
    (entries,) = struct.unpack_from(">i", frame, offset)
    offset += 4
    for _ in range(entries):  # of the access list: permissions, scheme, id
        _, offset = _parse_buffer(frame, offset + 4)
        _, offset = _parse_buffer(frame, offset)
    return ZnodeWrite(kind, path.decode(), data), offset + (12 if has_ttl else 4)


def _parse_buffer(frame: bytes, offset: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">i", frame, offset)
    end = offset + 4 + max(0, length)
    return frame[offset + 4 : end], end


def _receive_frame(source: socket.socket) -> bytes:
    """Return a frame with its length, or nothing at the end of the connection."""
    head = _receive(source, 4)
    return head and head + _receive(source, int.from_bytes(head, "big"))


def _receive(source: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = source.recv(size - len(received))
        if not part:
            return b""
        received += part
    return bytes(received)
