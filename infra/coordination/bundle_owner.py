"""Ownership of bundles by one worker: a thread that keeps it across sessions, or a single owner without ZooKeeper.

- Session SUSPENDED: `BundleOwner` keeps its leases, but returns no lease until it has reconnected to the session.
- Session EXPIRED: `BundleOwner` drops all leases. With `RECONNECT`, it opens a session and acquires the bundles again.
- All ZooKeeper calls except `find_owner` run on this thread. Kazoo's thread only fills a queue (kazoo#355).

Source: PIP-57.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from infra.coordination.bundle_holdings import BundleHoldings, BundleListener, OwnershipObserver, TakeoverTimes
from infra.coordination.ownership_nodes import WorkerOwnershipNodes, worker_id_taken_error
from infra.coordination.zookeeper_session import SessionState, ZooKeeperSession
from logstore.catalog.ownership.fences import Fences
from logstore.errors import (
    CatalogBusy,
    NotOwner,
    RetryableError,
    ServiceFailed,
    SessionLost,
    SextonError,
    StoreUnavailable,
)
from logstore.ownership import BundleId, Lease, WorkerLoad, bundle_of_topic
from logstore.ports.bundle_owners import OtherBundleOwner
from logstore.retrying_clock import Backoff
from logstore.validated_names import TopicName

_log = logging.getLogger(__name__)
_VANISHING_NODE_POLL_S: Final = 0.1  # between checks whether the node of an ended session has vanished
# Minimum wait for the end of this worker's earlier session. A server's shortest timeout is two ticks, usually 4 s.
_MIN_REGISTER_WAIT_S: Final = 8.0
_SESSION_BACKOFF: Final = Backoff(first_s=0.2)  # between attempts to open a session


class ExpiredPolicy(StrEnum):
    """Behaviour of a worker whose session expired. Source: PIP-57, `zookeeperSessionExpiredPolicy`."""

    RECONNECT = "reconnect"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOwnerOptions:
    expired: ExpiredPolicy = ExpiredPolicy.RECONNECT
    reconnect_attempts: int = 10  # attempts to open a session after an expiry, 1 or more; then the worker shuts down
    check_interval_s: float = 1.0  # between checks of all bundles while ZooKeeper reports no change
    takeover: TakeoverTimes = field(default_factory=TakeoverTimes)


@dataclass(frozen=True, slots=True)
class _SessionMessage:
    """Message to the owner's thread: the new state of a session. A message without a state only wakes the thread."""

    session_number: int = -1
    state: SessionState | None = None


