"""The thread by which a worker owns bundles, whatever becomes of its session.

- SUSPENDED: no lease is given out, and none is given up. Connected again in the same session, they are as they were.
- EXPIRED: no lease is left. A new session is opened, after a bounded number of attempts the worker ends; in it each
  bundle that was held is looked at again.
- All ZooKeeper calls run on this thread; listeners only put a message into its queue (kazoo#355).

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

from infra.coordination.directory import Nodes, worker_id_taken
from infra.coordination.holdings import Holdings, Listener, OwnershipEvents
from infra.coordination.session import SessionEvent, ZooKeeperSession
from infra.coordination.takeover import TakeoverTimes
from logstore.clock import Backoff
from logstore.errors import NotOwner, RetryableError, ServiceFailed, SessionLost, SextonError, StoreUnavailable
from logstore.names import TopicName
from logstore.ownership import Lease, WorkerLoad, bundle_of
from logstore.ports.catalog import Fences
from logstore.ports.owners import OtherOwner

_log = logging.getLogger(__name__)
_SOON_S: Final = 0.1  # until the next look at a node that is about to vanish
_LEAST_WAIT_S: Final = 8.0  # for an earlier session: a server's least timeout is two ticks, mostly four seconds
_SESSIONS: Final = Backoff(first_s=0.2)  # pauses between two attempts to open one; the policy says how many


class ExpiredPolicy(StrEnum):
    """The course of a worker whose session expired. Source: PIP-57, `zookeeperSessionExpiredPolicy`."""

    RECONNECT = "reconnect"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPolicy:
    """How a worker takes part."""

    expired: ExpiredPolicy = ExpiredPolicy.RECONNECT
    reconnect_attempts: int = 10  # sessions asked for after an expiry, before the worker shuts down; 1 or more
    look_again_s: float = 1.0  # where ZooKeeper says nothing
    takeover: TakeoverTimes = field(default_factory=TakeoverTimes)


@dataclass(frozen=True, slots=True)
class _Message:
    """A message to the loop; `link` is that of the session that was opened as number `opened`."""

    opened: int = -1
    link: SessionEvent | None = None


class BundleOwner:
    """One worker's part in owning all bundles; started once, stopped once."""

    def __init__(
        self,
        worker_id: str,
        connect: Callable[[Callable[[SessionEvent], None]], ZooKeeperSession],
        fences: Fences,
        listener: Listener,
        *,
        policy: OwnerPolicy | None = None,
        load: Callable[[], float] = lambda: 0.0,
        events: OwnershipEvents | None = None,
    ) -> None:
        """Take the ports; `load` is work in hand, 0 or more, and at 1 a worker draws half of what an idle one does."""
        self._worker_id, self._connect, self._load, self._events = worker_id, connect, load, events or OwnershipEvents()
        self._policy = policy or OwnerPolicy()
        self._holdings = Holdings(worker_id, fences, listener, self._policy.takeover, self._events)
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._opened = 0
        self._session: ZooKeeperSession | None = None
        self._nodes: Nodes | None = None
        self._thread = threading.Thread(target=self._run, name="bundle-owner", daemon=True)
        self.stopping = threading.Event()
        self.failure: SextonError | None = None
        """Why it gave up, if it did; the worker then shuts down."""

    def start(self) -> None:
        """Join, and go on in a thread.

        Raises:
            ServiceFailed: ZooKeeper cannot be reached, or refuses us.
            WorkerIdTaken: Another process lives under this worker id.
        """
        try:
            self._enter()
        except BaseException:
            self._leave()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Give everything up at once, and end."""
        self.stopping.set()
        self._messages.put(_Message())
        session = self._session
        if session:
            session.close()  # whatever the thread is asking ends now
        if self._thread.ident is not None:
            self._thread.join()

    def lease_of(self, topic: TopicName) -> Lease:
        """The lease by which this worker may write for the topic's bundle.

        Raises:
            NotOwner: It is another worker's, no worker's, or not known while the connection is away.
        """
        bundle = bundle_of(topic, bundles=self._holdings.bundles)
        connected = self._connected
        lease = self._holdings.leases.get(bundle) if connected else None
        if lease is None:
            found = "that it does not own it" if connected else "a connection that is away"
            raise NotOwner(bundle, expected=f"worker {self._worker_id} to own it", found=found)
        return lease

    def lookup(self, topic: TopicName, *, patience_s: float) -> Lease | OtherOwner | None:
        """See `Owners.lookup`; asks ZooKeeper only where this worker has no lease.

        The caller holds a thread that other work needs: while the connection is known to be away, it does not wait.

        Raises:
            StoreUnavailable, SessionLost: ZooKeeper did not answer.
            ServiceFailed: It refuses us, or the path is gone.
        """
        try:
            return self.lease_of(topic)
        except NotOwner:
            nodes = self._nodes
        if nodes is None:
            raise SessionLost(f"worker {self._worker_id}: it has no session just now")
        if not self._connected:
            raise StoreUnavailable(f"zookeeper: worker {self._worker_id} has no connection just now")
        bundle = bundle_of(topic, bundles=self._holdings.bundles)
        node = nodes.owner(bundle, patience_s=patience_s)
        return OtherOwner(worker_id=node.worker_id) if node and node.worker_id else None

    def leases(self) -> list[Lease]:
        """All that this worker may write under now, ascending by bundle."""
        return [lease for _, lease in sorted(self._holdings.leases.items())] if self._connected else []

    @property
    def _connected(self) -> bool:
        """As kazoo said last, and not as this loop has come to know: it may be waiting for an answer just now."""
        session = self._session
        return session is not None and session.link is SessionEvent.CONNECTED

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                message = self._next()
                if (
                    message.opened == self._opened
                    and message.link is SessionEvent.EXPIRED
                    and not self.stopping.is_set()
                ):
                    self._expired()
                self._look()
        except SextonError as error:
            _log.exception("this worker owns nothing from now on")
            self.failure = error
        except Exception as error:  # noqa: BLE001 - a thread that dies unheard would leave a worker without bundles
            _log.exception("this worker owns nothing from now on")
            self.failure = SextonError(f"ownership: ended with {error!r}; start the worker again")
        finally:
            self.stopping.set()
            self._holdings.dropped()
            self._leave()
            self._events.ended(self.failure)

    def _next(self) -> _Message:
        """The next message; soon, where a bundle waits for an old node to vanish."""
        try:
            return self._messages.get(timeout=_SOON_S if self._holdings.hurried else self._policy.look_again_s)
        except queue.Empty:
            return _Message()

    def _expired(self) -> None:
        if self._session:
            self._holdings.expired(self._session.id)
        if self._policy.expired is ExpiredPolicy.SHUTDOWN:
            raise ServiceFailed("zookeeper", "the session expired", advice="start the worker again")
        attempt = 1
        while not self._entered_again(attempt) and not self.stopping.wait(_SESSIONS.pause_s(attempt)):
            attempt += 1

    def _entered_again(self, attempt: int) -> bool:
        self._leave()
        try:
            self._enter()
        except (RetryableError, ServiceFailed) as error:
            _log.warning("no new session, attempt %s of %s: %s", attempt, self._policy.reconnect_attempts, error)
            if attempt >= self._policy.reconnect_attempts and not self.stopping.is_set():
                raise
            return False
        return True

    def _enter(self) -> None:
        """Open a session and register this worker in it."""
        self._opened += 1
        opened = self._opened
        session = self._session = self._connect(lambda link: self._heard(_Message(opened, link)))
        self._nodes = Nodes(session, self._worker_id, self._holdings.bundles)
        self._enlist(self._nodes, session.timeout_s)
        self._holdings.entered(session.id, waits=int(2 * session.timeout_s / _SOON_S))
        self._events.opened(session.id)

    def _heard(self, message: _Message) -> None:
        """On kazoo's thread: hand over."""
        if message.link and message.opened == self._opened:
            self._events.linked(message.link)
        self._messages.put(message)

    def _enlist(self, nodes: Nodes, timeout_s: float) -> None:
        """Wait for our own node of an earlier session; one that outlives it by far is another process's."""
        deadline = time.monotonic() + max(2 * timeout_s, _LEAST_WAIT_S)
        while not nodes.enlist(WorkerLoad()):
            if self.stopping.wait(_SOON_S):
                raise SessionLost(f"worker {self._worker_id}: told to stop before it could take part")
            if time.monotonic() > deadline:
                raise worker_id_taken(self._worker_id)

    def _look(self) -> None:
        """One look, unless the connection is away; one that fails is repeated by the next."""
        if self._session and not self._connected:
            self._session.forget_position()
        if not self._connected or self._nodes is None or self.stopping.is_set():
            return
        try:
            self._nodes.stand()
            self._nodes.watch(lambda _: self._messages.put(_Message()))
            self._holdings.look(self._nodes, self._load())
        except RetryableError as error:
            _log.info("looking at the bundles again soon: %s", error)

    def _leave(self) -> None:
        session, self._session, self._nodes = self._session, None, None
        if session:
            session.close()
