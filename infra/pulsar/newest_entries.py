"""Newest entries of ledgers that a broker may be writing.

Source: BookKeeper's `LedgerRecoveryOp`, which decides where a ledger ends.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from infra.pulsar.bookie_reads import (
    LAST_ENTRY,
    BookieConnections,
    BookieEntry,
    EntryAnswer,
    EntryRequest,
    open_entries,
)
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, LedgerMetadata
from logstore.pulsar.unreadable_metadata import UnreadableMetadata

_MAX_UNCONFIRMED: Final = 100
"""Entries at the end of a ledger that are not confirmed, at most. A broker has a few writes of a cursor on the way."""


NewestEntries = list[BookieEntry] | StoreUnavailable | UnreadableMetadata
Answers = Mapping[EntryRequest, EntryAnswer]


def read_newest_entries(
    connections: BookieConnections, metadata_by_ledger_id: Mapping[int, LedgerMetadata]
) -> dict[int, NewestEntries]:
    """Return the entries that may be the last one of each ledger, ascending, or the reason why they are unknown.

    The ledgers must have entries. The reason is `StoreUnavailable` if too few bookies answer, or if the entries that
    they have cannot be the last ones. It is `UnreadableMetadata` if an entry is damaged, or its digest is unknown.
    """
    results: dict[int, NewestEntries] = {}
    reads = {ledger_id: _LedgerRead(ledger_id, metadata) for ledger_id, metadata in metadata_by_ledger_id.items()}
    for ask, add in (
        (_LedgerRead.list_last_requests, _LedgerRead.add_last_entries),
        (_LedgerRead.list_missing_requests, _LedgerRead.add_missing_entries),
    ):
        answers = connections.read_entries([request for read in reads.values() for request in ask(read)])
        for ledger_id, read in list(reads.items()):
            try:
                add(read, answers)
            except (StoreUnavailable, UnreadableMetadata) as error:
                results[ledger_id] = error
                del reads[ledger_id]
    return results | {ledger_id: read.sort_entries() for ledger_id, read in reads.items()}


class _LedgerRead:
    """Entries of one ledger that may be its last one."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self._ledger_id, self._metadata = ledger_id, metadata
        self._entries: list[BookieEntry] = []
        self._confirmed = -1
        self._missing_ids: list[int] = []

    def list_last_requests(self) -> list[EntryRequest]:
        return list_last_entry_requests(self._ledger_id, self._metadata)

    def add_last_entries(self, answers: Answers) -> None:
        """Add the last entry of each bookie, and find out which others may be the ledger's last one.

        An entry at the end may not be acknowledged, and a recovery may drop it. Then the last entry is an earlier one,
        but not earlier than the last confirmed one.
        """
        self._entries = open_last_entries(self._ledger_id, self._metadata, answers)
        newest = max(entry.entry_id for entry in self._entries)
        last_known = _find_last_known_entry(self._metadata)
        is_closed = self._metadata.state is BookKeeperLedgerState.CLOSED
        self._confirmed = last_known if is_closed else max(entry.last_confirmed for entry in self._entries)
        possible_ids = range(max(self._confirmed, 0), last_known + 1 if is_closed else newest)
        self._missing_ids = sorted(set(possible_ids) - {entry.entry_id for entry in self._entries})
        if len(self._missing_ids) > _MAX_UNCONFIRMED:
            expected = f"expected at most {_MAX_UNCONFIRMED} entries after the last confirmed one"
            raise StoreUnavailable(f"ledger {self._ledger_id}: {expected}, found {len(self._missing_ids)}")

    def list_missing_requests(self) -> list[EntryRequest]:
        return [request for entry_id in self._missing_ids for request in self._list_requests(entry_id)]

    def add_missing_entries(self, answers: Answers) -> None:
        """Add the entries that were missing. An entry that is not confirmed may be absent on all bookies."""
        for entry_id in self._missing_ids:
            entries, failures = open_entries(self._metadata, self._list_requests(entry_id), answers, "")
            self._entries += entries
            if not entries and (entry_id <= self._confirmed or len(failures) >= self._metadata.ack_quorum):
                reasons = "; ".join(failures)
                raise StoreUnavailable(f"ledger {self._ledger_id}: no bookie returned entry {entry_id}: {reasons}")

    def sort_entries(self) -> list[BookieEntry]:
        return sorted(set(self._entries), key=attrgetter("entry_id"))

    def _list_requests(self, entry_id: int) -> list[EntryRequest]:
        bookie_ids = self._metadata.find_segment(entry_id).bookie_ids
        return [EntryRequest(self._ledger_id, bookie_id, entry_id) for bookie_id in bookie_ids]


def list_last_entry_requests(ledger_id: int, metadata: LedgerMetadata) -> list[EntryRequest]:
    """Return requests to all bookies of the last segment.

    A bookie has only some of the entries if the write quorum is smaller than the ensemble.
    """
    return [EntryRequest(ledger_id, bookie_id, LAST_ENTRY) for bookie_id in metadata.segments[-1].bookie_ids]


def open_last_entries(
    ledger_id: int, metadata: LedgerMetadata, answers: Answers, *, can_be_empty: bool = False
) -> list[BookieEntry]:
    """Return the entries in the answers to `list_last_entry_requests`. One of them is the newest acknowledged entry.

    Fewer bookies than the acknowledgement quorum may fail to answer, or not have the ledger. The others then have every
    entry whose writer was answered. If the ledger can be empty, and no bookie has an entry, all of them must answer.

    Raises:
        StoreUnavailable: Too few bookies answer, or the newest entry is older than one that the metadata states.
        UnreadableMetadata: An entry is damaged, or its type of digest is unknown.
    """
    requests = list_last_entry_requests(ledger_id, metadata)
    last_known = _find_last_known_entry(metadata)
    if can_be_empty and last_known < 0 and all(answers[request] is None for request in requests):
        return []
    entries, failures = open_entries(metadata, requests, answers, "it has no entry of the ledger")
    if not entries or len(failures) >= metadata.ack_quorum:
        raise StoreUnavailable(f"ledger {ledger_id}: too few bookies answer: {'; '.join(failures)}")
    newest = max(entry.entry_id for entry in entries)
    if newest < last_known:
        missing = f"expected entry {last_known} or a later one, found entry {newest}"
        raise StoreUnavailable("; ".join([f"ledger {ledger_id}: {missing}", *failures]))
    return entries


def _find_last_known_entry(metadata: LedgerMetadata) -> int:
    return max(metadata.last_entry, metadata.segments[-1].first_entry - 1)
