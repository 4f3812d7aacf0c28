"""Changes of one cluster by one job: last looks, deletions and restorations, in one session and under one lease."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager

from infra.pulsar.bookie_reads import BookieConnections, BookieDirectory
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import read_cluster_identity
from infra.pulsar.cluster_lease import ClusterLease
from infra.pulsar.ledger_changes import LedgerChanges
from infra.pulsar.orphan_recheck import OrphanRecheck
from infra.pulsar.owner_lookup import open_owner_directory
from infra.pulsar.stored_data import look_for_stored_data
from infra.pulsar.znode_reads import ZnodeReader
from logstore.ports.catalog import JournaledLedger
from logstore.ports.pulsar_cluster import Restoration, StoredData
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import Finding
from logstore.stop_checks import raise_if_stopped


@contextmanager
def open_cluster_changes(
    cluster: PulsarCluster, holder: str, *, shadow_topics: Collection[str] = ()
) -> Iterator["LeasedClusterChanges"]:
    """Take the lease of the cluster. For arguments and errors see `PulsarClusterAccess.open_changes`."""
    with (
        closing(cluster.open_session()) as session,
        cluster.open_reader(parallel_sessions=1) as reader,
        open_owner_directory(cluster, reader, parallel_sessions=1) as owners,
    ):
        cluster_lease = ClusterLease(session, holder)
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

    def require_orphans(self, findings: Sequence[Finding]) -> list[JournaledLedger]:
        return self._recheck.require_orphans(findings)

    def delete(self, ledgers: Sequence[JournaledLedger]) -> None:
        self._changes.delete(ledgers)

    def find_existing(self, ledger_ids: Collection[int]) -> frozenset[int]:
        ids = list(ledger_ids)
        znodes = self._reader.read([f"{self.ledgers_root}/{format_ledger_path(ledger_id)}" for ledger_id in ids])
        return frozenset(ledger_id for ledger_id, (_, znode) in zip(ids, znodes, strict=True) if znode is not None)

    def restore(self, ledgers: Sequence[JournaledLedger]) -> list[tuple[Restoration, StoredData]]:
        restorations = []
        for ledger in ledgers:
            raise_if_stopped()
            restorations.append(self._changes.restore(ledger.path, ledger.data))
        with BookieConnections(BookieDirectory(self._reader, self.ledgers_root)) as connections:
            return list(zip(restorations, look_for_stored_data(connections, ledgers), strict=True))
