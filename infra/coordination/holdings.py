"""The bundles that a worker holds: acquired, looked at again after an expiry, found fenced by another, let go.

Raising is not conditional on the node. A worker that is paused between its node and its raise, for longer than its
session lives, raises the fence of the owner of that moment; so does one that owns without ZooKeeper, started
beside the others by mistake. The owner's node stands, so no other worker would ever take the bundle, and all that is
written under its lease would be refused for as long as its session lives. So it looks, and acquires again.

Acquire: create the node, raise the fence, read the node again, and only if it is still of this session is there a
lease. So its holder was verified after the last raise, and a write under any older one is refused by the catalog
(promise 7). Between any two of these steps the process may die or its session end: a node goes with its session, and
an owner whose fence was raised by one that was late acquires again.

Source: PIP-57; apache/pulsar#23011, #14736, #10351.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from infra.coordination.directory import Nodes, worker_id_taken
from infra.coordination.session import SessionEvent
from infra.coordination.takeover import LostFences, Takeover, TakeoverTimes
from logstore.errors import OutcomeUnknown, RetryableError, SextonError
from logstore.ownership import (
    Acquisition,
    BundleId,
    Lease,
    OwnershipView,
    ReownAttempts,
    ReownDecision,
    WorkerLoad,
    decide,
    to_shed,
)
from logstore.ports.catalog import Fences


class Listener(Protocol):
    """The user of ownership, which does its work; called on the owner's thread, and returns soon."""

    def acquired(self, lease: Lease) -> None:
        """The bundle is this worker's: drop what is remembered of its topics, and load again what was loaded.

        The lease is given out once this returned, and not before. It may be told again, with a later lease.

        Raises:
            RetryableError: Not now; it is told again at a later look, or another worker is.
        """

    def unloaded(self, bundle: BundleId) -> None:
        """It is no longer, or never became so: its work stops, and what is remembered of its topics goes."""


class Unloaded(StrEnum):
    """Why a worker lost or released a bundle."""

    SHED = "SHED"  # given to a worker that has fewer
    STOPPED = "STOPPED"  # this worker ends
    REMOVED = "REMOVED"  # its node went while the session lives: a person or a program took it away
    OVERTAKEN = "OVERTAKEN"  # its fence was raised by another, though the node is ours: it is acquired again
    FOREIGN = "FOREIGN"  # after an expiry it was another's, or was asked for in vain as often as may be


class OwnershipEvents:
    """Told where it happens, on kazoo's own thread too: an override returns at once and raises nothing."""

    def opened(self, session: int) -> None:
        """A session was opened, and this worker is registered in it."""

    def linked(self, link: SessionEvent) -> None:
        """The session has changed its state."""

    def holds(self, bundles: int) -> None:
        """This number of leases is held from now on; none is given out while the connection is away."""

    def acquiring(self, bundles: Collection[BundleId]) -> AbstractContextManager[object]:
        """Surrounds the attempt to acquire these bundles."""
        del bundles
        return nullcontext()

    def acquired(self, leases: Collection[Lease]) -> None:
        """These bundles were acquired together."""

    def unloaded(self, bundles: Collection[BundleId], why: Unloaded) -> None:
        """These bundles were lost or released together."""

    def looked(self, unsettled: int) -> None:
        """A look at all bundles succeeded; `unsettled` bundles wait for an answer, or for an old node to vanish."""

    def ended(self, failure: SextonError | None) -> None:
        """This worker owns nothing from now on; None: it was asked to stop."""


_log = logging.getLogger(__name__)


_CREATES: Final = 5  # of one bundle, in one session and minute: more is a loop (apache/pulsar#14736)
_ATTEMPTS_S: Final = 60.0


