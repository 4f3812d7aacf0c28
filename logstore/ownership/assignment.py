"""Which worker takes which bundle, without a leader, and what it does with each once it is connected again.

Each worker computes it, and workers that see the same agree. After every reconnect each bundle that a worker remembers
is asked about: whether one is still its own is never inferred from how the connection behaved, but told from what it
then finds in ZooKeeper.

Nothing here is safety. ZooKeeper lets one worker create a node, and the fence lets one write; a stale view makes two
workers try the same bundle, or none of them does for a while, and a stale load makes a poorer choice.

Source: rendezvous hashing (Thaler and Ravishankar 1998), weighted by the logarithmic method (Schindelhauer and
Schomaker, "Weighted distributed hash tables", 2005): the highest -w / ln(h) is first. PIP-57 (re-own after a session
expired), and Pulsar's `ResourceLockImpl.revalidate`.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from logstore.errors import InvalidInput
from logstore.ownership.bundles import BundleId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """What a live worker said of itself, perhaps a while ago."""

    load: float = 0.0  # work in hand, 0 or more: at 1 it draws half of what an idle worker draws
    bundles: int = 0  # it owned then; for people to read, since the rules count owner nodes
    room: bool = True  # False while it can take none: no share of the bundles is its, and nothing waits for it

    def __post_init__(self) -> None:
        if not (math.isfinite(self.load) and self.load >= 0):
            raise InvalidInput("load", expected="a finite number, 0 or more", found=self.load)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipView:
    """What one worker sees of all."""

    bundles: int  # in all, as the catalog says
    workers: Mapping[str, WorkerLoad]  # those alive
    owners: Mapping[BundleId, str]  # the worker that each owner node names; one that is not alive goes with its node

    @property
    def takers(self) -> list[str]:
        """The live workers that can take bundles."""
        return [worker_id for worker_id, load in self.workers.items() if load.room]

    @property
    def low(self) -> int:
        """An even share but for a tenth of it: a worker with fewer is underloaded."""
        even = self.bundles // max(1, len(self.takers))
        return even - even // 10

    @property
    def cap(self) -> int:
        """An even share and a quarter of it, rounded up: a worker with as many is full."""
        return -(-5 * self.bundles // (4 * max(1, len(self.takers))))

    @property
    def free(self) -> list[BundleId]:
        """Bundles without an owner node, ascending."""
        return [bundle for bundle in map(BundleId, range(self.bundles)) if bundle not in self.owners]

    def counts(self) -> Counter[str]:
        """How many bundles each live worker owns, by the nodes."""
        named = Counter(self.owners.values())
        return Counter({worker_id: named[worker_id] for worker_id in self.workers})


def ranking(bundle: BundleId, workers: Mapping[str, WorkerLoad], *, full: Collection[str] = ()) -> list[str]:
    """The workers in the order in which they should take the bundle.

    A worker is first for a share of all bundles in proportion to 1 / (1 + load). When one joins or leaves, the others
    keep their order.

    Args:
        bundle: Which.
        workers: Those alive.
        full: Of these, workers that have enough: they come last, in their order.
    """

    def key(worker_id: str) -> tuple[bool, float, str]:
        weight = 1 / (1 + workers[worker_id].load)
        return worker_id in full, weight / math.log(_draw(bundle, worker_id)), worker_id

    return sorted(workers, key=key)


def _draw(bundle: BundleId, worker_id: str) -> float:
    """A number in (0, 1), both exclusive, the same in every process; 52 bits, so that half a step above is exact."""
    digest = hashlib.blake2b(f"{bundle}/{worker_id}".encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52


def to_take(
    view: OwnershipView, worker_id: str, *, free_for_s: Mapping[BundleId, float], takeover_grace_s: float
) -> list[BundleId]:
    """The free bundles whose turn has come for this worker: its own first, then those that others left.

    The first of a bundle's ranking takes it at once, the next ones each a grace later. Ranks are told as if every first
    had taken its own, so all together stay within the cap; only a worker that takes over what others left may pass it.

    Args:
        view: What this worker sees.
        worker_id: This worker; it takes nothing before it sees itself alive.
        free_for_s: For how long it has seen each bundle without an owner; what is absent has just become free.
        takeover_grace_s: Time that each rank has before the next one's turn; longer than a view is stale.
    """
    if worker_id not in view.workers:
        return []
    counts = view.counts()
    due = []
    for bundle in view.free:
        order = ranking(bundle, view.workers, full=_full(view, counts))
        counts[order[0]] += 1
        rank = order.index(worker_id)
        if free_for_s.get(bundle, 0.0) >= rank * takeover_grace_s:
            due.append((rank, bundle))
    return [bundle for _, bundle in sorted(due)]


def to_shed(view: OwnershipView, worker_id: str, *, at_most: int) -> list[BundleId]:
    """The bundles that this worker should let go now, so that another takes them at once; mostly none.

    While a worker has fewer than `OwnershipView.low`, one with more lets go of what ranks first for that one.
    Who is over the cap lets go of other bundles too. Each move takes from above a limit and gives below it, so this
    ends, and no worker takes back what it released.

    Args:
        view: What this worker sees.
        worker_id: This worker.
        at_most: How many bundles may be without an owner at a time for this, over all workers.
    """
    return [bundle for bundle in _moves(view, at_most) if view.owners[bundle] == worker_id]


def _moves(view: OwnershipView, at_most: int) -> list[BundleId]:
    """The bundles that all workers together let go. Workers that see the same compute the same, so not too many go."""
    counts, room = view.counts(), at_most - len(view.free)
    owned = sorted(view.owners.items(), key=lambda item: (-counts[item[1]], item[0]))  # the worker with most, first
    moves: list[BundleId] = []
    for limit in (view.low, view.cap):
        for bundle, owner in owned:
            if len(moves) >= room or min(counts.values(), default=limit) >= limit:
                break
            if counts[owner] <= limit or bundle in moves:
                continue
            # At the first limit no count is too many: its worker may let go too, and then take this before others.
            full = _full(view, counts if limit == view.cap else {})
            taker = ranking(bundle, view.workers, full=full)[0]
            if counts[taker] < limit and view.workers[taker].room:
                moves.append(bundle)
                counts.update({owner: -1, taker: 1})
    return moves


def _full(view: OwnershipView, counts: Mapping[str, int]) -> set[str]:
    """Workers that have enough, or can take none whatever they have."""
    cap = view.cap  # once, because it counts the workers
    return {one for one, load in view.workers.items() if not load.room or counts.get(one, 0) >= cap}


class ReownDecision(StrEnum):
    """What to do with one bundle."""

    KEEP = "KEEP"  # node and acquisition are of this session: the lease stands
    WAIT = "WAIT"  # our node of another session is about to vanish: no work under it, look again
    UNLOAD = "UNLOAD"  # not ours: stop its work, forget the acquisition, delete no node
    CREATE = "CREATE"  # acquire it: create the node, raise the fence, read the node again


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerNode:
    """What ZooKeeper holds for a bundle that has an owner."""

    worker_id: str  # what the node says
    session: int  # its ephemeral owner, which ZooKeeper vouches for; 0 where the node is not ephemeral
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """What a worker remembers of a bundle that it acquired."""

    session: int  # in which its node was verified after the fence was raised


def decide(node: OwnerNode | None, *, session: int, worker_id: str, acquired: Acquisition | None) -> ReownDecision:
    """Tell what to do with a bundle that this worker held, or whose turn it is to take.

    The session decides, not the worker's name: a node of ours by an old session goes when that session does, and
    whatever was done under it ends there. A node of this session that this worker did not acquire in it (a create whose
    answer was lost) is acquired anew, since others may have raised the fence in between: creating it then meets
    `NodeExists` by this very session, which is success.

    Args:
        node: What ZooKeeper answered; None only where it answered that there is none, never where it did not answer.
        session: The present session of this worker.
        worker_id: This worker.
        acquired: What this worker remembers of the bundle, if it held it.
    """
    if node is None:
        return ReownDecision.CREATE
    if node.session == session:
        return ReownDecision.KEEP if acquired == Acquisition(session=session) else ReownDecision.CREATE
    return ReownDecision.WAIT if node.worker_id == worker_id else ReownDecision.UNLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class ReownAttempts:
    """How often one session may still try each bundle; a new session begins with a new object.

    Success gives nothing back, because "acquired, lost, acquired, lost" is the loop to be ended. It holds two numbers a
    bundle at most. Not thread-safe: it belongs to the loop that asks.
    """

    session: int
    creates: int  # for each bundle, 0 or more
    waits: int  # looks at a node about to vanish; with the pause between two, more than the session timeout
    _spent: Counter[tuple[BundleId, ReownDecision]] = field(default_factory=Counter, init=False, repr=False)

    def bounded(self, bundle: BundleId, verdict: ReownDecision) -> ReownDecision:
        """Spend one attempt where the verdict costs one; UNLOAD where there is none left.

        KEEP and UNLOAD cost nothing. A bundle that is unloaded in this way has no owner, and goes to whose turn it is.
        """
        limits = {ReownDecision.CREATE: self.creates, ReownDecision.WAIT: self.waits}
        if verdict not in limits:
            return verdict
        if self._spent[bundle, verdict] >= limits[verdict]:
            return ReownDecision.UNLOAD
        self._spent[bundle, verdict] += 1
        return verdict
