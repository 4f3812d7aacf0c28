"""A Pulsar cluster without ZooKeeper: what a check says of it is given, and its ledgers are in memory."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from logstore.errors import PreconditionFailed, StoreUnavailable, UnexpectedClusterState
from logstore.failpoints import effect
from logstore.ports.catalog import JournaledLedger
from logstore.ports.pulsar_cluster import Restoration, StoredData
from logstore.pulsar.cluster_check import ClusterCapability, ClusterCheck
from logstore.pulsar.cluster_findings import require_ledger_id
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import Finding

IDENTITY = "5f0a/1/2"


class FakePulsarCluster:
    """The port `PulsarClusterAccess`."""

    def __init__(self) -> None:
        """Begin with a cluster of which all is well."""
        self.result = ClusterCheck(cluster="east", identity=IDENTITY, capabilities=())
        self.has_bucket = False
        self.errors: list[Exception] = []  # of the next calls
        self.ledgers: dict[int, bytes] = {}
        self.referenced: set[int] = set()
        self.lease = ("", 0)  # holder and version
        self.is_exclusive = True
        self.before_change: Callable[[], None] = lambda: None

    def fail_check(self, name: str, detail: str) -> None:
        """Let a check fail."""
        capability = ClusterCapability(name=name, ok=False, detail=detail)
        self.result = replace(self.result, capabilities=(*self.result.capabilities, capability))

    def replace_cluster(self) -> None:
        """Let the settings name another cluster from now on."""
        self.result = replace(self.result, identity="77aa/8/9")

    def check(self) -> ClusterCheck:
        """See the port."""
        if self.errors:
            raise self.errors.pop(0)
        return self.result

    def has_offload_bucket(self) -> bool:
        """See the port."""
        return self.has_bucket

    def read_identity(self) -> str:
        """See the port."""
        return self.check().identity

    def is_bookkeeper_exclusive(self) -> bool:
        """See the port."""
        return self.is_exclusive

    @contextmanager
    def open_changes(self, holder: str, *, shadow_topics: Collection[str] = ()) -> Iterator["FakeClusterChanges"]:
        """See the port."""
        del shadow_topics
        identity = self.check().identity
        current, version = self.lease
        if current not in {"", holder}:
            raise PreconditionFailed(f"cluster: expected no other job that changes it, found {current}")
        with effect("pulsar.take_lease"):
            self.lease = (holder, version + 1)
        yield FakeClusterChanges(self, identity, self.lease)

    def release_lease(self, holder: str) -> None:
        """See the port."""
        current, version = self.lease
        with effect("pulsar.release_lease"):
            if current == holder:
                self.lease = ("", version + 1)


class FakeClusterChanges:
    """The port `ClusterChanges`."""

    def __init__(self, cluster: FakePulsarCluster, identity: str, lease: tuple[str, int]) -> None:
        self._cluster, self.identity, self._lease = cluster, identity, lease
        self.ledgers_root = "ledgers"

    def require_orphans(self, findings: Sequence[Finding]) -> list[JournaledLedger]:
        """See the port."""
        ids = [require_ledger_id(finding) for finding in findings]
        if referenced := self._cluster.referenced.intersection(ids):
            raise UnexpectedClusterState(f"ledger {min(referenced)}: expected no reference, found one")
        return [
            JournaledLedger(
                ledger_id=ledger_id,
                path=format_ledger_path(ledger_id),
                version=0,
                czxid=1,
                data=self._cluster.ledgers[ledger_id],
            )
            for ledger_id in ids
            if ledger_id in self._cluster.ledgers
        ]

    def delete(self, ledgers: Sequence[JournaledLedger]) -> None:
        """See the port."""
        self._cluster.before_change()
        with effect("pulsar.delete_ledgers"):
            self._require_lease()
            for ledger in ledgers:
                self._cluster.ledgers.pop(ledger.ledger_id, None)

    def find_existing(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """See the port."""
        return frozenset(self._cluster.ledgers.keys() & set(ledger_ids))

    def restore(self, ledgers: Sequence[JournaledLedger]) -> list[tuple[Restoration, StoredData]]:
        """See the port."""
        self._cluster.before_change()
        results = []
        for ledger in ledgers:
            with effect("pulsar.restore_ledger"):
                self._require_lease()
                present = self._cluster.ledgers.setdefault(ledger.ledger_id, ledger.data)
            restoration = Restoration.RESTORED if present == ledger.data else Restoration.OCCUPIED
            results.append((restoration, StoredData.STORED))
        return results

    def _require_lease(self) -> None:
        if self._cluster.lease != self._lease:
            raise StoreUnavailable("cluster: the lease was lost")
