"""Changes of one cluster by one job: last looks, deletions and restorations, in one session and under one lease.

A deletion of ledgers has a look at all that may refer to them right before it, and another one right after it. A
reference that appears between the two is handled in one of two ways:

- The owner of a ledger exists, and gets the reference: each request checks the versions of owners. The deletion is
  refused, and there is another look.
- The owner is created or created anew, or something else of the topic gets the reference. No request can check that:
  ZooKeeper checks versions of existing znodes only. The look after the deletion finds the reference, and the ledger is
  put back at once.

Objects, uploads and managed ledgers cannot be put back. Each of them has a look right before its removal, while the
lease is the job's own.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Final

from infra.pulsar.bookie_reads import BookieConnections, BookieDirectory
from infra.pulsar.broker_admin import BrokerAdmin, BrokerAdminAddress
from infra.pulsar.broker_registrations import list_registered_brokers
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import (
    find_own_cluster_name,
    list_possible_cluster_names,
    read_cluster_identity,
    require_admin_api_of_cluster,
)
from infra.pulsar.cluster_lease import ClusterLease
from infra.pulsar.ledger_changes import LedgerChanges
from infra.pulsar.ledger_scan import find_existing_ledgers
from infra.pulsar.managed_ledger_removal import ManagedLedgerRemoval
from infra.pulsar.offload_removal import OffloadRemoval
from infra.pulsar.offload_store import open_offload_store
from infra.pulsar.orphan_recheck import OrphanRecheck, OwnerVersion
from infra.pulsar.owner_lookup import OwnerDirectory, open_owner_directory
from infra.pulsar.stored_data import look_for_stored_data
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import (
    InvalidInput,
    PreconditionFailed,
    StoreUnavailable,
    UnexpectedClusterState,
    UnreadableClusterState,
)
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.pulsar_cluster import RemovalLook, RemovalResult, Restoration, StoredData
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.reconciliation.findings import Finding, FindingFate, FindingKind
from logstore.stop_checks import raise_if_stopped

_DELETION_TIMEOUT_S: Final = 120.0
"""A broker deletes all ledgers and offloads of a managed ledger before it answers."""

_MAX_LOOKS: Final = 5
"""Looks before one request of a deletion, while owners of its ledgers change."""

_MAX_LEDGERS_PER_REQUEST: Final = 100

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
            RemovalsByKind(cluster, reader, owners, shadow_topics),
            cluster.ledgers_root,
        )


def release_cluster_lease(cluster: PulsarCluster, holder: str) -> None:
    with closing(cluster.open_session()) as session:
        ClusterLease(session, holder).release()


class LeasedClusterChanges:
    """The port `ClusterChanges`."""

    def __init__(
        self,
        reader: ZnodeReader,
        changes: LedgerChanges,
        recheck: OrphanRecheck,
        removals: "RemovalsByKind",
        ledgers_root: str,
    ) -> None:
        self._reader, self._changes, self._recheck, self.ledgers_root = reader, changes, recheck, ledgers_root
        self._removals = removals
        self.identity = read_cluster_identity(reader, ledgers_root)

    def read_planned(self, findings: Sequence[Finding]) -> list[JournaledLedger]:
        self._require_same_cluster()
        return self._recheck.read_planned(findings)

    def delete(self, ledgers: Sequence[JournaledLedger]) -> None:
        owners = self._look(ledgers)
        try:
            for request in _split_into_requests(ledgers, owners):
                raise_if_stopped()
                self._delete_in_one_request(request, owners)
        except UnexpectedClusterState:  # earlier requests have deleted ledgers, and no attempt comes later
            self._look_after_deletion(ledgers)
            raise
        self._look_after_deletion(ledgers)

    def find_existing(self, ledger_ids: Collection[int]) -> frozenset[int]:
        self._require_same_cluster()
        return find_existing_ledgers(self._reader, self.ledgers_root, list(ledger_ids))

    def look(self, kind: FindingKind, findings: Sequence[Finding]) -> list[RemovalLook]:
        self._require_same_cluster()
        return self._removals.look(kind, findings)

    def remove(self, kind: FindingKind, findings: Sequence[Finding]) -> list[RemovalResult]:
        looks = self.look(kind, findings)
        present = [(finding, look) for finding, look in zip(findings, looks, strict=True) if look.parts]
        if present:
            self._changes.require_lease()
        results = iter(self._removals.remove(kind, present))
        return [next(results) if look.parts else _make_result_without_parts(look) for look in looks]

    def restore(self, ledgers: Sequence[JournaledLedger]) -> list[tuple[Restoration, StoredData]]:
        self._require_same_cluster()
        restorations = []
        for ledger in ledgers:
            raise_if_stopped()
            restorations.append(self._changes.restore(ledger.path, ledger.data))
        with BookieConnections(BookieDirectory(self._reader, self.ledgers_root)) as connections:
            return list(zip(restorations, look_for_stored_data(connections, ledgers), strict=True))

    def _delete_in_one_request(self, ledgers: Sequence[JournaledLedger], owners: Mapping[int, OwnerVersion]) -> None:
        for _ in range(_MAX_LOOKS):
            request_owners = [owners[ledger.ledger_id] for ledger in ledgers]
            versions = {owner.path: owner.version for owner in request_owners if owner.version is not None}
            if self._changes.delete(ledgers, versions):
                return
            owners = self._look(ledgers)
        raise StoreUnavailable(f"cluster: expected owners that rest, found that one changed at {_MAX_LOOKS} looks")

    def _look_after_deletion(self, ledgers: Sequence[JournaledLedger]) -> None:
        self._require_same_cluster()
        self._require_no_reference(ledgers)

    def _look(self, ledgers: Sequence[JournaledLedger]) -> dict[int, OwnerVersion]:
        self._require_same_cluster()
        self._recheck.require_unchanged(ledgers)
        return self._require_no_reference(ledgers)

    def _require_no_reference(self, ledgers: Sequence[JournaledLedger]) -> dict[int, OwnerVersion]:
        """Look for references. If there is one, put back the ledgers that are deleted, of this attempt or others."""
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


def _split_into_requests(
    ledgers: Sequence[JournaledLedger], owners: Mapping[int, OwnerVersion]
) -> Iterator[list[JournaledLedger]]:
    """Yield the ledgers of each request. A request of one ledger may have an owner with a name of any length."""
    request: list[JournaledLedger] = []
    characters_by_owner: dict[str, int] = {}
    for ledger in ledgers:
        path = owners[ledger.ledger_id].path
        characters = sum(characters_by_owner.values()) + len(path)
        if request and (len(request) == _MAX_LEDGERS_PER_REQUEST or characters > _MAX_OWNER_CHARACTERS):
            yield request
            request, characters_by_owner = [], {}
        request.append(ledger)
        characters_by_owner[path] = len(path)
    if request:
        yield request


class RemovalsByKind:
    """Looks and removals of each kind, with the address that the kind needs."""

    def __init__(
        self, cluster: PulsarCluster, reader: ZnodeReader, owners: OwnerDirectory, shadow_topics: Collection[str]
    ) -> None:
        self._cluster, self._reader, self._owners, self._shadow_topics = cluster, reader, owners, shadow_topics

    @cached_property
    def _offloads(self) -> OffloadRemoval:
        store = open_offload_store(self._cluster.offloads)
        return OffloadRemoval(store, self._reader, self._cluster.ledgers_root, self._shadow_topics)

    @cached_property
    def _managed_ledgers(self) -> ManagedLedgerRemoval:
        if self._cluster.admin is None:
            expected = "the admin API of a broker or proxy, as http://broker:8080"
            raise InvalidInput("pulsar_admin_url", expected=expected, found="nothing")
        try:
            admin = self._open_admin_api(self._cluster.admin)
        except UnreadableMetadata as error:
            raise UnreadableClusterState(f"cluster: expected brokers that a request may go to. {error}") from error
        return ManagedLedgerRemoval(admin, self._reader, self._owners, self._shadow_topics)

    def _open_admin_api(self, address: BrokerAdminAddress) -> BrokerAdmin:
        """Raise `InvalidInput` for the API of another cluster, which may have a topic of the same name in use."""
        brokers = list_registered_brokers(self._reader)
        admin = BrokerAdmin(address, brokers, timeout_s=_DELETION_TIMEOUT_S)
        with self._cluster.open_configuration_reader(parallel_sessions=1) as configuration:
            possible_names = list_possible_cluster_names(configuration, find_own_cluster_name(self._reader, brokers))
        require_admin_api_of_cluster(admin, brokers, possible_names)
        return admin

    def look(self, kind: FindingKind, findings: Sequence[Finding]) -> list[RemovalLook]:
        if kind is FindingKind.ORPHAN_MANAGED_LEDGER:
            return [self._managed_ledgers.look(finding) for finding in findings]
        return self._offloads.look(kind, findings)

    def remove(self, kind: FindingKind, findings: Sequence[tuple[Finding, RemovalLook]]) -> list[RemovalResult]:
        """Remove the parts that a look returned."""
        if kind is FindingKind.ORPHAN_MANAGED_LEDGER:
            return [self._managed_ledgers.remove(finding) for finding, _ in findings]
        looks = [look for _, look in findings]
        if kind is FindingKind.ORPHAN_OFFLOAD:
            return self._offloads.delete_objects(looks) if looks else []
        return self._offloads.abort_uploads(looks)


def _make_result_without_parts(look: RemovalLook) -> RemovalResult:
    return RemovalResult(fate=FindingFate.KEPT if look.reason else FindingFate.DELETED, reason=look.reason)
