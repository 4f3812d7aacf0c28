"""Changes of one cluster by one job: last looks, deletions and restorations, in one session and under one lease.

Each request of a deletion has a look at all that may refer to its ledgers right before it. A reference that appears
between the look and the deletion is handled in one of two ways:

- If the owner of a ledger exists, the request checks the version of the owner's znode. The deletion is refused if the
  owner has changed, and there is another look.
- If the owner does not exist, no request can check that: ZooKeeper checks versions of existing znodes only. There is
  another look after the deletion. If something refers to a ledger then, the ledger is put back at once.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from infra.pulsar.bookie_reads import BookieConnections, BookieDirectory
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import read_cluster_identity
from infra.pulsar.cluster_lease import ClusterLease
from infra.pulsar.ledger_changes import LedgerChanges
from infra.pulsar.ledger_scan import find_existing_ledgers
from infra.pulsar.orphan_recheck import OrphanRecheck, OwnerVersion
from infra.pulsar.owner_lookup import open_owner_directory
from infra.pulsar.stored_data import look_for_stored_data
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import PreconditionFailed, StoreUnavailable, UnexpectedClusterState
from logstore.ports.catalog import JournaledLedger
from logstore.ports.pulsar_cluster import MAX_LEDGERS_PER_DELETION, Restoration, StoredData
from logstore.reconciliation.findings import Finding
from logstore.stop_checks import raise_if_stopped

_MAX_LOOKS: Final = 5
"""Looks before one request of a deletion, while owners of its ledgers change."""

_MAX_OWNER_CHARACTERS: Final = 700_000
"""Characters in the paths of owners that one request checks. ZooKeeper refuses requests above 1 MiB."""


@contextmanager
def open_cluster_changes(
    cluster: PulsarCluster,
    holder: str,
    *,
    shadow_topics: Collection[str] = (),
    overtakes: str = "",
    continues: bool = False,
) -> Iterator["LeasedClusterChanges"]:
    """Take the lease of the cluster. For arguments and errors see `PulsarClusterAccess.open_changes`."""
    with (
        closing(cluster.open_session()) as session,
        cluster.open_reader(parallel_sessions=1) as reader,
        open_owner_directory(cluster, reader, parallel_sessions=1) as owners,
    ):
        cluster_lease = ClusterLease(session, holder, overtakes=overtakes, continues=continues)
        lease = cluster_lease.take()
        reader.sync()
        yield LeasedClusterChanges(
            reader,
            LedgerChanges(session, cluster.ledgers_root, cluster_lease, lease),
            OrphanRecheck(reader, owners, cluster.ledgers_root, shadow_topics),
            cluster.ledgers_root,
        )


def release_cluster_lease(cluster: PulsarCluster, holder: str) -> None:
    with closing(cluster.open_session()) as session:
        ClusterLease(session, holder).release()


class LeasedClusterChanges:
    """The port `ClusterChanges`."""

    def __init__(self, reader: ZnodeReader, changes: LedgerChanges, recheck: OrphanRecheck, ledgers_root: str) -> None:
        self._reader, self._changes, self._recheck, self.ledgers_root = reader, changes, recheck, ledgers_root
        self.identity = read_cluster_identity(reader, ledgers_root)

    def read_planned(self, findings: Sequence[Finding]) -> list[JournaledLedger]:
        self._require_same_cluster()
        return self._recheck.read_planned(findings)

    def delete(self, ledgers: Sequence[JournaledLedger]) -> None:
        for start in range(0, len(ledgers), MAX_LEDGERS_PER_DELETION):
            self._delete_in_one_request(ledgers[start : start + MAX_LEDGERS_PER_DELETION])

    def find_existing(self, ledger_ids: Collection[int]) -> frozenset[int]:
        self._require_same_cluster()
        return find_existing_ledgers(self._reader, self.ledgers_root, list(ledger_ids))

    def restore(self, ledgers: Sequence[JournaledLedger]) -> list[tuple[Restoration, StoredData]]:
        self._require_same_cluster()
        restorations = []
        for ledger in ledgers:
            raise_if_stopped()
            restorations.append(self._changes.restore(ledger.path, ledger.data))
        with BookieConnections(BookieDirectory(self._reader, self.ledgers_root)) as connections:
            return list(zip(restorations, look_for_stored_data(connections, ledgers), strict=True))

    def _delete_in_one_request(self, ledgers: Sequence[JournaledLedger]) -> None:
        for _ in range(_MAX_LOOKS):
            owners = self._require_no_reference(ledgers)
            versions = {owner.path: owner.version for owner in owners.values() if owner.version is not None}
            if len(ledgers) > 1 and sum(map(len, versions)) > _MAX_OWNER_CHARACTERS:
                middle = len(ledgers) // 2
                self.delete(ledgers[:middle])
                self.delete(ledgers[middle:])
                return
            if self._changes.delete(ledgers, versions):
                break
        else:
            raise StoreUnavailable(f"cluster: expected owners that rest, found that one changed at {_MAX_LOOKS} looks")
        if ownerless := [ledger for ledger in ledgers if owners[ledger.ledger_id].version is None]:
            self._require_no_reference(ownerless)

    def _require_no_reference(self, ledgers: Sequence[JournaledLedger]) -> dict[int, OwnerVersion]:
        """Look for references. If there is one, put back the ledgers that are deleted, of this attempt or others."""
        self._require_same_cluster()
        self._recheck.require_unchanged(ledgers)
        try:
            return self._recheck.require_no_reference(ledgers)
        except UnexpectedClusterState as error:
            restorations = [self._changes.restore(ledger.path, ledger.data) for ledger in self._list_absent(ledgers)]
            if not restorations:
                raise
            raise UnexpectedClusterState(f"{error}. Ledgers put back: {len(restorations)}") from error

    def _list_absent(self, ledgers: Sequence[JournaledLedger]) -> list[JournaledLedger]:
        existing = self.find_existing([ledger.ledger_id for ledger in ledgers])
        return [ledger for ledger in ledgers if ledger.ledger_id not in existing]

    def _require_same_cluster(self) -> None:
        """Wait for the newest state. Raise `PreconditionFailed` if the cluster was made anew since the lease."""
        self._reader.sync()
        identity = read_cluster_identity(self._reader, self.ledgers_root)
        if identity != self.identity:
            raise PreconditionFailed(f"cluster: expected {self.identity}, found {identity}; plan again")
