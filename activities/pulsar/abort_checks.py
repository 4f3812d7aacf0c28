"""Checks of transactions before the first of them is aborted."""

from collections.abc import Iterable
from typing import Final

from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.pulsar_cluster import ClusterTransactions
from logstore.pulsar.cluster_transactions import OpenTransaction, find_abort_refusal
from logstore.stop_checks import raise_if_stopped
from logstore.transactions.transaction_ids_and_states import TransactionId

_MAX_REFUSALS: Final = 5  # in a message


def require_abortable(
    transactions: ClusterTransactions, transaction_ids: Iterable[str], *, now_s: float, unsafe_age: bool
) -> list[OpenTransaction]:
    """Return the transactions as they are now, in the order of their ids.

    Raises:
        PreconditionFailed: One of them is unknown, has ended, is being committed, or is too young.
        ServiceFailed, StoreUnavailable: One of them cannot be read.
    """
    abortable: list[OpenTransaction] = []
    refusals: list[str] = []
    for transaction_id in transaction_ids:
        raise_if_stopped()
        try:
            transaction = transactions.find(TransactionId.parse(transaction_id))
        except UnknownObject as error:
            refusals.append(f"transaction {transaction_id}: expected {error.expected}, found none")
            continue
        if transaction is None:
            refusals.append(f"transaction {transaction_id}: expected OPEN or ABORTING, found that it has ended")
            continue
        abortable.append(transaction)
        if refusal := find_abort_refusal(transaction, now_s=now_s, unsafe_age=unsafe_age):
            refusals.append(refusal)
    if refusals:
        more = f" {len(refusals) - _MAX_REFUSALS:,} more are refused." if len(refusals) > _MAX_REFUSALS else ""
        raise PreconditionFailed(f"{'. '.join(refusals[:_MAX_REFUSALS])}.{more} Nothing was aborted")
    return abortable
