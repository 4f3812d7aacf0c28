"""A bookie that answers reads of last entries, as version 2 of the protocol says, and remembers the requests."""

import socketserver
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import google_crc32c

from infra.pulsar.bookie_reads import BookieAddress

Answer = Callable[[int], bytes]


def seal_entry(ledger_id: int, entry_id: int, payload: bytes, *, digest: str = "CRC32C") -> bytes:
    """Put the envelope of an entry around its payload."""
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 100)
    covered = header + payload
    code = {
        "CRC32": struct.pack(">q", zlib.crc32(covered)),
        "CRC32C": struct.pack(">I", google_crc32c.value(covered)),
        "DUMMY": b"",
    }[digest]
    return header + code + payload


def answer_with(envelope: bytes, *, entry_id: int = 0) -> Answer:
    return lambda ledger_id: struct.pack(">iiqq", 0x02020000, 0, ledger_id, entry_id) + envelope


def answer_with_code(code: int) -> Answer:
    return lambda ledger_id: struct.pack(">iiqq", 0x02020000, code, ledger_id, -1)


class FakeBookie(socketserver.ThreadingTCPServer):
    """Server on a free port of this machine."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.requests = answer, list[bytes]()

    @property
    def address(self) -> BookieAddress:
        return BookieAddress("127.0.0.1", self.server_address[1])


class _Handler(socketserver.StreamRequestHandler):
    server: FakeBookie

    def handle(self) -> None:
        (length,) = struct.unpack(">I", self.rfile.read(4))
        request = self.rfile.read(length)
        self.server.requests.append(request)
        (ledger_id,) = struct.unpack_from(">q", request, 4)
        response = self.server.answer(ledger_id)
        self.wfile.write(struct.pack(">I", len(response)) + response if response else b"")


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
