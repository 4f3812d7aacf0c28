"""Deletion and restoration of znodes of ledgers, under the lease of the cluster.

A deletion names the version of the znode. A request deletes all of its znodes, or none. Nothing here deletes a parent,
and nothing asks a bookie: a bookie finds out by itself that a ledger has no metadata, and frees its space.

Source: BookKeeper's garbage collection, which compares the ledgers of a bookie with the metadata.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError

from infra.coordination.zookeeper_session import ZooKeeperSession
from infra.pulsar.cluster_lease import LEASE_PATH, ClusterLease, LeaseLost, TakenLease
from logstore.errors import UnexpectedClusterState
from logstore.failpoints import effect
from logstore.ports.catalog import JournaledLedger
from logstore.ports.pulsar_cluster import Restoration
from logstore.pulsar.znode_names import parse_ledger_path

_DELETES_PER_REQUEST: Final = 100


class LedgerChanges:
    """Changes of the znodes of ledgers below `ledgers_root`. Each request checks the lease, and may renew it before."""

    def __init__(
        self, session: ZooKeeperSession, ledgers_root: str, cluster_lease: ClusterLease, lease: TakenLease
    ) -> None:
        self._session, self._root = session, ledgers_root
        self._cluster_lease, self._lease = cluster_lease, lease

    def delete(self, ledgers: Sequence[JournaledLedger]) -> None:
        """Delete the znodes. A znode that is absent counts as deleted. Idempotent.

        Raises:
            UnexpectedClusterState: A znode has another version. Znodes of earlier requests are deleted.
            LeaseLost: Another process has taken the lease.
            UnreadableMetadata: A path is not the one of any ledger. Nothing was deleted.
            StoreUnavailable: ZooKeeper did not answer. Znodes may be deleted.
        """
        for ledger in ledgers:
            parse_ledger_path(ledger.path)  # never a parent, and never the state of BookKeeper itself
        for start in range(0, len(ledgers), _DELETES_PER_REQUEST):
            part = ledgers[start : start + _DELETES_PER_REQUEST]
            self._lease = self._cluster_lease.renew_if_old(self._lease)
            with effect("pulsar.delete_ledgers"):
                self._session.run_idempotent("deleting ledgers", partial(self._delete_all_or_none, ledgers=part))

    def restore(self, path: str, data: bytes) -> Restoration:
        """Create the znode of a ledger again, with the access rights of its parent. Idempotent.

        Raises:
            LeaseLost: Another process has taken the lease.
            UnreadableMetadata: The path is not the one of any ledger.
            StoreUnavailable: ZooKeeper did not answer. The znode may be restored.
        """
        parse_ledger_path(path)
        self._lease = self._cluster_lease.renew_if_old(self._lease)
        with effect("pulsar.restore_ledger"):
            return self._session.run_idempotent("restoring a ledger", lambda client: self._create(client, path, data))

    def _delete_all_or_none(self, client: KazooClient, ledgers: Sequence[JournaledLedger]) -> None:
        remaining = list(ledgers)
        while remaining:
            transaction = self._begin(client)
            for ledger in remaining:
                transaction.delete(self._absolute(ledger.path), ledger.version)
            error = self._commit(transaction, [self._absolute(ledger.path) for ledger in remaining])
            if error is None:
                return
            if not isinstance(error, NoNodeError):
                raise error
            remaining = [ledger for ledger in remaining if client.exists(self._absolute(ledger.path))]

    def _create(self, client: KazooClient, path: str, data: bytes) -> Restoration:
        absolute = self._absolute(path)
        parent = absolute.rpartition("/")[0]
        acl = _read_acl_of_nearest(client, parent)
        client.ensure_path(parent, acl=acl)
        transaction = self._begin(client)
        transaction.create(absolute, data, acl=acl)
        error = self._commit(transaction, [absolute])
        if error is None:
            return Restoration.RESTORED
        if not isinstance(error, NodeExistsError):
            raise error
        return Restoration.PRESENT if client.get(absolute)[0] == data else Restoration.OCCUPIED

    def _begin(self, client: KazooClient) -> Any:  # noqa: ANN401 - kazoo's transaction
        transaction = client.transaction()
        transaction.check(LEASE_PATH, self._lease.version)
        return transaction

    def _commit(self, transaction: Any, paths: Sequence[str]) -> Exception | None:  # noqa: ANN401
        """Return the error of the operation that failed, or `None`. Raise an error that no repetition can avoid."""
        lease_result, *results = transaction.commit()
        if not isinstance(lease_result, Exception):
            return None
        if not isinstance(lease_result, RolledBackError):
            raise LeaseLost(f"cluster: expected the lease of {self._lease.holder}, found another one; apply again")
        path, error = next(
            (path, result)
            for path, result in zip(paths, results, strict=True)
            if isinstance(result, Exception) and not isinstance(result, RolledBackError)
        )
        if isinstance(error, BadVersionError):
            raise UnexpectedClusterState(f"{path}: expected the version that was read, found another one; plan again")
        return error

    def _absolute(self, path: str) -> str:
        return f"/{self._root}/{path}"


def _read_acl_of_nearest(client: KazooClient, path: str) -> Any:  # noqa: ANN401 - kazoo's list
    """Return the access rights of the nearest existing parent. BookKeeper gives a ledger those of its parents."""
    while True:
        try:
            return client.get_acls(path)[0]
        except NoNodeError:
            path = path.rpartition("/")[0]
