"""What a worker does with a bundle once it is connected again, told from what it then finds in ZooKeeper.

Every bundle that it remembers is asked about after every reconnect: whether one is still ours is never inferred from
how the connection behaved.

Source: PIP-57 (re-own after a session expired), and Pulsar's `ResourceLockImpl.revalidate`.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from logstore.ownership.bundles import BundleId


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
