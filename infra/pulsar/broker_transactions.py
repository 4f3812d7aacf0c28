"""Transactions of one cluster, through the admin API of its brokers."""

from collections.abc import Iterator
from contextlib import contextmanager

from infra.pulsar.broker_admin import BrokerAdmin
from infra.pulsar.broker_registrations import list_registered_brokers
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import read_cluster_identity
from infra.pulsar.open_transactions import (
    abort_transaction,
    find_open_transaction,
    read_open_transactions,
    read_participants_after_end,
)
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import InvalidInput
from logstore.failpoints import effect
from logstore.pulsar.cluster_transactions import OpenTransaction, TransactionParticipant, TransactionReport
from logstore.transactions.transaction_ids_and_states import TransactionId


@contextmanager
def open_broker_transactions(cluster: PulsarCluster) -> Iterator["BrokerTransactions"]:
    """Open a session for the block.

    Raises:
        InvalidInput: The settings name no admin API.
        ServiceFailed: No server of ZooKeeper answers.
    """
    if cluster.admin is None:
        expected = "the admin API of a broker or proxy, as http://broker:8080"
        raise InvalidInput("pulsar_admin_url", expected=expected, found="nothing")
    with cluster.open_reader(parallel_sessions=1) as reader:
        yield BrokerTransactions(
            BrokerAdmin(cluster.admin, list_registered_brokers(reader)), reader, cluster.ledgers_root
        )


class BrokerTransactions:
    """The port `ClusterTransactions`."""

    def __init__(self, admin: BrokerAdmin, reader: ZnodeReader, ledgers_root: str) -> None:
        self._admin, self._reader, self._root = admin, reader, ledgers_root

    def read_identity(self) -> str:
        return read_cluster_identity(self._reader, self._root)

    def list_open(self) -> TransactionReport:
        return read_open_transactions(self._admin, self._reader, self._root)

    def find(self, transaction_id: TransactionId) -> OpenTransaction | None:
        return find_open_transaction(self._admin, self._reader, self._root, transaction_id)

    def read_participants_after_end(self, transaction: OpenTransaction) -> tuple[TransactionParticipant, ...]:
        return read_participants_after_end(self._admin, transaction)

    def abort(self, transaction_id: TransactionId) -> None:
        with effect("pulsar.abort_transaction"):
            abort_transaction(self._admin, transaction_id)
