"""Read of a ledger's entries from bookies, without fencing: a read changes nothing, and a writer notices nothing.

Source: version 2 of BookKeeper's bookie protocol, and `DigestManager` for the envelope of an entry.
"""

import socket
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError

from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import LedgerMetadata
from logstore.pulsar.protos.ledger_metadata_pb2 import BookieService
from logstore.pulsar.unreadable_metadata import UnreadableMetadata

LAST_ENTRY: Final = -1
"""Entry id in a request for the last entry that a bookie has of a ledger."""

_READ_HEADER: Final = (2 << 24) | (2 << 16)  # version 2, operation "read entry", no flags: flag 1 would fence
_OK, _NO_LEDGER, _NO_ENTRY = 0, 1, 2
_RESPONSE: Final = struct.Struct(">iiqq")
_ENVELOPE: Final = struct.Struct(">qqqq")  # ledger, entry, last entry confirmed, length of the ledger
_MAX_RESPONSE_BYTES: Final = 16 << 20
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class BookieAddress:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BookieEntry:
    """Entry that one bookie returned, with a digest that has been checked."""

    entry_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class _EntryRequest:
    ledger_id: int
    entry_id: int
    digest: str  # name of the type
    timeout_s: float


class BookieDirectory:
    """Addresses of bookies by their ids, from ZooKeeper."""

    def __init__(self, reader: ZnodeReader, ledgers_root: str) -> None:
        self._reader, self._root = reader, ledgers_root

    def find_address(self, bookie_id: str) -> BookieAddress | None:
        """Return the address of a bookie, or `None` if the bookie is not registered and its id is no address."""
        paths = [f"{self._root}/available/{bookie_id}", f"{self._root}/available/readonly/{bookie_id}"]
        for _, znode in self._reader.read(paths):
            address = _find_endpoint(znode.data) if znode is not None else None
            if address:
                return address
        return _parse_address(bookie_id)


