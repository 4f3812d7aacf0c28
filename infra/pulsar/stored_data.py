"""Reads from bookies that tell whether they still have entries of ledgers.

The reads do not fence a ledger: bookies go on to accept entries of its writer.
"""

from collections.abc import Sequence

from infra.pulsar.bookie_reads import BookieConnections, EntryAnswer, EntryRequest
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.pulsar_cluster import StoredData
from logstore.pulsar.ledger_metadata import LedgerMetadata, parse_ledger_metadata


def look_for_stored_data(connections: BookieConnections, ledgers: Sequence[JournaledLedger]) -> list[StoredData]:
    """Ask each bookie of each ledger for the last entry that it has. A ledger that is closed and empty is `STORED`."""
    requests_by_ledger = [_make_requests(ledger.ledger_id, parse_ledger_metadata(ledger.data)) for ledger in ledgers]
    answers = connections.read_entries([request for requests in requests_by_ledger for request in requests])
    return [_judge_answers([answers[request] for request in requests]) for requests in requests_by_ledger]


def _make_requests(ledger_id: int, metadata: LedgerMetadata) -> list[EntryRequest]:
    if metadata.is_empty:
        return []
    return [EntryRequest(ledger_id, bookie_id) for bookie_id in sorted(metadata.bookie_ids)]


def _judge_answers(answers: Sequence[EntryAnswer]) -> StoredData:
    if not answers or any(isinstance(answer, bytes) for answer in answers):
        return StoredData.STORED
    return StoredData.GONE if all(answer is None for answer in answers) else StoredData.UNKNOWN
