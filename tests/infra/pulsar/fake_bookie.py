"""A bookie that answers reads of last entries, as version 2 of the protocol says, and remembers the requests."""

import socket
import socketserver
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import google_crc32c

from infra.pulsar.bookie_reads import LAST_ENTRY, BookieAddress, BookieDirectory

_NO_ENTRY = 2

Answer = Callable[[int, int], bytes]
"""Response to a request for an entry of a ledger. An empty one closes the connection."""


def seal_entry(
    ledger_id: int, entry_id: int, payload: bytes, *, digest: str = "CRC32C", last_confirmed: int | None = None
) -> bytes:
    """Put the envelope of an entry around its payload. Without `last_confirmed` no earlier one may be the last one."""
    confirmed = entry_id if last_confirmed is None else last_confirmed
    header = struct.pack(">qqqq", ledger_id, entry_id, confirmed, 100)
    covered = header + payload
    code = {
        "CRC32": struct.pack(">q", zlib.crc32(covered)),
        "CRC32C": struct.pack(">I", google_crc32c.value(covered)),
        "DUMMY": b"",
    }[digest]
    return header + code + payload


def answer_with(envelope: bytes, *, entry_id: int = 0) -> Answer:
    """Answer with one entry, whichever is requested."""
    return lambda ledger_id, _: struct.pack(">iiqq", 0x02020000, 0, ledger_id, entry_id) + envelope


def answer_with_code(code: int) -> Answer:
    return lambda ledger_id, _: struct.pack(">iiqq", 0x02020000, code, ledger_id, -1)


def answer_entries(payload_by_id: Mapping[int, bytes], *, in_flight: int = 1) -> Answer:
    """Answer as a bookie with these entries. Each was written while `in_flight` entries were not acknowledged."""

    def answer(ledger_id: int, requested_id: int) -> bytes:
        entry_id = max(payload_by_id) if requested_id == LAST_ENTRY else requested_id
        if entry_id not in payload_by_id:
            return answer_with_code(_NO_ENTRY)(ledger_id, entry_id)
        envelope = seal_entry(ledger_id, entry_id, payload_by_id[entry_id], last_confirmed=entry_id - in_flight)
        return answer_with(envelope, entry_id=entry_id)(ledger_id, entry_id)

    return answer


class KnownBookies(BookieDirectory):
    """Directory without ZooKeeper."""

    def __init__(self, address_by_id: Mapping[str, BookieAddress]) -> None:
        self._addresses, self.failure_by_id = address_by_id, {}

    def find_addresses(self, bookie_ids: Iterable[str]) -> dict[str, BookieAddress | None]:
        return {bookie_id: self._addresses.get(bookie_id) for bookie_id in bookie_ids}


class FakeBookie(socketserver.ThreadingTCPServer):
    """Server on a free port of this machine."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.requests = answer, list[bytes]()
        self.connections: list[socket.socket] = []

    def close_connections(self) -> None:
        for connection in self.connections:
            connection.shutdown(socket.SHUT_RDWR)

    @property
    def address(self) -> BookieAddress:
        return BookieAddress("127.0.0.1", self.server_address[1])


class _Handler(socketserver.StreamRequestHandler):
    server: FakeBookie

    def handle(self) -> None:
        self.server.connections.append(self.connection)
        while prefix := self.rfile.read(4):
            (length,) = struct.unpack(">I", prefix)
            request = self.rfile.read(length)
            self.server.requests.append(request)
            response = self.server.answer(*struct.unpack_from(">qq", request, 4))
            if not response:
                return
            self.wfile.write(struct.pack(">I", len(response)) + response)


@contextmanager
def run_bookie(answer: Answer) -> Iterator[FakeBookie]:
    with FakeBookie(answer) as bookie:
        thread = threading.Thread(target=bookie.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield bookie
        finally:
            bookie.shutdown()
            thread.join()
