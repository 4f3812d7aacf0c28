"""Reads of entries from bookies, without fencing: a read changes nothing, and a writer notices nothing.

Source: version 2 of BookKeeper's bookie protocol, `DigestManager` for the envelope of an entry, and
`BookieServiceInfo` for the addresses.
"""

import socket
import struct
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Final, Self

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
_MIN_WAIT_S: Final = 0.001  # 0 would mean no wait, and another error
_PARALLEL_READS: Final = 16  # few, because bookies read old entries from disk


@dataclass(frozen=True, slots=True)
class BookieAddress:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class EntryRequest:
    ledger_id: int
    bookie_id: str
    entry_id: int = LAST_ENTRY


@dataclass(frozen=True, slots=True)
class BookieEntry:
    """Entry that one bookie returned, with a digest that has been checked."""

    entry_id: int
    last_confirmed: int  # newest entry that was acknowledged when this one was written; -1: none
    payload: bytes


EntryPlace = tuple[int, int]
"""Ledger id and entry id."""

EntryAnswer = bytes | StoreUnavailable | None
"""Envelope of an entry, the reason why the bookie did not answer, or `None` if it does not have the entry."""


class BookieDirectory:
    """Addresses of bookies by their ids, from ZooKeeper, and the bookies that did not answer.

    A directory serves one scan. An address is read once, and a bookie that did not answer is not asked again.
    """

    def __init__(self, reader: ZnodeReader, ledgers_root: str) -> None:
        self._reader, self._root = reader, ledgers_root
        self._address_by_id: dict[str, BookieAddress | None] = {}
        self.failure_by_id: dict[str, str] = {}

    def find_address(self, bookie_id: str) -> BookieAddress | None:
        """Return the address of a bookie, or `None` if the bookie is not registered and its id is no address."""
        return self.find_addresses([bookie_id])[bookie_id]

    def find_addresses(self, bookie_ids: Iterable[str]) -> dict[str, BookieAddress | None]:
        ids = set(bookie_ids)
        unknown = sorted(ids - self._address_by_id.keys())
        self._address_by_id.update((bookie_id, _parse_address(bookie_id)) for bookie_id in unknown)
        for state in ("available/readonly", "available"):
            znodes = self._reader.read(f"{self._root}/{state}/{bookie_id}" for bookie_id in unknown)
            for bookie_id, (_, znode) in zip(unknown, znodes, strict=True):
                address = _find_endpoint(znode.data) if znode is not None else None
                if address:
                    self._address_by_id[bookie_id] = address
        return {bookie_id: self._address_by_id[bookie_id] for bookie_id in ids}


