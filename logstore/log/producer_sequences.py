"""Highest sequence ids of producers in a topic, which identify duplicates.

Sequence ids that were stored in an open transaction identify duplicates only in that transaction, because it may still
abort. Until the transaction is decided, the producer cannot append new sequence ids outside of the transaction.

Source: Pulsar's message deduplication; Kafka, where a transactional producer has one transaction at a time.
"""

from typing import NamedTuple

from logstore.transactions.transaction_ids_and_states import TransactionId


class ProducerSequenceRange(NamedTuple):
    """Range of sequence ids of one producer in a segment, all in one transaction or all outside of transactions."""

    producer: str
    first: int
    last: int
    txn: TransactionId | None = None


class HighestSequenceIds(NamedTuple):
    """Highest sequence ids of a producer in a topic. -1: the producer has stored no sequence id."""

    committed: int = -1
    last: int = -1  # highest id stored in `txn`; without an open transaction, the same as `committed`
    txn: TransactionId | None = None  # open transaction

    @staticmethod
    def without_transaction(last: int) -> "HighestSequenceIds":
        return HighestSequenceIds(last, last)

    def refuses(self, txn: TransactionId | None) -> bool:
        """Return whether new sequence ids in `txn` are refused, because the producer has another open transaction."""
        return self.txn is not None and self.txn != txn

    def advance(self, last: int, txn: TransactionId | None) -> "HighestSequenceIds":
        """Return the highest ids after entries up to sequence id `last` were stored in `txn`. `None`: no transaction.

        `refuses(txn)` must be `False`.
        """
        return (
            HighestSequenceIds.without_transaction(last)
            if txn is None
            else HighestSequenceIds(self.committed, last, txn)
        )