class BundleOwner:
    """Ownership of bundles by one worker. An instance is started once and stopped once.

    `load` returns the worker's current load, 0 or more. A worker with load 1 gets half as many bundles as an idle
    worker. `failure` is the error that ended the ownership. The worker shuts down after this error. `stopping` is set
    when the worker owns no bundle and can never own a bundle again.
    """

    def __init__(
        self,
        worker_id: str,
        connect: Callable[[Callable[[SessionState], None]], ZooKeeperSession],
        fences: Fences,
        listener: BundleListener,
        *,
        options: BundleOwnerOptions | None = None,
        load: Callable[[], float] = lambda: 0.0,
        events: OwnershipObserver | None = None,
    ) -> None:
        self._worker_id, self._connect, self._load, self._events = (
            worker_id,
            connect,
            load,
            events or OwnershipObserver(),
        )
        self._options = options or BundleOwnerOptions()
        self._holdings = BundleHoldings(worker_id, fences, listener, self._options.takeover, self._events)
        self._messages: queue.SimpleQueue[_SessionMessage] = queue.SimpleQueue()
        self._session_count = 0
        self._session: ZooKeeperSession | None = None
        self._nodes: WorkerOwnershipNodes | None = None
        self._thread = threading.Thread(target=self._own_bundles_until_stopped, name="bundle-owner", daemon=True)
        self.stopping = threading.Event()
        self.failure: SextonError | None = None

    def start(self) -> None:
        """Register the worker, and start the thread.

        Raises:
            ServiceFailed: ZooKeeper cannot be reached, or refuses this identity.
            WorkerIdTaken: Another live process has this worker id.
        """
        try:
            self._open_session_and_register()
        except BaseException:
            self._close_session()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Release all bundles without delay."""
        self.stopping.set()
        self._messages.put(_SessionMessage())
        session = self._session
        if session:
            session.close()  # ends the thread's current call
        if self._thread.ident is not None:
            self._thread.join()

    def get_lease(self, topic: TopicName) -> Lease:
        bundle = bundle_of_topic(topic, bundle_count=self._holdings.bundle_count)
        is_connected = self._is_connected
        lease = self._holdings.leases.get(bundle) if is_connected else None
        if lease is None:
            problem = "that it does not own it" if is_connected else "a connection that is away"
            raise NotOwner(bundle, expected=f"worker {self._worker_id} to own it", found=problem)
        return lease

    def find_owner(self, topic: TopicName, *, patience_s: float) -> Lease | OtherBundleOwner | None:
        try:
            return self.get_lease(topic)
        except NotOwner:
            nodes = self._nodes
        if nodes is None:
            raise SessionLost(f"worker {self._worker_id}: it has no session just now")
        if not self._is_connected:  # no wait for a connection, because the caller's thread is scarce
            raise StoreUnavailable(f"zookeeper: worker {self._worker_id} has no connection just now")
        bundle = bundle_of_topic(topic, bundle_count=self._holdings.bundle_count)
        node = nodes.find_owner_node(bundle, patience_s=patience_s)
        return OtherBundleOwner(worker_id=node.worker_id) if node and node.worker_id else None

    def leases(self) -> list[Lease]:
        """Return the leases under which this worker may write now."""
        return [lease for _, lease in sorted(self._holdings.leases.items())] if self._is_connected else []

    @property
    def _is_connected(self) -> bool:
        session = self._session  # kazoo's thread sets the state before the owner's thread gets the message
        return session is not None and session.state is SessionState.CONNECTED

    def _own_bundles_until_stopped(self) -> None:
        try:
            while not self.stopping.is_set():
                message = self._wait_for_message()
                is_expired = message.session_number == self._session_count and message.state is SessionState.EXPIRED
                if is_expired and not self.stopping.is_set():
                    self._replace_session()
                self._restore_nodes_and_reconcile_bundles()
        except SextonError as error:
            _log.exception("this worker owns nothing from now on")
            self.failure = error
        except Exception as error:  # noqa: BLE001 - a silent end would leave a worker that owns nothing
            _log.exception("this worker owns nothing from now on")
            self.failure = SextonError(f"ownership: ended with {error!r}; start the worker again")
        finally:
            self.stopping.set()
            self._holdings.release_all()
            self._close_session()
            self._events.on_ended(self.failure)

    def _wait_for_message(self) -> _SessionMessage:
        try:
            return self._messages.get(
                timeout=_VANISHING_NODE_POLL_S if self._holdings.should_check_soon else self._options.check_interval_s
            )
        except queue.Empty:
            return _SessionMessage()

    def _replace_session(self) -> None:
        if self._session:
            self._holdings.on_session_expired(self._session.id)
        if self._options.expired is ExpiredPolicy.SHUTDOWN:
            raise ServiceFailed("zookeeper", "the session expired", advice="start the worker again")
        attempt = 1
        while not self._try_open_session(attempt) and not self.stopping.wait(_SESSION_BACKOFF.pause_s(attempt)):
            attempt += 1

    def _try_open_session(self, attempt: int) -> bool:
        self._close_session()
        try:
            self._open_session_and_register()
        except (RetryableError, ServiceFailed) as error:
            _log.warning("no new session, attempt %s of %s: %s", attempt, self._options.reconnect_attempts, error)
            if attempt >= self._options.reconnect_attempts and not self.stopping.is_set():
                raise
            return False
        return True

    def _open_session_and_register(self) -> None:
        self._session_count += 1
        number = self._session_count
        session = self._session = self._connect(lambda state: self._enqueue_message(_SessionMessage(number, state)))
        self._nodes = WorkerOwnershipNodes(session, self._worker_id, self._holdings.bundle_count)
        self._register_worker(self._nodes, session.timeout_s)
        self._holdings.begin_session(session.id, waits=int(2 * session.timeout_s / _VANISHING_NODE_POLL_S))
        self._events.on_session_opened(session.id)

    def _enqueue_message(self, message: _SessionMessage) -> None:
        if message.state and message.session_number == self._session_count:
            self._events.on_session_state(message.state)
        self._messages.put(message)

    def _register_worker(self, nodes: WorkerOwnershipNodes, timeout_s: float) -> None:
        """Register once the worker's node of an earlier session has vanished. If it stays, raise `WorkerIdTaken`."""
        deadline_s = time.monotonic() + max(2 * timeout_s, _MIN_REGISTER_WAIT_S)
        while not nodes.register_worker(WorkerLoad()):
            if self.stopping.wait(_VANISHING_NODE_POLL_S):
                raise SessionLost(f"worker {self._worker_id}: told to stop before it could take part")
            if time.monotonic() > deadline_s:
                raise worker_id_taken_error(self._worker_id)

    def _restore_nodes_and_reconcile_bundles(self) -> None:
        if self._session and not self._is_connected:
            self._session.reset_last_zxid()
        if not self._is_connected or self._nodes is None or self.stopping.is_set():
            return
        try:
            self._nodes.restore_parent_and_session_nodes()
            self._nodes.watch_next_ownership_change(lambda _: self._messages.put(_SessionMessage()))
            self._holdings.reconcile(self._nodes, self._load())
        except RetryableError as error:
            _log.info("looking at the bundles again soon: %s", error)

    def _close_session(self) -> None:
        session, self._session, self._nodes = self._session, None, None
        if session:
            session.close()


