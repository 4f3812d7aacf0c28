"""Reads of the logs of transaction coordinators, from ZooKeeper and bookies. No broker is asked."""

from collections.abc import Iterable
from typing import Final

from infra.pulsar.bookie_reads import (
    LAST_ENTRY,
    BookieConnections,
    BookieDirectory,
    EntryAnswer,
    EntryRequest,
    open_envelope,
)
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, LedgerMetadata, parse_ledger_metadata
from logstore.pulsar.ledger_references import find_managed_ledger_references
from logstore.pulsar.transaction_log import LoggedTransaction, find_open_transactions
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, format_ledger_path

_LOG_PREFIX: Final = f"{MANAGED_LEDGERS}/pulsar/system/persistent/__transaction_log_"
_MAX_ENTRIES: Final = 20_000
"""Longest log that is read. A coordinator trims its log, unless an old transaction keeps it."""


def read_logged_transactions(
    reader: ZnodeReader, directory: BookieDirectory, ledgers_root: str, coordinator: int
) -> dict[int, LoggedTransaction] | None:
    """Return the open transactions of a coordinator by their sequences, or `None` if it has no log.

    A coordinator has no log before its first transaction.

    Raises:
        StoreUnavailable: Too few bookies answer, or the log is too long.
        UnreadableMetadata: The log's znode, a ledger or an entry cannot be parsed.
    """
    payloads = read_log_payloads(reader, directory, ledgers_root, coordinator)
    return None if payloads is None else find_open_transactions(payloads)


def read_log_payloads(
    reader: ZnodeReader, directory: BookieDirectory, ledgers_root: str, coordinator: int
) -> list[bytes] | None:
    """Return all entries of a coordinator's log, in their order, or `None` if there is no log."""
    ((_, znode),) = reader.read([f"{_LOG_PREFIX}{coordinator}"])
    if znode is None:
        return None
    ledger_ids = find_managed_ledger_references(znode.data).ledger_ids
    metadata_by_ledger_id = _read_metadata(reader, ledgers_root, ledger_ids)
    with BookieConnections(directory) as connections:
        last_by_ledger_id = _find_last_entries(connections, metadata_by_ledger_id)
        places = [(ledger_id, entry) for ledger_id in ledger_ids for entry in range(last_by_ledger_id[ledger_id] + 1)]
        if len(places) > _MAX_ENTRIES:
            expected = f"expected at most {_MAX_ENTRIES:,} entries"
            raise StoreUnavailable(f"log of coordinator {coordinator}: {expected}, found {len(places):,}")
        payloads = _read_payloads(connections, metadata_by_ledger_id, places)
    return [payloads[place] for place in places]


def _read_metadata(reader: ZnodeReader, ledgers_root: str, ledger_ids: Iterable[int]) -> dict[int, LedgerMetadata]:
    metadata_by_ledger_id: dict[int, LedgerMetadata] = {}
    for ledger_id in ledger_ids:
        ((_, znode),) = reader.read([f"{ledgers_root}/{format_ledger_path(ledger_id)}"])
        if znode is None:
            raise UnreadableMetadata(f"ledger {ledger_id}", expected="a ledger of the log", found="no such znode")
        metadata_by_ledger_id[ledger_id] = parse_ledger_metadata(znode.data)
    return metadata_by_ledger_id


def _find_last_entries(
    connections: BookieConnections, metadata_by_ledger_id: dict[int, LedgerMetadata]
) -> dict[int, int]:
    """Return the last entry of each ledger, -1 for an empty one. Bookies say which one an open ledger has."""
    requests_by_ledger_id = {
        ledger_id: [EntryRequest(ledger_id, bookie_id, LAST_ENTRY) for bookie_id in metadata.segments[-1].bookie_ids]
        for ledger_id, metadata in metadata_by_ledger_id.items()
        if metadata.state is not BookKeeperLedgerState.CLOSED
    }
    answers = connections.read_entries([request for each in requests_by_ledger_id.values() for request in each])
    last_by_ledger_id = {ledger_id: metadata.last_entry for ledger_id, metadata in metadata_by_ledger_id.items()}
    for ledger_id, requests in requests_by_ledger_id.items():
        metadata = metadata_by_ledger_id[ledger_id]
        failures = [str(answers[request]) for request in requests if isinstance(answers[request], StoreUnavailable)]
        if len(failures) >= metadata.ack_quorum:
            raise StoreUnavailable(f"ledger {ledger_id}: too few bookies answer: {'; '.join(failures)}")
        entries = [_open(request, metadata, answers[request]) for request in requests]
        ids = [entry[0] for entry in entries if entry is not None]
        last_by_ledger_id[ledger_id] = max(ids, default=metadata.segments[-1].first_entry - 1)
    return last_by_ledger_id


def _read_payloads(
    connections: BookieConnections, metadata_by_ledger_id: dict[int, LedgerMetadata], places: list[tuple[int, int]]
) -> dict[tuple[int, int], bytes]:
    """Return the payloads by ledger and entry. The bookies of an entry are asked one after another."""
    payloads: dict[tuple[int, int], bytes] = {}
    missing, attempt = places, 0
    while missing:
        requests = [
            _choose_request(metadata_by_ledger_id[ledger_id], ledger_id, entry, attempt) for ledger_id, entry in missing
        ]
        answers = connections.read_entries([request for request in requests if request is not None])
        for place, request in zip(missing, requests, strict=True):
            if request is None:
                raise StoreUnavailable(f"ledger {place[0]}: no bookie returned entry {place[1]}")
            entry = _open(request, metadata_by_ledger_id[place[0]], answers[request])
            if entry is not None:
                payloads[place] = entry[1]
        missing, attempt = [place for place in missing if place not in payloads], attempt + 1
    return payloads


def _choose_request(metadata: LedgerMetadata, ledger_id: int, entry: int, attempt: int) -> EntryRequest | None:
    """Return the request of an attempt, first to the bookie that is the first one to store the entry."""
    segment = next(segment for segment in reversed(metadata.segments) if segment.first_entry <= entry)
    count = len(segment.bookie_ids)
    if attempt >= count:
        return None
    return EntryRequest(ledger_id, segment.bookie_ids[(entry + attempt) % count], entry)


def _open(request: EntryRequest, metadata: LedgerMetadata, answer: EntryAnswer) -> tuple[int, bytes] | None:
    if not isinstance(answer, bytes):
        return None
    entry = open_envelope(request, metadata.digest, answer)
    return entry.entry_id, entry.payload
