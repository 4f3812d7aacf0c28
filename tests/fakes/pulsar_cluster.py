"""A Pulsar cluster without ZooKeeper: what a check says of it is given, and its ledgers are in memory."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from logstore.errors import PreconditionFailed, StoreUnavailable, UnexpectedClusterState, UnreadableClusterState
from logstore.failpoints import effect
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.pulsar_cluster import RemovalLook, RemovalResult, Restoration, StoredData
from logstore.pulsar.cluster_check import ClusterCapability, ClusterCheck
from logstore.pulsar.cluster_findings import RemovalPart, require_ledger_id
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import Finding, FindingFate, FindingKind
from tests.fakes.cluster_transactions import FakeClusterTransactions

IDENTITY = "5f0a/1/2"
FIRST_ZNODE_STATE = (0, 7)
_EFFECTS = {
    FindingKind.ORPHAN_OFFLOAD: "pulsar.delete_offloads",
    FindingKind.ABANDONED_UPLOAD: "pulsar.abort_upload",
    FindingKind.ORPHAN_MANAGED_LEDGER: "pulsar.delete_managed_ledger",
}


class FakePulsarCluster:
    """The port `PulsarClusterAccess`."""

    def __init__(self) -> None:
        """Begin with a cluster of which all is well."""
        self.result = ClusterCheck(cluster="east", identity=IDENTITY, capabilities=())
        self.has_bucket = False
        self.is_bucket_exclusive = True
        self.has_api = False
        self.errors: list[Exception] = []  # of the next calls
        self.ledgers: dict[int, bytes] = {}
        self.znode_states: dict[int, tuple[int, int]] = {}  # version and creation, if they are not the first ones
        self.referenced: set[int] = set()
        self.unreadable_path = ""  # of a znode that may refer to any ledger
        self.parts: dict[str, list[RemovalPart]] = {}  # of offloads, uploads and managed ledgers, by key or path
        self.changed_paths: set[str] = set()  # of these, since the plan
        self.kept_paths: dict[str, str] = {}  # reasons
        self.refused_paths: dict[str, str] = {}  # errors of their removals
        self.lease = ("", 0)  # holder and version
        self.is_exclusive = True
        self.before_change: Callable[[], None] = lambda: None
        self.transactions = FakeClusterTransactions(self.read_identity)

    def fail_check(self, name: str, detail: str) -> None:
        """Let a check fail."""
        capability = ClusterCapability(name=name, ok=False, detail=detail)
        self.result = replace(self.result, capabilities=(*self.result.capabilities, capability))

    def replace_cluster(self) -> None:
        """Let the settings name another cluster from now on."""
        self.result = replace(self.result, identity="77aa/8/9")

    def create_ledger(self, ledger_id: int, data: bytes) -> None:
        """Create the znode of a ledger anew."""
        _, czxid = self.get_znode_state(ledger_id)
        self.ledgers[ledger_id], self.znode_states[ledger_id] = data, (0, czxid + 1)

    def get_znode_state(self, ledger_id: int) -> tuple[int, int]:
        """Return version and creation of a ledger."""
        return self.znode_states.get(ledger_id, FIRST_ZNODE_STATE)

    def check(self) -> ClusterCheck:
        """See the port."""
        if self.errors:
            raise self.errors.pop(0)
        return self.result

    def has_offload_bucket(self) -> bool:
        """See the port."""
        return self.has_bucket

    def is_offload_bucket_exclusive(self) -> bool:
        """See the port."""
        return self.is_bucket_exclusive

    def has_admin_api(self) -> bool:
        """See the port."""
        return self.has_api

    def read_identity(self) -> str:
        """See the port."""
        return self.check().identity

    def find_existing_ledgers(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """See the port."""
        return frozenset(self.ledgers.keys() & set(ledger_ids))

    def is_bookkeeper_exclusive(self) -> bool:
        """See the port."""
        return self.is_exclusive

    @contextmanager
    def open_changes(
        self, holder: str, *, shadow_topics: Collection[str] = (), overtakes: str = "", continues: bool = False
    ) -> Iterator["FakeClusterChanges"]:
        """See the port."""
        del shadow_topics
        identity = self.check().identity
        current, version = self.lease
        if current not in {"", holder, overtakes}:
            raise PreconditionFailed(f"cluster: expected no other job that changes it, found {current}")
        if continues and current != holder:
            raise PreconditionFailed(
                f"cluster: expected the lease of {holder} since it began, found {current or 'none'}"
            )
        with effect("pulsar.take_lease"):
            self.lease = (holder, version + 1)
        yield FakeClusterChanges(self, identity, self.lease)

    @contextmanager
    def open_transactions(self) -> Iterator[FakeClusterTransactions]:
        """See the port."""
        yield self.transactions

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

    def read_planned(self, findings: Sequence[Finding]) -> list[JournaledLedger]:
        """See the port."""
        self._require_same_cluster()
        ledgers = []
        for finding in findings:
            ledger_id = require_ledger_id(finding)
            if ledger_id in self._cluster.ledgers:
                self._require_state(ledger_id, (int(finding.statement["version"]), int(finding.statement["czxid"])))
                version, czxid = self._cluster.get_znode_state(ledger_id)
                path, data = format_ledger_path(ledger_id), self._cluster.ledgers[ledger_id]
                ledgers.append(JournaledLedger(ledger_id=ledger_id, path=path, version=version, czxid=czxid, data=data))
        return ledgers

    def delete(self, ledgers: Sequence[JournaledLedger]) -> None:
        """See the port."""
        self._cluster.before_change()
        self._require_same_cluster()
        with effect("pulsar.delete_ledgers"):
            self._require_lease()
            try:
                self._require_no_reference(ledgers)
            except UnexpectedClusterState:
                for ledger in ledgers:
                    if ledger.ledger_id not in self._cluster.ledgers:
                        self._cluster.create_ledger(ledger.ledger_id, ledger.data)
                raise
            for ledger in ledgers:
                if ledger.ledger_id in self._cluster.ledgers:
                    self._require_state(ledger.ledger_id, (ledger.version, ledger.czxid))
            for ledger in ledgers:
                self._cluster.ledgers.pop(ledger.ledger_id, None)

    def find_existing(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """See the port."""
        self._require_same_cluster()
        return frozenset(self._cluster.ledgers.keys() & set(ledger_ids))

    def look(self, kind: FindingKind, findings: Sequence[Finding]) -> list[RemovalLook]:
        """See the port."""
        del kind
        self._require_same_cluster()
        return [self._look(finding) for finding in findings]

    def remove(self, kind: FindingKind, findings: Sequence[Finding]) -> list[RemovalResult]:
        """See the port."""
        self._cluster.before_change()
        looks = self.look(kind, findings)
        self._require_lease()
        return [self._remove(kind, *each) for each in zip(findings, looks, strict=True)]

    def _look(self, finding: Finding) -> RemovalLook:
        if finding.key in self._cluster.changed_paths:
            raise UnexpectedClusterState(f"{finding.key}: expected what the plan saw, found a change")
        parts = self._cluster.parts.get(finding.key, [])
        reason = self._cluster.kept_paths.get(finding.key, "") if parts else ""
        return RemovalLook(parts=() if reason else tuple(parts), reason=reason)

    def _remove(self, kind: FindingKind, finding: Finding, look: RemovalLook) -> RemovalResult:
        if look.reason:
            return RemovalResult(fate=FindingFate.KEPT, reason=look.reason)
        if look.parts:
            with effect(_EFFECTS[kind]):
                if finding.key in self._cluster.refused_paths:
                    return RemovalResult(fate=FindingFate.FAILED, reason=self._cluster.refused_paths[finding.key])
                del self._cluster.parts[finding.key]
        return RemovalResult(fate=FindingFate.DELETED)

    def restore(self, ledgers: Sequence[JournaledLedger]) -> list[tuple[Restoration, StoredData]]:
        """See the port."""
        self._cluster.before_change()
        self._require_same_cluster()
        return [self._restore(ledger) for ledger in ledgers]

    def _restore(self, ledger: JournaledLedger) -> tuple[Restoration, StoredData]:
        with effect("pulsar.restore_ledger"):
            self._require_lease()
            existing = self._cluster.ledgers.get(ledger.ledger_id)
            if existing is None:
                self._cluster.create_ledger(ledger.ledger_id, ledger.data)
                return Restoration.RESTORED, StoredData.STORED
        return Restoration.PRESENT if existing == ledger.data else Restoration.OCCUPIED, StoredData.STORED

    def _require_same_cluster(self) -> None:
        if self._cluster.result.identity != self.identity:
            raise PreconditionFailed(f"cluster: expected {self.identity}, found {self._cluster.result.identity}")

    def _require_state(self, ledger_id: int, expected: tuple[int, int]) -> None:
        found = self._cluster.get_znode_state(ledger_id)
        if found != expected:
            raise UnexpectedClusterState(f"ledger {ledger_id}: expected version and creation {expected}, found {found}")

    def _require_no_reference(self, ledgers: Sequence[JournaledLedger]) -> None:
        if self._cluster.unreadable_path:
            raise UnreadableClusterState(f"{self._cluster.unreadable_path}: it may refer to an orphan")
        if referenced := self._cluster.referenced.intersection(ledger.ledger_id for ledger in ledgers):
            raise UnexpectedClusterState(f"ledger {min(referenced)}: expected no reference, found one")

    def _require_lease(self) -> None:
        if self._cluster.lease != self._lease:
            raise StoreUnavailable("cluster: the lease was lost")
