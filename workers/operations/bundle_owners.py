"""Bundle owners for operators: an overview, and removal of a bundle from its owner."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from infra.coordination.ownership_nodes import LiveWorker, OwnershipNodes, check_path_belongs_to_catalog
from infra.coordination.zookeeper_session import ZooKeeperSession
from logstore.catalog.audit_log import AuditLogWriter
from logstore.catalog.ownership.fences import Fences
from logstore.errors import PreconditionFailed
from logstore.ownership import BundleId, BundleOwnerNode, Lease, bundle_name
from logstore.ports.catalog.deletion import AuditCause
from workers.hosting.bundle_ownership import ensemble_from_settings
from workers.settings import Settings

_MAX_SESSION_TIMEOUT_S: Final = 5.0  # short, because a person waits; workers use the setting `session_timeout`


class OwnerSessionState(StrEnum):
    ALIVE = "ALIVE"  # the session exists, and its worker is registered
    UNLISTED = "UNLISTED"  # the session exists, but its worker is not registered: it is starting or ending
    GONE = "GONE"  # the session does not exist: the node is about to vanish, or was created by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOwnerSession:
    worker_id: str  # empty: the node cannot be read
    session: int | None  # None: ownership without ZooKeeper has no sessions
    state: OwnerSessionState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSummary:
    bundle: BundleId
    name: str
    owner: BundleOwnerSession | None
    fence: int  # 0: never acquired
    fenced_by: str | None  # worker that acquired the bundle last; usually its owner


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSummary:
    worker_id: str
    bundles: int  # number of owned bundles
    live: LiveWorker | None  # None: ownership without ZooKeeper


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipOverview:
    bundles: list[BundleSummary]
    workers: list[WorkerSummary]

    def __str__(self) -> str:
        unowned_count = sum(row.owner is None for row in self.bundles)
        return f"{len(self.bundles)} bundles, {unowned_count} without an owner"


@contextmanager
def open_directory(settings: Settings, bundles: int, catalog_id: str) -> Iterator[OwnershipNodes]:
    """Connect to ZooKeeper, and yield the nodes of bundle owners and workers.

    Raises:
        CatalogMismatch: ZooKeeper's path belongs to another catalog.
        ServiceFailed: No ZooKeeper is set, or ZooKeeper cannot be reached or refuses the connection.
    """
    with open_zookeeper_session(settings) as session:
        check_path_belongs_to_catalog(session, catalog_id)
        yield OwnershipNodes(session, bundles)


@contextmanager
def open_zookeeper_session(settings: Settings) -> Iterator[ZooKeeperSession]:
    ensemble = ensemble_from_settings(settings)
    timeout_s = min(ensemble.timeout_s, _MAX_SESSION_TIMEOUT_S)
    session = ZooKeeperSession(replace(ensemble, timeout_s=timeout_s), lambda _: None)
    try:
        yield session
    finally:
        session.close()


def read_ownership_overview(fences: Fences, directory: OwnershipNodes | None) -> OwnershipOverview:
    """Return the bundle owners in ZooKeeper and the fences in the catalog. The fences are read after the owners.

    If `directory` is `None`, the last worker that acquired a bundle counts as its owner.
    """
    if directory is None:
        lease_by_bundle = {lease.bundle: lease for lease in fences.list_newest_leases()}
        owner_by_bundle = {
            bundle: BundleOwnerSession(worker_id=lease.worker_id, session=None, state=None)
            for bundle, lease in lease_by_bundle.items()
        }
        live_workers: Mapping[str, LiveWorker] = {}
    else:
        nodes, live_workers = directory.read_owner_nodes(), directory.read_live_workers()
        sessions = directory.read_live_sessions()
        owner_by_bundle = {bundle: _summarize_owner(node, live_workers, sessions) for bundle, node in nodes.items()}
        lease_by_bundle = {lease.bundle: lease for lease in fences.list_newest_leases()}
    bundle_count = fences.count_bundles()
    rows = [
        BundleSummary(
            bundle=bundle,
            name=bundle_name(bundle, bundle_count=bundle_count),
            owner=owner_by_bundle.get(bundle),
            fence=lease_by_bundle[bundle].fence if bundle in lease_by_bundle else 0,
            fenced_by=lease_by_bundle[bundle].worker_id if bundle in lease_by_bundle else None,
        )
        for bundle in map(BundleId, range(bundle_count))
    ]
    bundle_count_by_worker = Counter(owner.worker_id for owner in owner_by_bundle.values())
    workers = [
        WorkerSummary(worker_id=worker_id, bundles=bundle_count_by_worker[worker_id], live=live_workers.get(worker_id))
        for worker_id in sorted(bundle_count_by_worker if directory is None else live_workers)
    ]
    return OwnershipOverview(bundles=rows, workers=workers)


def _summarize_owner(
    node: BundleOwnerNode, live_workers: Mapping[str, LiveWorker], sessions: Collection[int]
) -> BundleOwnerSession:
    worker = live_workers.get(node.worker_id)
    if node.session not in sessions:
        state = OwnerSessionState.GONE
    elif worker is None or worker.session != node.session:
        state = OwnerSessionState.UNLISTED
    else:
        state = OwnerSessionState.ALIVE
    return BundleOwnerSession(worker_id=node.worker_id, session=node.session, state=state)


_POLL_INTERVAL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBundle:
    bundle: BundleId
    name: str
    node: BundleOwnerNode
    fence: int  # counter of the fence, raised by this owner or an earlier owner


class BundleUnloader:
    def __init__(self, fences: Fences, audit_log: AuditLogWriter, directory: OwnershipNodes) -> None:
        self._fences, self._audit_log, self._directory = fences, audit_log, directory

    def find_owner(self, bundle: BundleId) -> OwnedBundle:
        """Return the bundle with its owner, or raise `PreconditionFailed` if the bundle has no owner."""
        name = bundle_name(bundle, bundle_count=self._fences.count_bundles())
        # The fence is read before the node, so that `wait_until_acquired` notices every later acquisition.
        lease = self._fences.get_newest_lease(bundle)
        node = self._directory.read_owner_nodes([bundle]).get(bundle)
        if node is None:
            raise PreconditionFailed(f"bundle {name}: expected an owner, found none; nothing was changed")
        return OwnedBundle(bundle=bundle, name=name, node=node, fence=lease.fence if lease else 0)

    def remove_owner(self, owned: OwnedBundle, cause: AuditCause) -> None:
        """Remove the owner's node. The audit log gets the attempt before the removal, and the outcome afterwards.

        Raises:
            PreconditionFailed: The session of the node is not alive, so the node stays.
            StoreUnavailable, SessionLost: No answer arrived, so the node may be gone. Read the owner again.
        """
        detail = {
            "bundle": owned.name,
            "worker_id": owned.node.worker_id,
            "session": f"{owned.node.session:#x}",
            "fence": owned.fence,
        }
        self._audit_log.record_act("unload", cause, detail=detail)
        outcome = "REMOVED"
        if not self._directory.delete_owner_node(owned.bundle, owned.node.session):
            # The node may have vanished with its session. Or this call removed it, but the first answer was lost.
            node = self._directory.read_owner_nodes([owned.bundle]).get(owned.bundle)
            outcome = "KEPT" if node and node.session == owned.node.session else "GONE"
        self._audit_log.record_act("unloaded", cause, detail={**detail, "outcome": outcome})
        if outcome == "KEPT":
            raise PreconditionFailed(
                f"bundle {owned.name}: expected its node to be of a live session, "
                f"found session {owned.node.session:#x}, which does not stand; nothing was changed"
            )

    def wait_until_acquired(self, owned: OwnedBundle, *, within_s: float) -> Lease | None:
        """Return the lease of the next acquisition by any worker, or `None` if nobody acquires the bundle in time."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            lease = self._fences.get_newest_lease(owned.bundle)
            node = self._directory.read_owner_nodes([owned.bundle]).get(owned.bundle)
            if lease and lease.fence > owned.fence and node and node.worker_id == lease.worker_id:
                return lease
            time.sleep(_POLL_INTERVAL_S)
        return None
