"""Open transactions in the log of a coordinator.

Source: Pulsar's `MLTransactionMetadataStore` and `MLTransactionLogImpl`. A coordinator writes an entry for each step of
a transaction, and keeps the entries of a transaction until it has ended.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from logstore.pulsar.metadata_values import parse_message
from logstore.pulsar.protos.transaction_log_pb2 import LogBatch, LogEntry, State
from logstore.pulsar.unreadable_metadata import UnreadableMetadata

_BATCH_MAGIC: Final = b"\x0e\x01"  # no message begins with it
_BATCH_HEADER: Final = _BATCH_MAGIC + b"\x00\x01"  # with the version
_ENDED: Final = {State.COMMITTED, State.ABORTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTransaction:
    state: str
    opened_ms: int  # by the broker's clock
    timeout_ms: int
    topics: frozenset[str] = frozenset()  # to which it writes messages
    subscriptions: frozenset[tuple[str, str]] = frozenset()  # topics and names, for which it acknowledges messages


def find_open_transactions(payloads: Iterable[bytes]) -> dict[int, LoggedTransaction]:
    """Return the transactions that have not ended, by their sequences. `payloads` are all entries, in their order.

    Raises:
        UnreadableMetadata: An entry cannot be parsed.
    """
    transactions: dict[int, LoggedTransaction] = {}
    for entry in chain.from_iterable(map(_parse_entry, payloads)):
        if entry.operation == LogEntry.NEW:
            transactions[entry.sequence] = LoggedTransaction(
                state=State.Name(State.OPEN), opened_ms=entry.opened_ms, timeout_ms=entry.timeout_ms
            )
        elif entry.sequence in transactions:  # else the steps of an ended transaction, whose first ones were deleted
            transaction = transactions[entry.sequence]
            transactions[entry.sequence] = replace(
                transaction,
                state=State.Name(entry.new_state) if entry.operation == LogEntry.UPDATE else transaction.state,
                topics=transaction.topics.union(entry.topics),
                subscriptions=transaction.subscriptions.union(
                    (each.topic, each.subscription) for each in entry.subscriptions
                ),
            )
            if entry.operation == LogEntry.UPDATE and entry.new_state in _ENDED:
                del transactions[entry.sequence]
    return transactions


def _parse_entry(payload: bytes) -> Sequence[LogEntry]:
    """Return the steps in an entry of the log: one, or a batch."""
    if not payload.startswith(_BATCH_MAGIC):
        return [parse_message(LogEntry, payload)]
    if not payload.startswith(_BATCH_HEADER):
        raise UnreadableMetadata("batch in a transaction log", expected="version 1", found=payload[2:4].hex())
    return parse_message(LogBatch, payload[len(_BATCH_HEADER) :]).entries
