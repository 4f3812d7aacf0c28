"""Reads of the logs of transaction coordinators, from ZooKeeper and bookies. No broker is asked."""

from collections.abc import Sequence
from typing import Final

from infra.pulsar.bookie_reads import BookieConnections, BookieDirectory, read_stored_entries
from infra.pulsar.ledger_scan import read_ledger_metadata
from infra.pulsar.newest_entries import list_last_entry_requests, open_last_entries
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import PreconditionFailed
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, LedgerMetadata
from logstore.pulsar.ledger_references import find_managed_ledger_references
from logstore.pulsar.transaction_log import LoggedTransaction, find_open_transactions
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS

_LOG_PREFIX: Final = f"{MANAGED_LEDGERS}/pulsar/system/persistent/__transaction_log_"
_MAX_ENTRIES: Final = 20_000
"""Longest log that is read. A coordinator trims its log, unless an old transaction keeps it."""
_MAX_BYTES: Final = 256 << 20
_ENTRIES_PER_BATCH: Final = 16  # few, because memory holds a batch beyond the limit, and an entry may have 16 MiB


def read_logged_transactions(
    reader: ZnodeReader, directory: BookieDirectory, ledgers_root: str, coordinator: int
) -> dict[int, LoggedTransaction] | None:
    """Return the open transactions of a coordinator by their sequences, or `None` if it has no log.

    A coordinator has no log before its first transaction.

    Raises:
        StoreUnavailable: Too few bookies answer.
        PreconditionFailed: The log is too long.
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
        _require_size(coordinator, "entries", len(places), _MAX_ENTRIES)
        payloads: list[bytes] = []
        size_bytes = 0
        for start in range(0, len(places), _ENTRIES_PER_BATCH):
            batch = places[start : start + _ENTRIES_PER_BATCH]
            entry_by_place = read_stored_entries(connections, metadata_by_ledger_id, batch)
            for place in batch:
                entry = entry_by_place[place]
                if isinstance(entry, Exception):
                    raise entry
                payloads.append(entry.payload)
                size_bytes += len(entry.payload)
            _require_size(coordinator, "bytes", size_bytes, _MAX_BYTES)
    return payloads


def _require_size(coordinator: int, unit: str, size: int, max_size: int) -> None:
    if size > max_size:
        limits = f"expected at most {max_size:,} {unit}, found {size:,} or more"
        advice = "The coordinator trims its log when its oldest transaction ends."
        raise PreconditionFailed(f"log of coordinator {coordinator}: {limits}. {advice}")


def _read_metadata(reader: ZnodeReader, ledgers_root: str, ledger_ids: Sequence[int]) -> dict[int, LedgerMetadata]:
    metadata_by_ledger_id: dict[int, LedgerMetadata] = {}
    for ledger_id, metadata in read_ledger_metadata(reader, ledgers_root, ledger_ids).items():
        if isinstance(metadata, UnreadableMetadata):
            raise metadata
        metadata_by_ledger_id[ledger_id] = metadata
    return metadata_by_ledger_id


def _find_last_entries(
    connections: BookieConnections, metadata_by_ledger_id: dict[int, LedgerMetadata]
) -> dict[int, int]:
    """Return the last entry of each ledger, -1 for an empty one. Bookies say which one an open ledger has.

    Only the newest ledger of the log can be open and empty: the broker closes a ledger before it adds the next one.
    """
    last_by_ledger_id = {ledger_id: metadata.last_entry for ledger_id, metadata in metadata_by_ledger_id.items()}
    unclosed = {
        ledger_id: metadata
        for ledger_id, metadata in metadata_by_ledger_id.items()
        if metadata.state is not BookKeeperLedgerState.CLOSED
    }
    requests = [request for item in unclosed.items() for request in list_last_entry_requests(*item)]
    answers = connections.read_entries(requests)
    for ledger_id, metadata in unclosed.items():
        is_newest = ledger_id == next(reversed(metadata_by_ledger_id))
        entries = open_last_entries(ledger_id, metadata, answers, can_be_empty=is_newest)
        last_by_ledger_id[ledger_id] = max((entry.entry_id for entry in entries), default=-1)
    return last_by_ledger_id
