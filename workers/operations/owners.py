"""Owners of bundles, as an operator sees them, and taking a bundle away from its owner."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from infra.coordination.directory import LiveWorker, OwnershipDirectory
from infra.coordination.identity import check_path
from infra.coordination.session import ZooKeeperSession
from logstore.errors import PreconditionFailed
from logstore.ownership import BundleId, OwnerNode, bundle_name
from logstore.ports.catalog import AuditLog, Cause, Fence, Fences
from workers.hosting.owning import ensemble_of
from workers.settings import Settings

_PATIENCE_S: Final = 5.0  # of a person who asks; a worker's own is its session timeout


class SessionState(StrEnum):
    """The state of the session that made an owner's node."""

    ALIVE = "ALIVE"  # it stands, and the worker is enlisted in it
    UNLISTED = "UNLISTED"  # it stands, and the worker is not enlisted in it: it is starting or ending
    GONE = "GONE"  # it does not stand: the node is about to vanish, or was put there by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """An owner's node."""

    worker_id: str  # empty: the node cannot be read
    session: int | None  # None: there are no sessions
    state: SessionState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRow:
    """One bundle."""

    bundle: BundleId
    name: str
    held: OwnerRow | None
    fence: int  # 0: it was never acquired
    fenced_by: str | None  # who acquired it last: mostly the owner


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker."""

    worker_id: str
    load: float | None  # as it told last; None where no worker tells
    room: bool | None  # whether it takes bundles now
    bundles: int  # that name it as their owner
    session: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All bundles ascending, and workers by id."""

    bundles: list[BundleRow]
    workers: list[WorkerRow]

    def __str__(self) -> str:
        free = sum(row.held is None for row in self.bundles)
        return f"{len(self.bundles)} bundles, {free} without an owner"


@contextmanager
def open_directory(settings: Settings, bundles: int, catalog_id: str) -> Iterator[OwnershipDirectory]:
    """Look into ZooKeeper, without taking part.

    Raises:
        CatalogMismatch: The path is another catalog's.
        ServiceFailed: It is not known, cannot be reached, or refuses us.
    """
    with open_session(settings) as session:
        check_path(session, catalog_id)
        yield OwnershipDirectory(session, bundles)


@contextmanager
def open_session(settings: Settings) -> Iterator[ZooKeeperSession]:
    """A session that only looks.

    Raises:
        ServiceFailed: ZooKeeper is not known, cannot be reached, or refuses us.
    """
    ensemble = ensemble_of(settings)
    session = ZooKeeperSession(replace(ensemble, timeout_s=min(ensemble.timeout_s, _PATIENCE_S)), lambda _: None)
    try:
        yield session
    finally:
        session.close()


def overview(fences: Fences, directory: OwnershipDirectory | None) -> Overview:
    """Join what ZooKeeper and the catalog say; without ZooKeeper the worker that acquired a bundle last owns it.

    It is not of one moment: nodes are read before sessions, and both before fences.

    Raises:
        StoreUnavailable, SessionLost, ServiceFailed: One of the two could not be asked.
    """
    if directory is None:
        last = {one.bundle: one for one in fences.fences()}
        held = {one: OwnerRow(worker_id=fence.worker_id, session=None, state=None) for one, fence in last.items()}
        live: Mapping[str, LiveWorker] = {}
    else:
        nodes, live, sessions = directory.owner_nodes(), directory.live_workers(), directory.live_sessions()
        held = {one: _held(node, live, sessions) for one, node in nodes.items()}
        last = {one.bundle: one for one in fences.fences()}
    count = fences.bundles()
    rows = [
        BundleRow(
            bundle=one,
            name=bundle_name(one, bundles=count),
            held=held.get(one),
            fence=last[one].counter if one in last else 0,
            fenced_by=last[one].worker_id if one in last else None,
        )
        for one in map(BundleId, range(count))
    ]
    return Overview(bundles=rows, workers=_workers(held, live, known=directory is not None))


def _held(node: OwnerNode, live: Mapping[str, LiveWorker], sessions: Collection[int]) -> OwnerRow:
    worker = live.get(node.worker_id)
    if node.session not in sessions:
        state = SessionState.GONE
    elif worker is None or worker.session != node.session:
        state = SessionState.UNLISTED
    else:
        state = SessionState.ALIVE
    return OwnerRow(worker_id=node.worker_id, session=node.session, state=state)


def _workers(held: Mapping[BundleId, OwnerRow], live: Mapping[str, LiveWorker], *, known: bool) -> list[WorkerRow]:
    """Those alive; where none of them tells that it is, those that bundles name."""
    named = Counter(one.worker_id for one in held.values())
    if not known:
        return [
            WorkerRow(worker_id=one, load=None, room=None, bundles=n, session=None) for one, n in sorted(named.items())
        ]
    return [
        WorkerRow(worker_id=name, load=one.load.load, room=one.load.room, bundles=named[name], session=one.session)
        for name, one in sorted(live.items())
    ]


_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A bundle with its owner, as read."""

    bundle: BundleId
    name: str
    worker_id: str
    session: int
    fence: int  # as raised last, by this owner or one before


class Unloading:
    """For one command."""

    def __init__(self, fences: Fences, audit_log: AuditLog, directory: OwnershipDirectory) -> None:
        """Take the ports."""
        self._fences, self._audit_log, self._directory = fences, audit_log, directory

    def find(self, bundle: BundleId) -> Owned:
        """Its owner.

        Raises:
            PreconditionFailed: It has none.
        """
        name = bundle_name(bundle, bundles=self._fences.bundles())
        fence = self._fences.fence(bundle)  # before the node: a later raise is then told from this one
        node = self._directory.owner_nodes([bundle]).get(bundle)
        if node is None:
            raise PreconditionFailed(f"bundle {name}: expected an owner, found none; nothing was changed")
        return Owned(
            bundle=bundle,
            name=name,
            worker_id=node.worker_id,
            session=node.session,
            fence=fence.counter if fence else 0,
        )

    def unload(self, owned: Owned, cause: Cause) -> None:
        """Remove the owner's node, with a row in the audit log before it and one after.

        Raises:
            PreconditionFailed: Its session is not alive, so the node stays.
            StoreUnavailable, SessionLost: No answer; it may have gone. Another look tells.
        """
        detail = {
            "bundle": owned.name,
            "worker_id": owned.worker_id,
            "session": f"{owned.session:#x}",
            "fence": owned.fence,
        }
        self._audit_log.record("unload", cause, detail=detail)
        outcome = "REMOVED"
        if not self._directory.delete_owner_node(owned.bundle, owned.session):
            # it may have gone by itself meanwhile, or by this very call, whose first answer was lost
            node = self._directory.owner_nodes([owned.bundle]).get(owned.bundle)
            outcome = "KEPT" if node and node.session == owned.session else "GONE"
        self._audit_log.record("unloaded", cause, detail={**detail, "outcome": outcome})
        if outcome == "KEPT":
            raise PreconditionFailed(
                f"bundle {owned.name}: expected its node to be of a live session, found session {owned.session:#x}, "
                "which does not stand; nothing was changed"
            )

    def taken(self, owned: Owned, *, within_s: float) -> Fence | None:
        """Wait until a worker has acquired it since, perhaps the same one; None: none did in time."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            fence, node = (
                self._fences.fence(owned.bundle),
                self._directory.owner_nodes([owned.bundle]).get(owned.bundle),
            )
            if fence and fence.counter > owned.fence and node and node.worker_id == fence.worker_id:
                return fence
            time.sleep(_LOOK_S)
        return None
