"""What a worker holds: acquired, looked at again after an expiry, let go.

Acquire: create the node, raise the fence, read the node again, and only if it is still of this session is there a
lease. So whoever has one was verified after the last raise, and a write under any older one is refused by the catalog
(promise 7). Between any two of these steps the process may die or its session end: a node goes with its session,
and a number that was raised for nothing fences nobody who still owns.

Source: PIP-57; apache/pulsar#23011, #14736, #10351.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from infra.coordination.events import OwnershipEvents, Unloaded, Unwatched
from infra.coordination.nodes import Nodes
from logstore.ownership import (
    Attempts,
    BundleId,
    HeldClaim,
    Lease,
    OwnershipView,
    Verdict,
    WorkerLoad,
    decide,
    to_shed,
    to_take,
)
from logstore.ports.catalog import Fences

_CREATES: Final = 5  # of one bundle, in one session and minute: more is a loop (apache/pulsar#14736)
_ATTEMPTS_S: Final = 60.0


class Listener(Protocol):
    """Who does the work that ownership gives; called on the owner's thread, and returns soon."""

    def acquired(self, lease: Lease) -> None:
        """The bundle is this worker's."""

    def unloaded(self, bundle: BundleId) -> None:
        """It is no longer: its work stops, and what is remembered of its topics goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """When a worker takes and lets go."""

    takeover_grace_s: float = 1.0  # that the next in a bundle's ranking waits for the one before
    rest_s: float = 10.0  # that a bundle which was taken from this worker is left to others


class Holdings:
    """The bundles of one worker, in whatever session it has; used by one thread, but for `leases`."""

    def __init__(
        self, worker_id: str, fences: Fences, listener: Listener, turns: Turns, events: OwnershipEvents | None = None
    ) -> None:
        """Hold nothing yet."""
        self._worker_id, self._fences, self._listener, self._turns = worker_id, fences, listener, turns
        self._events = events or Unwatched()
        self.bundles = fences.bundles()
        self.leases: Mapping[BundleId, Lease] = MappingProxyType({})
        self._unsettled: dict[BundleId, HeldClaim | None] = {}  # to be acquired, or looked at again
        self._seen: dict[BundleId, str] = {}  # who owns what, as read last
        self._change = -1
        self._free_since: dict[BundleId, float] = {}
        self._resting: dict[BundleId, float] = {}  # until when
        self._fresh_attempts(session=0, waits=0)
        self._told: WorkerLoad | None = None

    @property
    def unsettled(self) -> int:
        """Bundles that wait for an answer, or for an old node to vanish."""
        return len(self._unsettled)

    def expired(self, session: int) -> None:
        """No lease outlives its session; what was held is looked at again in the next one."""
        self._unsettled |= {bundle: HeldClaim(session=session) for bundle in self.leases}
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
        """Look at who is there, and take, settle and let go what the present view asks for.

        Every step may fail and be repeated by the next look.
        """
        now = time.monotonic()
        if now - self._attempts_at >= _ATTEMPTS_S:
            self._fresh_attempts(self._attempts.session, self._attempts.waits)
        view = self._view(nodes)
        self._let_go_of_lost(view, now)
        self._unsettled |= dict.fromkeys(self._due(view, now) - self.leases.keys() - self._unsettled.keys())
        self._settle(nodes)
        self._shed(nodes, view, now)
        told = WorkerLoad(load=load, bundles=len(self.leases))
        if told != self._told:
            nodes.report(told)
            self._told = told
        self._events.looked(len(self._unsettled))

    def _fresh_attempts(self, session: int, waits: int) -> None:
        """A session may last for months, in which a bundle comes and goes more often than a loop would be let to."""
        self._attempts = Attempts(session=session, creates=_CREATES, waits=waits)
        self._attempts_at = time.monotonic()

    def _view(self, nodes: Nodes) -> OwnershipView:
        """Owner nodes are read when one came or went since the last look: that they are of now is what moves few."""
        change = nodes.last_change()
        if change != self._change:
            self._seen = {bundle: node.worker_id for bundle, node in nodes.owners().items()}
            self._change = change
        return OwnershipView(bundles=self.bundles, workers=nodes.workers(), owners=self._seen)

    def _let_go_of_lost(self, view: OwnershipView, now: float) -> None:
        """A node that went while its session lives was taken from us on purpose: others get their chance first."""
        lost = [bundle for bundle in self.leases if view.owners.get(bundle) != self._worker_id]
        self._unload(lost, Unloaded.REMOVED)
        self._resting |= dict.fromkeys(lost, now + self._turns.rest_s)

    def _due(self, view: OwnershipView, now: float) -> set[BundleId]:
        free = view.free
        self._free_since = {bundle: self._free_since.get(bundle, now) for bundle in free}
        self._resting = {bundle: until for bundle, until in self._resting.items() if until > now}
        free_for_s = {bundle: now - since for bundle, since in self._free_since.items()}
        due = to_take(view, self._worker_id, free_for_s=free_for_s, takeover_grace_s=self._turns.takeover_grace_s)
        return set(due) - self._resting.keys()

    def _settle(self, nodes: Nodes) -> None:
        """Decide on each bundle that is neither held nor given up, by what its node says now."""
        if not self._unsettled:
            return
        found = nodes.owners(self._unsettled)
        create: list[BundleId] = []
        for bundle, claim in list(self._unsettled.items()):
            verdict = decide(found.get(bundle), session=self._attempts.session, worker_id=self._worker_id, claim=claim)
            verdict = self._attempts.bounded(bundle, verdict)
            if verdict in {Verdict.CREATE, Verdict.KEEP}:
                create.append(bundle)
            elif verdict is Verdict.UNLOAD:
                del self._unsettled[bundle]
                if claim:
                    self._listener.unloaded(bundle)
                    self._events.unloaded([bundle], Unloaded.FOREIGN)
        if create:
            with self._events.acquiring(create):
                self._acquire(nodes, create)

    def _acquire(self, nodes: Nodes, bundles: Collection[BundleId]) -> None:
        """Nodes, then fences, then nodes again; what is not ours at the end is decided on at the next look."""
        made = nodes.take(bundles)
        leases = self._fences.raise_fences(made, self._worker_id)
        still = nodes.own(made)
        held = {lease.bundle: lease for lease in leases if lease.bundle in still}
        self._publish({**self.leases, **held})
        for bundle, lease in held.items():
            del self._unsettled[bundle]
            self._listener.acquired(lease)
        self._events.acquired(held.values())

    def _shed(self, nodes: Nodes, view: OwnershipView, now: float) -> None:
        """Let go of what an underloaded worker should have: the lease first, then the node."""
        at_most = max(1, self.bundles // 50)  # without an owner at a time, for a moment
        gone = [bundle for bundle in to_shed(view, self._worker_id, at_most=at_most) if bundle in self.leases]
        self._unload(gone, Unloaded.SHED)
        self._resting |= dict.fromkeys(gone, now + self._turns.takeover_grace_s)
        if gone:
            nodes.give_up(gone)

    def _unload(self, bundles: Iterable[BundleId], why: Unloaded) -> None:
        gone = set(bundles)
        if not gone:
            return
        self._publish({bundle: lease for bundle, lease in self.leases.items() if bundle not in gone})
        for bundle in gone:
            self._listener.unloaded(bundle)
        self._events.unloaded(gone, why)

    def _publish(self, leases: dict[BundleId, Lease]) -> None:
        """In one assignment, for other threads read it."""
        self.leases = MappingProxyType(leases)
        self._events.holds(len(leases))
