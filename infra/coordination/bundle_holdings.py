"""Acquisition and release of one worker's bundles, and the rules by which a worker takes or leaves a free bundle.

A worker acquires a bundle in three steps: it creates the owner node, raises the fence, and reads the owner node again.
The worker gets a lease only if the owner node still belongs to the worker's session. Once the fence is raised, the
catalog refuses writes under all older leases (promise 7), even if the worker or the session ends before the third step.

A worker without the owner node can raise a fence if the worker was paused between the first two steps, or runs without
ZooKeeper by mistake. The catalog then refuses the writes of the present bundle owner. Therefore each bundle owner
compares its leases with the fences. If a fence is higher than the lease, the bundle owner acquires the bundle again.

A pending bundle is one that the worker still has to acquire or to give up, such as a bundle of an expired session.

Source: PIP-57; apache/pulsar#23011, #14736, #10351.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from infra.coordination.ownership_nodes import WorkerOwnershipNodes, worker_id_taken_error
from infra.coordination.zookeeper_session import SessionState
from logstore.catalog.ownership.fences import Fences
from logstore.errors import OutcomeUnknown, RetryableError, SextonError
from logstore.ownership import (
    BundleId,
    Lease,
    OwnershipView,
    ReownAttempts,
    ReownDecision,
    WorkerLoad,
    bundles_to_shed,
    bundles_to_take,
    decide_reown,
    rank_workers,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverTimes:
    takeover_grace_s: float = 1.0  # wait of each worker in a bundle's ranking for the worker before it
    rest_s: float = 10.0  # after a worker has lost a bundle, until the worker may take the bundle again
    fence_check_interval_s: float = 5.0  # between two checks of the fences


class BundleTakeoverRules:
    """Bundles that this worker leaves to other workers for now, and bundles that it must not release yet.

    In each method, `now` is the time of the monotonic clock in seconds.
    """

    def __init__(self, worker_id: str, times: TakeoverTimes) -> None:
        self._worker_id, self._times = worker_id, times
        self._free_since: dict[BundleId, float] = {}
        self._left_until: dict[BundleId, float] = {}
        self._reserved_until: dict[BundleId, float] = {}

    @property
    def reserved(self) -> frozenset[BundleId]:
        """Bundles that this worker must not release yet, although another worker ranks first for them."""
        return frozenset(self._reserved_until)

    def leave_to_others(self, bundles: Iterable[BundleId], now: float) -> None:
        self._left_until |= dict.fromkeys(bundles, now + self._times.rest_s)

    def leave_briefly(self, bundles: Iterable[BundleId], now: float) -> None:
        """Leave each released bundle, for `takeover_grace_s`, to the worker that ranks first and takes it at once."""
        self._left_until |= dict.fromkeys(bundles, now + self._times.takeover_grace_s)

    def find_due_bundles(self, view: OwnershipView, now: float) -> set[BundleId]:
        self._free_since = {bundle: self._free_since.get(bundle, now) for bundle in view.free_bundles}
        self._left_until = {bundle: until for bundle, until in self._left_until.items() if until > now}
        free_for_s = {bundle: now - since for bundle, since in self._free_since.items()}
        due = bundles_to_take(
            view, self._worker_id, free_for_s=free_for_s, takeover_grace_s=self._times.takeover_grace_s
        )
        return set(due) - self._left_until.keys()

    def reserve(self, bundles: Iterable[BundleId], view: OwnershipView, now: float) -> None:
        """Keep each of `bundles` for which another worker ranks first: do not release it for `rest_s` seconds.

        Without a reservation, this worker would release the bundle at once. Source: apache/pulsar#14736.
        """
        self._reserved_until = {bundle: until for bundle, until in self._reserved_until.items() if until > now}
        takers = {worker_id: view.workers[worker_id] for worker_id in view.available_workers}
        taken_over = [bundle for bundle in bundles if rank_workers(bundle, takers)[:1] != [self._worker_id]]
        self._reserved_until |= dict.fromkeys(taken_over, now + self._times.rest_s)


class BundleListener(Protocol):
    """Listener for acquired and lost bundles. Its methods run on the thread of `BundleOwner` and must return soon."""

    def on_acquired(self, lease: Lease) -> None:
        """Drop the caches of the bundle's topics, and load them again. Called for each lease of the bundle.

        Other threads get the lease only after this method has returned.

        Raises:
            RetryableError: The caches cannot be loaded now. This worker or another worker acquires the bundle later.
        """

    def on_unloaded(self, bundle: BundleId) -> None:
        """Stop work on a lost bundle and drop the caches of its topics. Also called after a failed `on_acquired`."""


class UnloadReason(StrEnum):
    SHED = "SHED"  # released to a worker with fewer bundles
    STOPPED = "STOPPED"  # the worker ends
    REMOVED = "REMOVED"  # a person or a program deleted the owner node while the session was alive
    OVERTAKEN = "OVERTAKEN"  # another worker raised the fence; this worker acquires the bundle again
    FOREIGN = "FOREIGN"  # after an expiry, another worker owned the bundle, or no attempt was left


class OwnershipObserver:
    """Observer of a worker's ownership, for telemetry.

    An override must return at once and must not raise. `on_session_state` is called on kazoo's thread.
    """

    def on_session_opened(self, session: int) -> None: ...

    def on_session_state(self, state: SessionState) -> None: ...

    def on_lease_count(self, lease_count: int) -> None:
        """Record the number of leases. After the expiry of a session, the number is 0."""

    def trace_acquisition(self, bundles: Collection[BundleId]) -> AbstractContextManager[object]:
        del bundles
        return nullcontext()

    def on_acquired(self, leases: Collection[Lease]) -> None: ...

    def on_unloaded(self, bundles: Collection[BundleId], reason: UnloadReason) -> None: ...

    def on_reconciled(self, pending_bundles: int) -> None:
        """Record the number of bundles that are still pending after `BundleHoldings.reconcile`."""

    def on_ended(self, failure: SextonError | None) -> None:
        """Record that this worker will own no bundle any more. `failure` is `None` if the worker was asked to stop."""


# Within `_ATTEMPTS_RESET_S`, in one session. A higher number would be a sign of a loop (apache/pulsar#14736).
_MAX_CREATES_PER_BUNDLE: Final = 5
_ATTEMPTS_RESET_S: Final = 60.0  # a session may last for months and would reach a limit without a loop
_BUNDLES_PER_MOVE: Final = 50  # while load is balanced, one bundle in 50 may be without an owner


class BundleHoldings:
    """Bundles of one worker, across its sessions. Only one thread calls the methods. Any thread may read `leases`."""

    def __init__(
        self,
        worker_id: str,
        fences: Fences,
        listener: BundleListener,
        takeover: TakeoverTimes,
        events: OwnershipObserver | None = None,
    ) -> None:
        self._worker_id, self._fences, self._listener = worker_id, fences, listener
        self._events = events or OwnershipObserver()
        self.bundle_count = fences.count_bundles()
        self.leases: Mapping[BundleId, Lease] = MappingProxyType({})
        # Value: the earlier session in which the bundle was acquired, or None.
        self._pending_bundles: dict[BundleId, int | None] = {}
        self._postponed: set[BundleId] = set()  # pending bundles whose listener failed at the last `reconcile`
        self._is_catalog_unreachable = False  # the last raise of fences failed
        self._worker_id_by_bundle: dict[BundleId, str] = {}  # bundle owners, as last read
        self._owner_change = -1  # change counter of the owner nodes at that time
        self._takeover = BundleTakeoverRules(worker_id, takeover)
        self._reset_attempts(session=0, waits=0)
        self._fence_check_interval_s, self._fences_checked_at_s = takeover.fence_check_interval_s, time.monotonic()
        self._published_load: WorkerLoad | None = None
        self._is_registered = False  # the worker's node belongs to the present session

    @property
    def should_check_soon(self) -> bool:
        """Whether a pending bundle waits only for an old owner node to vanish, not for the catalog or the listener."""
        return not self._is_catalog_unreachable and bool(self._pending_bundles.keys() - self._postponed)

    def on_session_expired(self, session: int) -> None:
        self._pending_bundles |= dict.fromkeys(self.leases, session)
        self._set_leases({})

    def begin_session(self, session: int, *, waits: int) -> None:
        """Reset the attempts to acquire bundles. `waits` limits the checks of each owner node of an old session."""
        self._reset_attempts(session, waits)
        self._owner_change, self._published_load = -1, None

    def release_all(self) -> None:
        """Release all bundles because the worker stops. ZooKeeper deletes the owner nodes at the end of the session."""
        self._unload_bundles(list(self.leases), UnloadReason.STOPPED)
        self._pending_bundles = {}

    def reconcile(self, nodes: WorkerOwnershipNodes, load: float) -> None:
        """Compare leases with owner nodes and fences, then acquire and release bundles, and publish the load.

        The next call repeats a failed step.
        """
        now = time.monotonic()
        if now - self._attempts_reset_at_s >= _ATTEMPTS_RESET_S:
            self._reset_attempts(self._attempts.session, self._attempts.waits)
        view = self._read_view(nodes)
        # An owner node that vanished during its session was removed on purpose. Other workers go first.
        removed = [bundle for bundle in self.leases if view.owners.get(bundle) != self._worker_id]
        self._unload_bundles(removed, UnloadReason.REMOVED)
        self._takeover.leave_to_others(removed, now)
        self._unload_bundles(self._find_overtaken_bundles_if_due(now), UnloadReason.OVERTAKEN)
        if self._check_catalog_reachable():
            due = self._takeover.find_due_bundles(view, now) - self.leases.keys()
            self._takeover.reserve(due, view, now)
            self._pending_bundles |= dict.fromkeys(
                (due | self._bundles_without_lease(view)) - self._pending_bundles.keys()
            )
            self._acquire_or_give_up_pending(nodes, now)
        else:
            nodes.delete_own_nodes(self._bundles_without_lease(view))  # another worker may reach the catalog
        self._shed_surplus_bundles(nodes, view, now)
        self._register_and_publish_load(nodes, load)
        self._events.on_reconciled(len(self._pending_bundles))

    def _find_overtaken_bundles_if_due(self, now: float) -> list[BundleId]:
        """Return the bundles whose fence was raised after this worker acquired its lease.

        The result is empty if no comparison is due yet, or if the catalog does not answer.
        """
        if not self.leases or now - self._fences_checked_at_s < self._fence_check_interval_s:
            return []
        self._fences_checked_at_s = now
        try:
            newest_leases = set(self._fences.list_newest_leases())
        except RetryableError as error:
            _log.info("fences are looked at again later: %s", error)
            return []
        return [lease.bundle for lease in self.leases.values() if lease not in newest_leases]

    def _register_and_publish_load(self, nodes: WorkerOwnershipNodes, load: float) -> None:
        worker_load = WorkerLoad(load=load, bundles=len(self.leases), room=not self._is_catalog_unreachable)
        if not self._is_registered and not nodes.register_worker(worker_load):
            raise worker_id_taken_error(self._worker_id)
        if worker_load != self._published_load:
            nodes.publish_load(worker_load)
            self._published_load = worker_load

    def _check_catalog_reachable(self) -> bool:
        """Return whether the catalog answers. Without the catalog, new owner nodes would only block other workers."""
        if self._is_catalog_unreachable:
            try:
                self._fences.count_bundles()
            except RetryableError as error:
                _log.info("takes no bundle yet: %s", error)
                return False
            self._is_catalog_unreachable = False
        return True

    def _reset_attempts(self, session: int, waits: int) -> None:
        self._attempts = ReownAttempts(session=session, creates=_MAX_CREATES_PER_BUNDLE, waits=waits)
        self._attempts_reset_at_s = time.monotonic()

    def _read_view(self, nodes: WorkerOwnershipNodes) -> OwnershipView:
        change = nodes.read_owner_change_counter()
        if change != self._owner_change:
            self._worker_id_by_bundle = {bundle: node.worker_id for bundle, node in nodes.read_owner_nodes().items()}
            self._owner_change = change
        live = nodes.read_live_workers()
        self._is_registered = self._worker_id in live and live[self._worker_id].session == self._attempts.session
        workers = {worker_id: worker.load for worker_id, worker in live.items()}
        return OwnershipView(bundle_count=self.bundle_count, workers=workers, owners=self._worker_id_by_bundle)

    def _bundles_without_lease(self, view: OwnershipView) -> set[BundleId]:
        """Return bundles that have this worker's owner node but no lease."""
        return {bundle for bundle, owner in view.owners.items() if owner == self._worker_id} - self.leases.keys()

    def _acquire_or_give_up_pending(self, nodes: WorkerOwnershipNodes, now: float) -> None:
        self._postponed = set()
        if not self._pending_bundles:
            return
        node_by_bundle = nodes.read_owner_nodes(self._pending_bundles)
        session = self._attempts.session
        decision_by_bundle = {}
        for bundle, acquiring_session in self._pending_bundles.items():
            decision = decide_reown(
                node_by_bundle.get(bundle),
                session=session,
                worker_id=self._worker_id,
                acquiring_session=acquiring_session,
            )
            decision_by_bundle[bundle] = self._attempts.spend_attempt(bundle, decision)
        foreign = [bundle for bundle, decision in decision_by_bundle.items() if decision is ReownDecision.UNLOAD]
        acquired_before = [bundle for bundle in foreign if self._pending_bundles.pop(bundle) is not None]
        self._notify_unloaded(acquired_before, UnloadReason.FOREIGN)
        own = [bundle for bundle, node in node_by_bundle.items() if node.session == session]
        # No attempt is left for these bundles, so other workers may take them.
        exhausted = [bundle for bundle in own if decision_by_bundle[bundle] is ReownDecision.UNLOAD]
        self._takeover.leave_to_others(exhausted, now)
        nodes.delete_own_nodes(exhausted)
        to_acquire = [
            bundle
            for bundle, decision in decision_by_bundle.items()
            if decision in {ReownDecision.CREATE, ReownDecision.KEEP}
        ]
        if to_acquire:
            with self._events.trace_acquisition(to_acquire):
                self._acquire_bundles(nodes, to_acquire)

    def _acquire_bundles(self, nodes: WorkerOwnershipNodes, bundles: Collection[BundleId]) -> None:
        """Create owner nodes, raise fences, publish leases. The next `reconcile` continues after a failure."""
        created = nodes.create_owner_nodes(bundles)
        try:
            leases = self._fences.raise_fences(created, self._worker_id)
        except (RetryableError, OutcomeUnknown) as error:
            _log.warning("takes no bundles until the catalog answers: %s", error)
            self._is_catalog_unreachable = True
            return
        verified = nodes.filter_own_bundles(created)
        self._events.on_acquired(
            [lease for lease in leases if lease.bundle in verified and self._publish_lease_unless_listener_fails(lease)]
        )

    def _publish_lease_unless_listener_fails(self, lease: Lease) -> bool:
        """Call the listener, then publish the lease, so that topics are loaded before work uses the lease."""
        try:
            self._listener.on_acquired(lease)
        except RetryableError as error:
            _log.warning("bundle %s is tried again: %s", lease.bundle, error)
            self._listener.on_unloaded(lease.bundle)
            self._pending_bundles[lease.bundle] = None
            self._postponed.add(lease.bundle)
            return False
        self._set_leases({**self.leases, lease.bundle: lease})
        del self._pending_bundles[lease.bundle]
        return True

    def _shed_surplus_bundles(self, nodes: WorkerOwnershipNodes, view: OwnershipView, now: float) -> None:
        """Release bundles that less loaded workers should have: drop the leases, then delete the owner nodes."""
        max_ownerless = max(1, self.bundle_count // _BUNDLES_PER_MOVE)
        releasable = self.leases.keys() - self._takeover.reserved
        shed = [
            bundle
            for bundle in bundles_to_shed(view, self._worker_id, max_free_bundles=max_ownerless)
            if bundle in releasable
        ]
        self._unload_bundles(shed, UnloadReason.SHED)
        self._takeover.leave_briefly(shed, now)
        if shed:
            nodes.delete_own_nodes(shed)

    def _unload_bundles(self, bundles: Iterable[BundleId], reason: UnloadReason) -> None:
        unloaded = set(bundles)
        if unloaded:
            self._set_leases({bundle: lease for bundle, lease in self.leases.items() if bundle not in unloaded})
        self._notify_unloaded(unloaded, reason)

    def _notify_unloaded(self, bundles: Collection[BundleId], reason: UnloadReason) -> None:
        for bundle in bundles:
            self._listener.on_unloaded(bundle)
        if bundles:
            self._events.on_unloaded(bundles, reason)

    def _set_leases(self, leases: dict[BundleId, Lease]) -> None:
        self.leases = MappingProxyType(leases)  # replaced at once, because other threads read `leases`
        self._events.on_lease_count(len(leases))