class Holdings:
    """The bundles of one worker, in whatever session it has; used by one thread, but for `leases`."""

    def __init__(
        self,
        worker_id: str,
        fences: Fences,
        listener: Listener,
        takeover: TakeoverTimes,
        events: OwnershipEvents | None = None,
    ) -> None:
        """Hold nothing yet."""
        self._worker_id, self._fences, self._listener = worker_id, fences, listener
        self._events = events or OwnershipEvents()
        self.bundles = fences.bundles()
        self.leases: Mapping[BundleId, Lease] = MappingProxyType({})
        self._unsettled: dict[BundleId, Acquisition | None] = {}  # to be acquired, or looked at again
        self._put_off: set[BundleId] = set()  # of these, what could not be acquired at the last look
        self._aside = False  # since the catalog gave no fence
        self._seen: dict[BundleId, str] = {}  # owners by bundle, as read last
        self._change = -1
        self._takeover = Takeover(worker_id, takeover)
        self._fresh_attempts(session=0, waits=0)
        self._overtaken = LostFences(fences, every_s=takeover.fences_s)
        self._told: WorkerLoad | None = None
        self._listed = False  # as a live worker, by a node of this session

    @property
    def hurried(self) -> bool:
        """Whether a bundle waits for what comes soon: an old node that vanishes, and not a service that is away."""
        return not self._aside and bool(self._unsettled.keys() - self._put_off)

    def expired(self, session: int) -> None:
        """No lease outlives its session; what was held is looked at again in the next one."""
        self._unsettled |= {bundle: Acquisition(session=session) for bundle in self.leases}
        self._publish({})

    def entered(self, session: int, *, waits: int) -> None:
        """Begin in a new session, with fresh attempts; what others have told before is forgotten."""
        self._fresh_attempts(session, waits)
        self._change, self._told = -1, None

    def dropped(self) -> None:
        """Give all up, as a worker does that stops; its nodes go with its session."""
        self._unload(list(self.leases), Unloaded.STOPPED)
        self._unsettled = {}

    def look(self, nodes: Nodes, load: float) -> None:
        """Look at what stands there, and take, settle and let go what the present view asks for.

        Every step may fail and be repeated by the next look.
        """
        now = time.monotonic()
        if now - self._attempts_at >= _ATTEMPTS_S:
            self._fresh_attempts(self._attempts.session, self._attempts.waits)
        view = self._view(nodes)
        # a node that went while its session lives was taken from us on purpose: others get their chance first
        lost = [bundle for bundle in self.leases if view.owners.get(bundle) != self._worker_id]
        self._unload(lost, Unloaded.REMOVED)
        self._takeover.rest(lost, now)
        self._unload(self._overtaken.of(self.leases.values()), Unloaded.OVERTAKEN)
        if self._can_take():
            due = self._takeover.due(view, now) - self.leases.keys()
            self._takeover.mind(due, view, now)
            self._unsettled |= dict.fromkeys((due | self._unheld(view)) - self._unsettled.keys())
            self._settle(nodes, now)
        else:
            nodes.give_up(self._unheld(view))  # another may be able to take them
        self._shed(nodes, view, now)
        self._report(nodes, load)
        self._events.looked(len(self._unsettled))

    def _report(self, nodes: Nodes, load: float) -> None:
        told = WorkerLoad(load=load, bundles=len(self.leases), room=not self._aside)
        if not self._listed and not nodes.enlist(told):  # our node was taken away
            raise worker_id_taken(self._worker_id)
        if told != self._told:
            nodes.report(told)
            self._told = told

    def _can_take(self) -> bool:
        """Whether the catalog is there, asked where it was not: an owner node without a lease is in others' way."""
        if self._aside:
            try:
                self._fences.bundles()
            except RetryableError as error:
                _log.info("takes no bundle yet: %s", error)
                return False
            self._aside = False
        return True

    def _fresh_attempts(self, session: int, waits: int) -> None:
        """A session may last for months, in which a bundle comes and goes more often than a loop would be let to."""
        self._attempts = ReownAttempts(session=session, creates=_CREATES, waits=waits)
        self._attempts_at = time.monotonic()

    def _view(self, nodes: Nodes) -> OwnershipView:
        """Owner nodes are read when one came or went since the last look: that they are of now is what moves few."""
        change = nodes.last_change()
        if change != self._change:
            self._seen = {bundle: node.worker_id for bundle, node in nodes.owners().items()}
            self._change = change
        live = nodes.live_workers()
        self._listed = self._worker_id in live and live[self._worker_id].session == self._attempts.session
        workers = {worker_id: worker.load for worker_id, worker in live.items()}
        return OwnershipView(bundles=self.bundles, workers=workers, owners=self._seen)

    def _unheld(self, view: OwnershipView) -> set[BundleId]:
        """Nodes of ours without a lease: from a create that was answered late, or a delete that was not."""
        return {bundle for bundle, owner in view.owners.items() if owner == self._worker_id} - self.leases.keys()

    def _settle(self, nodes: Nodes, now: float) -> None:
        """Decide on each bundle that is neither held nor given up, by what its node says now."""
        self._put_off = set()
        if not self._unsettled:
            return
        found = nodes.owners(self._unsettled)
        session, me = self._attempts.session, self._worker_id
        verdicts = {}
        for bundle, acquired in self._unsettled.items():
            verdict = decide(found.get(bundle), session=session, worker_id=me, acquired=acquired)
            verdicts[bundle] = self._attempts.bounded(bundle, verdict)
        dropped = [bundle for bundle, verdict in verdicts.items() if verdict is ReownDecision.UNLOAD]
        self._tell_gone([bundle for bundle in dropped if self._unsettled.pop(bundle)], Unloaded.FOREIGN)
        own = [bundle for bundle, node in found.items() if node.session == self._attempts.session]
        spent = [bundle for bundle in own if verdicts[bundle] is ReownDecision.UNLOAD]  # others get their chance
        self._takeover.rest(spent, now)
        nodes.give_up(spent)
        create = [one for one, verdict in verdicts.items() if verdict in {ReownDecision.CREATE, ReownDecision.KEEP}]
        if create:
            with self._events.acquiring(create):
                self._acquire(nodes, create)

    def _acquire(self, nodes: Nodes, bundles: Collection[BundleId]) -> None:
        """Nodes, then fences, then nodes again; what is not ours at the end is decided on at the next look.

        An answer of the catalog that was lost wasted a number; without one the next look gives the nodes to others.
        """
        made = nodes.take(bundles)
        try:
            leases = self._fences.raise_fences(made, self._worker_id)
        except (RetryableError, OutcomeUnknown) as error:
            _log.warning("takes no bundles until the catalog answers: %s", error)
            self._aside = True
            return
        still = nodes.own(made)
        self._events.acquired([lease for lease in leases if lease.bundle in still and self._handed_out(lease)])

    def _handed_out(self, lease: Lease) -> bool:
        """Publish what the listener was told of, so that no work of the bundle runs before its topics are loaded."""
        try:
            self._listener.acquired(lease)
        except RetryableError as error:
            _log.warning("bundle %s is tried again: %s", lease.bundle, error)
            self._listener.unloaded(lease.bundle)
            self._unsettled[lease.bundle] = None
            self._put_off.add(lease.bundle)
            return False
        self._publish({**self.leases, lease.bundle: lease})
        del self._unsettled[lease.bundle]
        return True

    def _shed(self, nodes: Nodes, view: OwnershipView, now: float) -> None:
        """Let go of what an underloaded worker should have: the lease first, then the node."""
        at_most = max(1, self.bundles // 50)  # without an owner at a time, for a moment
        free_to_go = self.leases.keys() - self._takeover.minded
        gone = [bundle for bundle in to_shed(view, self._worker_id, at_most=at_most) if bundle in free_to_go]
        self._unload(gone, Unloaded.SHED)
        self._takeover.make_way(gone, now)
        if gone:
            nodes.give_up(gone)

    def _unload(self, bundles: Iterable[BundleId], why: Unloaded) -> None:
        gone = set(bundles)
        if gone:
            self._publish({bundle: lease for bundle, lease in self.leases.items() if bundle not in gone})
        self._tell_gone(gone, why)

    def _tell_gone(self, bundles: Collection[BundleId], why: Unloaded) -> None:
        for bundle in bundles:
            self._listener.unloaded(bundle)
        if bundles:
            self._events.unloaded(bundles, why)

    def _publish(self, leases: dict[BundleId, Lease]) -> None:
        """In one assignment, because other threads read it."""
        self.leases = MappingProxyType(leases)
        self._events.holds(len(leases))