def read_last_entry(
    ledger_id: int,
    metadata: LedgerMetadata,
    find_address: Callable[[str], BookieAddress | None],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> BookieEntry:
    """Return the last entry of a ledger that has entries.

    All bookies of the last segment are asked, because a bookie has only some of the entries if the write quorum is
    smaller than the ensemble. Fewer bookies than the acknowledgement quorum may fail to answer, or not have the ledger:
    the others then have every entry whose writer was answered.

    Raises:
        StoreUnavailable: Too few bookies answer, or the entry that they have cannot be the last one: the ledger is
            closed and has a later one, or its last segment begins after it.
        UnreadableMetadata: An entry is damaged, or its type of digest is unknown.
    """
    request = _EntryRequest(ledger_id, LAST_ENTRY, metadata.digest, timeout_s)
    answers = list(_ask_bookies(metadata.segments[-1].bookie_ids, find_address, request))
    entries = [answer for answer in answers if isinstance(answer, BookieEntry)]
    failures = [answer for answer in answers if isinstance(answer, str)]
    if not entries or len(failures) >= metadata.ack_quorum:
        raise StoreUnavailable(f"ledger {ledger_id}: too few bookies answer: {'; '.join(failures)}")
    newest = max(entries, key=lambda entry: entry.entry_id)
    last_known = max(metadata.last_entry, metadata.segments[-1].first_entry - 1)
    if newest.entry_id < last_known:
        missing = f"expected entry {last_known} or a later one, found entry {newest.entry_id}"
        raise StoreUnavailable("; ".join([f"ledger {ledger_id}: {missing}", *failures]))
    return newest


def read_first_entry(
    ledger_id: int,
    metadata: LedgerMetadata,
    find_address: Callable[[str], BookieAddress | None],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> BookieEntry:
    """Return entry 0 of a ledger, from the first bookie of the first segment that has it.

    Raises:
        StoreUnavailable: No bookie answers, or none has the entry.
        UnreadableMetadata: The entry is damaged, or its type of digest is unknown.
    """
    failures: list[str] = []
    request = _EntryRequest(ledger_id, 0, metadata.digest, timeout_s)
    for answer in _ask_bookies(metadata.segments[0].bookie_ids, find_address, request):
        if isinstance(answer, BookieEntry) and answer.entry_id == 0:
            return answer
        failures.append(answer if isinstance(answer, str) else f"a bookie answered with entry {answer.entry_id}")
    raise StoreUnavailable(f"ledger {ledger_id}: no bookie has entry 0: {'; '.join(failures)}")


def _ask_bookies(
    bookie_ids: Iterable[str], find_address: Callable[[str], BookieAddress | None], request: _EntryRequest
) -> Iterator[BookieEntry | str]:
    """Yield the entry of each bookie, or why there is none."""
    for bookie_id in bookie_ids:
        address = find_address(bookie_id)
        try:
            if address is None:
                raise StoreUnavailable("it is not registered")  # noqa: TRY301 - one place describes failures
            yield _read_from_bookie(address, request)
        except (StoreUnavailable, OSError) as error:
            yield f"bookie {bookie_id}: {error}"


def _read_from_bookie(address: BookieAddress, request: _EntryRequest) -> BookieEntry:
    ledger_id = request.ledger_id
    with socket.create_connection((address.host, address.port), timeout=request.timeout_s) as connection:
        message = struct.pack(">iqq", _READ_HEADER, ledger_id, request.entry_id)
        connection.sendall(struct.pack(">I", len(message)) + message)
        (length,) = struct.unpack(">I", _receive(connection, 4))
        if not _RESPONSE.size <= length <= _MAX_RESPONSE_BYTES:
            raise StoreUnavailable(f"expected a response of {_RESPONSE.size} bytes or more, found {length}")
        response = _receive(connection, length)
    _, code, answered_id, _ = _RESPONSE.unpack_from(response)
    if code in {_NO_LEDGER, _NO_ENTRY}:
        raise StoreUnavailable("it has no entry of the ledger")
    if code != _OK or answered_id != ledger_id:
        raise StoreUnavailable(f"it answered with code {code} for ledger {answered_id}")
    return _open_envelope(ledger_id, request.digest, response[_RESPONSE.size :])


def _open_envelope(ledger_id: int, digest: str, envelope: bytes) -> BookieEntry:
    """Check the digest of an entry, and return its payload."""
    size = {"CRC32": 8, "CRC32C": 4, "DUMMY": 0}.get(digest)
    if size is None:
        expected = "a digest of the type CRC32, CRC32C or DUMMY"
        raise UnreadableMetadata(f"ledger {ledger_id}", expected=expected, found=repr(digest))
    start = _ENVELOPE.size + size
    if len(envelope) < start:
        expected = f"an entry of {start} bytes or more"
        raise UnreadableMetadata(f"ledger {ledger_id}", expected=expected, found=f"{len(envelope)} bytes")
    stated_ledger, entry_id, _, _ = _ENVELOPE.unpack_from(envelope)
    payload = envelope[start:]
    covered = envelope[: _ENVELOPE.size] + payload
    computed = {
        "CRC32": lambda: struct.pack(">q", zlib.crc32(covered)),
        "CRC32C": lambda: struct.pack(">I", google_crc32c.value(covered)),  # type: ignore[no-untyped-call]
        "DUMMY": bytes,
    }[digest]()
    if stated_ledger != ledger_id or computed != envelope[_ENVELOPE.size : start]:
        subject = f"ledger {ledger_id}, entry {entry_id}"
        stated = envelope[_ENVELOPE.size : start].hex()
        raise UnreadableMetadata(subject, expected=f"the digest {computed.hex()}", found=stated)
    return BookieEntry(entry_id, payload)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise StoreUnavailable("it closed the connection")
        received += part
    return bytes(received)


def _find_endpoint(data: bytes) -> BookieAddress | None:
    service = BookieService()
    with suppress(DecodeError):  # old bookies register without a value, or with another one
        service.ParseFromString(data)
    endpoints: Iterable[BookieService.Endpoint] = service.endpoints
    return next(
        (
            BookieAddress(endpoint.host, endpoint.port)
            for endpoint in endpoints
            if (endpoint.id, endpoint.protocol) == ("bookie", "bookie-rpc")
        ),
        None,
    )


def _parse_address(bookie_id: str) -> BookieAddress | None:
    host, _, port = bookie_id.rpartition(":")
    return BookieAddress(host, int(port)) if host and port.isascii() and port.isdecimal() else None
