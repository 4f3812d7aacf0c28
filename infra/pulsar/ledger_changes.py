"""Deletion and restoration of znodes of ledgers, under the lease of the cluster.

A deletion names the version of the znode. A request deletes all of its znodes, or none. Nothing here deletes a parent,
and nothing asks a bookie: a bookie finds out by itself that a ledger has no metadata, and frees its space.

Source: BookKeeper's garbage collection, which compares the ledgers of a bookie with the metadata.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from infra.coordination.zookeeper_session import ZooKeeperSession
from infra.pulsar.cluster_lease import ANY_VERSION, ClusterLease, TakenLease, find_failed_operation, make_lease_lost
from logstore.errors import UnexpectedClusterState
from logstore.failpoints import effect
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.pulsar_cluster import Restoration
from logstore.pulsar.znode_names import parse_ledger_path


class LedgerChanges:
    """Changes of the znodes of ledgers below `ledgers_root`. Each request checks the lease, and may renew it before."""

    def __init__(
        self, session: ZooKeeperSession, ledgers_root: str, cluster_lease: ClusterLease, lease: TakenLease
    ) -> None:
        self._session, self._root = session, ledgers_root
        self._cluster_lease, self._lease = cluster_lease, lease

    def delete(self, ledgers: Sequence[JournaledLedger], owner_versions: Mapping[str, int]) -> bool:
        """Delete znodes in one request. A znode that is absent counts as deleted. Idempotent.

        Return `False`, and delete nothing, if an owner of `owner_versions` has another version now, or is gone.

        Raises:
            UnexpectedClusterState: A znode has another version. Nothing was deleted.
            LeaseLost: Another process has taken the lease.
            UnreadableMetadata: A path is not the one of any ledger. Nothing was deleted.
            StoreUnavailable: ZooKeeper did not answer. Znodes may be deleted.
        """
        for ledger in ledgers:
            parse_ledger_path(ledger.path)  # never a parent, and never the state of BookKeeper itself
        self._lease = self._cluster_lease.renew_if_old(self._lease)
        delete = partial(self._delete_all_or_none, ledgers=ledgers, owner_versions=owner_versions)
        with effect("pulsar.delete_ledgers"):
            return self._session.run_idempotent("deleting ledgers", delete)

    def require_lease(self) -> None:
        """Renew the lease before a change that is no transaction of ZooKeeper.

        Raises:
            LeaseLost: Another process has taken the lease.
        """
        self._lease = self._cluster_lease.renew()

    def restore(self, path: str, data: bytes) -> Restoration:
        """Create the znode of a ledger again, with the access rights of its parent. Idempotent.

        Raises:
            UnexpectedClusterState: The root of the ledgers does not exist.
            LeaseLost: Another process has taken the lease.
            UnreadableMetadata: The path is not the one of any ledger.
            StoreUnavailable: ZooKeeper did not answer. The znode may be restored.
        """
        parse_ledger_path(path)
        self._lease = self._cluster_lease.renew_if_old(self._lease)
        with effect("pulsar.restore_ledger"):
            return self._session.run_idempotent("restoring a ledger", lambda client: self._create(client, path, data))

    def _delete_all_or_none(
        self, client: KazooClient, ledgers: Sequence[JournaledLedger], owner_versions: Mapping[str, int]
    ) -> bool:
        remaining = list(ledgers)
        while remaining:
            transaction = self._begin(client)
            for path, version in owner_versions.items():
                transaction.check(f"/{path}", version)
            for ledger in remaining:
                transaction.delete(self._absolute(ledger.path), ledger.version)
            failure = self._commit(transaction, BadVersionError, NoNodeError)
            if failure is None:
                return True
            number, error = failure
            if number < len(owner_versions):
                return False
            path = self._absolute(remaining[number - len(owner_versions)].path)
            if isinstance(error, BadVersionError):
                expected = "expected the version that was read, found another one"
                raise UnexpectedClusterState(f"{path}: {expected}; plan again")
            client.sync(path)
            remaining = [ledger for ledger in remaining if client.exists(self._absolute(ledger.path))]
        return True

    def _create(self, client: KazooClient, path: str, data: bytes) -> Restoration:
        """Create the znode and the parents that are absent in one transaction, but never the root of the ledgers."""
        absolute = self._absolute(path)
        while True:
            acl, missing_parents = self._find_missing_parents(client, path)
            transaction = self._begin(client)
            for parent in missing_parents:
                transaction.create(parent, b"", acl=acl)
            transaction.create(absolute, data, acl=acl)
            if self._commit(transaction, NodeExistsError, NoNodeError) is None:
                return Restoration.RESTORED
            try:
                return Restoration.PRESENT if client.get(absolute)[0] == data else Restoration.OCCUPIED
            except NoNodeError:  # a parent came or went meanwhile
                client.sync(absolute)

    def _find_missing_parents(self, client: KazooClient, path: str) -> tuple[Any, list[str]]:
        """Return the access rights of the nearest existing parent, and the parents that are absent, highest first.

        BookKeeper gives a ledger the rights of its parents.
        """
        missing: list[str] = []
        folder = path.rpartition("/")[0]
        while True:
            absolute = self._absolute(folder).rstrip("/")
            try:
                return client.get_acls(absolute)[0], missing
            except NoNodeError:
                if not folder:
                    raise UnexpectedClusterState(f"{absolute}: expected the root of ledgers, found nothing") from None
            missing.insert(0, absolute)
            folder = folder.rpartition("/")[0]

    def _begin(self, client: KazooClient) -> Any:  # noqa: ANN401 - kazoo's transaction
        transaction = client.transaction()
        transaction.check(self._lease.mark, ANY_VERSION)
        return transaction

    def _commit(self, transaction: Any, *expected_errors: type[Exception]) -> tuple[int, Exception] | None:  # noqa: ANN401
        """Return the operation behind the check of the lease that failed, by its number, and its error, or `None`."""
        failure = find_failed_operation(transaction.commit())
        if failure is None:
            return None
        number, error = failure
        if number == 0 and isinstance(error, NoNodeError):
            raise make_lease_lost(self._lease.holder)
        if not isinstance(error, expected_errors):
            raise error
        return number - 1, error

    def _absolute(self, path: str) -> str:
        return f"/{self._root}/{path}"