class BookieConnections:
    """Connections to bookies. They end with the block."""

    def __init__(self, directory: BookieDirectory, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._directory, self._timeout_s = directory, timeout_s
        self._threads = ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="bookie-reads")
        self._idle_by_bookie: dict[str, list[socket.socket]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for connection in chain.from_iterable(self._idle_by_bookie.values()):
            connection.close()

    def read_entries(self, requests: Sequence[EntryRequest]) -> dict[EntryRequest, EntryAnswer]:
        """Send the requests, some of them at the same time. A request takes at most one timeout."""
        addresses = self._directory.find_addresses(request.bookie_id for request in requests)
        answers = self._threads.map(partial(self._read_entry, addresses), requests)
        return dict(zip(requests, answers, strict=True))

    def _read_entry(self, addresses: Mapping[str, BookieAddress | None], request: EntryRequest) -> EntryAnswer:
        bookie_id = request.bookie_id
        if failure := self._directory.failure_by_id.get(bookie_id):
            return StoreUnavailable(failure)
        deadline_s = time.monotonic() + self._timeout_s
        idle = self._idle_by_bookie.setdefault(bookie_id, [])
        with suppress(IndexError, OSError, StoreUnavailable):  # a bookie may close an idle connection
            return self._exchange_and_keep(idle.pop(), idle, request, deadline_s)
        try:
            connection = _connect(addresses[bookie_id], deadline_s)
            return self._exchange_and_keep(connection, idle, request, deadline_s)
        except (OSError, StoreUnavailable) as error:
            self._directory.failure_by_id[bookie_id] = str(error)
            return StoreUnavailable(str(error))

    @staticmethod
    def _exchange_and_keep(
        connection: socket.socket, idle: list[socket.socket], request: EntryRequest, deadline_s: float
    ) -> EntryAnswer:
        with ExitStack() as on_error:
            on_error.enter_context(connection)
            answer = _exchange(connection, request, deadline_s)
            on_error.pop_all()
        idle.append(connection)
        return answer


def read_stored_entries(
    connections: BookieConnections, metadata_by_ledger_id: Mapping[int, LedgerMetadata], places: Collection[EntryPlace]
) -> dict[EntryPlace, BookieEntry | StoreUnavailable | UnreadableMetadata]:
    """Return the entry at each place, or the reason why it cannot be read.

    The bookies of an entry are asked one after another: with a write quorum below the ensemble size, not every bookie
    has the entry. The reason is `UnreadableMetadata` if the entry is damaged, or its type of digest is unknown.
    """
    results: dict[EntryPlace, BookieEntry | StoreUnavailable | UnreadableMetadata] = {}
    failures_by_place: dict[EntryPlace, list[str]] = {place: [] for place in places}
    for attempt in count():
        request_by_place: dict[EntryPlace, EntryRequest] = {}
        for place in failures_by_place.keys() - results.keys():
            ledger_id, entry_id = place
            if request := _choose_request(metadata_by_ledger_id[ledger_id], ledger_id, entry_id, attempt):
                request_by_place[place] = request
            else:
                failures = "; ".join(failures_by_place[place])
                results[place] = StoreUnavailable(
                    f"ledger {ledger_id}: no bookie returned entry {entry_id}: {failures}"
                )
        if not request_by_place:
            break
        answers = connections.read_entries(list(request_by_place.values()))
        for place, request in request_by_place.items():
            try:
                entries, failures_of_request = open_entries(
                    metadata_by_ledger_id[place[0]], [request], answers, "it does not have the entry"
                )
            except UnreadableMetadata as error:
                results[place] = error
            else:
                results.update((place, entry) for entry in entries)
                failures_by_place[place] += failures_of_request
    return results


def _choose_request(metadata: LedgerMetadata, ledger_id: int, entry_id: int, attempt: int) -> EntryRequest | None:
    """Return the request of an attempt, first to the bookie that is the first one to store the entry."""
    bookie_ids = metadata.find_segment(entry_id).bookie_ids
    if attempt >= len(bookie_ids):
        return None
    return EntryRequest(ledger_id, bookie_ids[(entry_id + attempt) % len(bookie_ids)], entry_id)


def open_entries(
    metadata: LedgerMetadata,
    requests: Iterable[EntryRequest],
    answers: Mapping[EntryRequest, EntryAnswer],
    failure_if_absent: str,
) -> tuple[list[BookieEntry], list[str]]:
    """Return the entries of some answers, and a failure for each bookie without an answer.

    Raises:
        UnreadableMetadata: An entry is damaged, or its type of digest is unknown.
    """
    entries: list[BookieEntry] = []
    failures: list[str] = []
    for request in requests:
        answer = answers[request]
        failure = failure_if_absent if answer is None else str(answer)
        if isinstance(answer, bytes):
            try:
                entries.append(_open_envelope(request, metadata.digest, answer))
                continue
            except StoreUnavailable as error:
                failure = str(error)
        if failure:
            failures.append(f"bookie {request.bookie_id}: {failure}")
    return entries, failures


def _open_envelope(request: EntryRequest, digest: str, envelope: bytes) -> BookieEntry:
    """Return the entry.

    Raises:
        StoreUnavailable: It is not the requested one.
        UnreadableMetadata: The entry is damaged, or its type of digest is unknown.
    """
    subject = f"ledger {request.ledger_id}"
    size = {"CRC32": 8, "CRC32C": 4, "DUMMY": 0}.get(digest)
    if size is None:
        expected = "a digest of the type CRC32, CRC32C or DUMMY"
        raise UnreadableMetadata(subject, expected=expected, found=repr(digest))
    start = _ENVELOPE.size + size
    if len(envelope) < start:
        raise UnreadableMetadata(subject, expected=f"an entry of {start} bytes or more", found=f"{len(envelope)} bytes")
    stated_ledger, entry_id, last_confirmed, _ = _ENVELOPE.unpack_from(envelope)
    if stated_ledger != request.ledger_id or request.entry_id not in {LAST_ENTRY, entry_id}:
        requested = "the last entry" if request.entry_id == LAST_ENTRY else f"entry {request.entry_id}"
        raise StoreUnavailable(f"it answered with entry {entry_id} of ledger {stated_ledger}, not with {requested}")
    payload = envelope[start:]
    covered = envelope[: _ENVELOPE.size] + payload
    computed = {
        "CRC32": lambda: struct.pack(">q", zlib.crc32(covered)),
        "CRC32C": lambda: struct.pack(">I", google_crc32c.value(covered)),  # type: ignore[no-untyped-call]
        "DUMMY": bytes,
    }[digest]()
    stated = envelope[_ENVELOPE.size : start]
    if computed != stated:
        subject = f"{subject}, entry {entry_id}"
        raise UnreadableMetadata(subject, expected=f"the digest {computed.hex()}", found=stated.hex())
    return BookieEntry(entry_id, last_confirmed, payload)


def _connect(address: BookieAddress | None, deadline_s: float) -> socket.socket:
    if address is None:
        raise StoreUnavailable("it is not registered")
    timeout_s = max(deadline_s - time.monotonic(), _MIN_WAIT_S)
    return socket.create_connection((address.host, address.port), timeout=timeout_s)


def _exchange(connection: socket.socket, request: EntryRequest, deadline_s: float) -> EntryAnswer:
    """Send a request and receive its answer.

    Raises:
        OSError: The connection is lost, or the bookie does not answer in time.
        StoreUnavailable: What the bookie sends is no response.
    """
    message = struct.pack(">iqq", _READ_HEADER, request.ledger_id, request.entry_id)
    connection.sendall(struct.pack(">I", len(message)) + message)
    (length,) = struct.unpack(">I", _receive(connection, 4, deadline_s))
    if not _RESPONSE.size <= length <= _MAX_RESPONSE_BYTES:
        raise StoreUnavailable(f"expected a response of {_RESPONSE.size} bytes or more, found {length}")
    response = _receive(connection, length, deadline_s)
    _, code, answered_id, _ = _RESPONSE.unpack_from(response)
    if code in {_NO_LEDGER, _NO_ENTRY}:
        return None
    if code != _OK or answered_id != request.ledger_id:
        return StoreUnavailable(f"it answered with code {code} for ledger {answered_id}")
    return response[_RESPONSE.size :]


def _receive(connection: socket.socket, size: int, deadline_s: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        connection.settimeout(max(deadline_s - time.monotonic(), _MIN_WAIT_S))
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
