"""What a topic knows of a producer's sequence ids, by which duplicates are told.

Entries in an open transaction are stored for that transaction alone: whether they will ever be there is not known
yet. So meanwhile nothing else is taken from their producer; and if the transaction aborts, they were never stored.

Source: Pulsar's message deduplication (highest sequence id persisted per producer); Kafka, where a transactional
producer has one transaction at a time.
"""

from typing import NamedTuple

from logstore.transactions.transactions import TransactionId


class ProducerSequence(NamedTuple):
    """How far a producer's ids have come in a topic. Bounds are inclusive; -1: none."""

    committed: int = -1  # stored for good
    last: int = -1  # the same, or stored in `txn`
    txn: TransactionId | None = None  # open

    @staticmethod
    def without_transaction(last: int) -> "ProducerSequence":
        """Stored for good."""
        return ProducerSequence(last, last)

    def refuses(self, txn: TransactionId | None) -> bool:
        """Whether new entries in this transaction, or in none, are not taken, because another one is open."""
        return self.txn is not None and self.txn != txn

    def advance(self, last: int, txn: TransactionId | None) -> "ProducerSequence":
        """Once entries up to `last` are stored in this transaction, or in none; they were not refused."""
        return (
            ProducerSequence.without_transaction(last) if txn is None else ProducerSequence(self.committed, last, txn)
        )