_MAX_RAISES: Final = 40  # each waits for seconds; together they outlast PostgreSQL's timeout of a paused transaction


class SingleOwner:
    """Ownership without ZooKeeper: a setting declares a single worker the bundle owner of all bundles.

    The worker raises every fence when it starts. If a second worker is started by mistake, it raises all fences again,
    and the catalog refuses writes under the first worker's leases.
    """

    def __init__(self, worker_id: str, fences: Fences, events: OwnershipObserver | None = None) -> None:
        self._worker_id, self._fences, self._events = worker_id, fences, events or OwnershipObserver()
        self._bundle_count = fences.count_bundles()
        self._leases: dict[BundleId, Lease] = {}
        self.stopping = threading.Event()
        self.failure: SextonError | None = None  # always None: there is no session to lose

    def start(self) -> None:
        """Acquire all bundles.

        Raises:
            CatalogBusy: A write under an earlier lease does not end.
        """
        missing = [BundleId(bundle) for bundle in range(self._bundle_count)]
        for _ in range(_MAX_RAISES):
            with self._events.trace_acquisition(missing):
                leases = {lease.bundle: lease for lease in self._fences.raise_fences(missing, self._worker_id)}
                self._events.on_acquired(leases.values())
            self._leases |= leases
            missing = [bundle for bundle in missing if bundle not in self._leases]
            if not missing or self.stopping.is_set():
                break
        if missing:
            raise CatalogBusy(f"bundles {missing[:10]}: a write under an earlier lease does not end")
        self._events.on_lease_count(len(self._leases))

    def stop(self) -> None:
        self.stopping.set()
        self._leases = {}
        self._events.on_lease_count(0)

    def find_owner(self, topic: TopicName, *, patience_s: float) -> Lease | None:
        del patience_s  # the catalog has its own timeout
        try:
            lease = self.get_lease(topic)
            self._fences.require_newest_lease(lease)
        except NotOwner:
            return None
        return lease

    def get_lease(self, topic: TopicName) -> Lease:
        bundle = bundle_of_topic(topic, bundle_count=self._bundle_count)
        lease = self._leases.get(bundle)
        if lease is None:
            raise NotOwner(bundle, expected=f"worker {self._worker_id} to own it", found="that it has stopped")
        return lease

    def leases(self) -> list[Lease]:
        return [lease for _, lease in sorted(self._leases.items())]
