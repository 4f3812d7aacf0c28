"""Bundles (equal parts of the hash range of topic names), leases, and assignment of bundles without a leader.

The number of bundles is fixed when a catalog is created, so a topic never changes its bundle.

Each bundle has a counter, the fence. A bundle owner raises the fence after its node exists in ZooKeeper. A write under
a lease requires that the fence still has the lease's counter, so each bundle owner fences all earlier bundle owners.

Each worker computes the assignment, and workers with the same view agree. Safety does not depend on the assignment:
ZooKeeper lets only one worker create a node, and only writes with the current fence are accepted. With a stale view,
two workers may try to take the same bundle, or a bundle may have no bundle owner for a while.

Source: Pulsar's `NamespaceBundleFactory` (CRC-32 of the topic's name over 0 to 2**32 - 1) and `NamespaceBundle` (form
of a range; the last range includes its upper end). Fencing tokens: M. Kleppmann, "How to do distributed locking".
PIP-57 has no fencing tokens. Rendezvous hashing (Thaler and Ravishankar 1998), weighted by the logarithmic method
(Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005): the highest -w / ln(h) is first. PIP-57
(re-own after a session expired), and Pulsar's `ResourceLockImpl.revalidate`.
"""

import hashlib
import math
import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NewType

from logstore.errors import InvalidInput
from logstore.validated_names import TopicName

BundleId = NewType("BundleId", int)
"""Number of a bundle, counted from 0, in the order of the hash ranges."""

MAX_BUNDLES: Final = 16_384
"""Maximum number of bundles of a catalog. Their names fit into one answer of ZooKeeper (by default 1 MiB)."""

_HASH_BITS = 32
_MAX_HASH = 2**_HASH_BITS - 1


def check_bundle_count(count: int) -> int:
    if not 1 <= count <= MAX_BUNDLES:
        raise InvalidInput("bundles", expected=f"1 to {MAX_BUNDLES}", found=count)
    return count


def bundle_of_topic(topic: TopicName, *, bundle_count: int) -> BundleId:
    hashed = zlib.crc32(topic.encoded.encode("ascii"))
    return BundleId(hashed * check_bundle_count(bundle_count) >> _HASH_BITS)


def bundle_name(bundle: BundleId, *, bundle_count: int) -> str:
    """Return a bundle's hash range, as `0x00000000_0x04000000`. Only the last bundle includes its upper end."""
    if not 0 <= bundle < check_bundle_count(bundle_count):
        raise InvalidInput("bundle", expected=f"0 to {bundle_count - 1}", found=bundle)
    upper = min(_lowest_hash(bundle + 1, bundle_count), _MAX_HASH)
    return f"0x{_lowest_hash(bundle, bundle_count):08x}_0x{upper:08x}"


def parse_bundle_name(name: str, *, bundle_count: int) -> BundleId:
    """Return the bundle whose `bundle_name` is `name`. Raise `InvalidInput` if no bundle has this name."""
    try:
        bundle = BundleId(int(name[:10], 16) * check_bundle_count(bundle_count) >> _HASH_BITS)
    except ValueError:
        bundle = BundleId(0)
    if not 0 <= bundle < bundle_count or bundle_name(bundle, bundle_count=bundle_count) != name:
        raise InvalidInput("bundle", expected=f"the hash range of one of {bundle_count} bundles", found=name)
    return bundle


def _lowest_hash(bundle: int, bundle_count: int) -> int:
    """Return the lowest hash of a bundle, rounded up. For `bundle_count`, return 2**32."""
    return -((-bundle << _HASH_BITS) // bundle_count)


_WORKER_ID_FORM = re.compile(r"(?!\.\.?$)[A-Za-z0-9._@-]{1,128}")


def check_worker_id(worker_id: str) -> str:
    """Return the worker id, or raise `InvalidInput` if it cannot name a Temporal task queue and a ZooKeeper node."""
    if not _WORKER_ID_FORM.fullmatch(worker_id):
        raise InvalidInput(
            "worker id", expected="1 to 128 of A-Z, a-z, 0-9, dot, @, underscore, hyphen", found=worker_id
        )
    return worker_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Right to write for a bundle, valid until a worker raises the bundle's fence again."""

    bundle: BundleId
    fence: int  # counter after this worker has raised the fence, 1 or more
    worker_id: str

    def __str__(self) -> str:
        return f"bundle {self.bundle}, fence {self.fence} of worker {self.worker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """Load that a live worker has reported, possibly some time ago."""

    load: float = 0.0  # present work, 0 or more; a worker with load 1 gets half the share of an idle worker
    bundles: int = 0  # bundles that the worker owned; only for people, because the rules count nodes
    room: bool = True  # False while the worker can take no bundle; it then has no share

    def __post_init__(self) -> None:
        if not (math.isfinite(self.load) and self.load >= 0):
            raise InvalidInput("load", expected="a finite number, 0 or more", found=self.load)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipView:
    """View that one worker has of all workers and bundle owners."""

    bundle_count: int  # of the catalog
    workers: Mapping[str, WorkerLoad]  # live workers
    owners: Mapping[BundleId, str]  # worker in the node of each bundle; the node of a dead worker vanishes soon

    @property
    def available_workers(self) -> list[str]:
        return [worker_id for worker_id, load in self.workers.items() if load.room]

    @property
    def underload_limit(self) -> int:
        """Nine tenths of an even share. A worker with fewer bundles is underloaded."""
        even_share = self.bundle_count // max(1, len(self.available_workers))
        return even_share - even_share // 10

    @property
    def max_bundles_per_worker(self) -> int:
        """Five quarters of an even share, rounded up. A worker with this number of bundles is full."""
        return math.ceil(5 * self.bundle_count / (4 * max(1, len(self.available_workers))))

    @property
    def free_bundles(self) -> list[BundleId]:
        return [bundle for bundle in map(BundleId, range(self.bundle_count)) if bundle not in self.owners]

    def count_bundles(self) -> Counter[str]:
        node_count_by_worker = Counter(self.owners.values())
        return Counter({worker_id: node_count_by_worker[worker_id] for worker_id in self.workers})


def rank_workers(bundle: BundleId, workers: Mapping[str, WorkerLoad], *, full: Collection[str] = ()) -> list[str]:
    """Return the workers in the order in which they should take a bundle. Workers in `full` come last.

    The share of bundles for which a worker is first is proportional to 1 / (1 + load). If a worker joins or leaves, the
    other workers keep their order.
    """

    def sort_key(worker_id: str) -> tuple[bool, float, str]:
        weight = 1 / (1 + workers[worker_id].load)
        return worker_id in full, weight / math.log(_hash_to_unit_interval(bundle, worker_id)), worker_id

    return sorted(workers, key=sort_key)


def _hash_to_unit_interval(bundle: BundleId, worker_id: str) -> float:
    """Return a number between 0 and 1, both exclusive, that is equal in every process."""
    digest = hashlib.blake2b(f"{bundle}/{worker_id}".encode(), digest_size=8).digest()
    # A float represents this number exactly, because only the first 52 bits of the hash are used.
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52


def bundles_to_take(
    view: OwnershipView, worker_id: str, *, free_for_s: Mapping[BundleId, float], takeover_grace_s: float
) -> list[BundleId]:
    """Return the free bundles that this worker should take now, ascending by the worker's rank for the bundle.

    The first worker in a bundle's ranking takes the bundle at once. The worker of rank n, counted from 0, waits for n
    times `takeover_grace_s`, which is longer than a view may be stale. The free bundles are distributed one after the
    other, and each counts as a bundle of the first worker in its ranking. First workers therefore stay within
    `OwnershipView.max_bundles_per_worker`. A worker may exceed this maximum only with bundles that others did not take.

    A worker takes nothing before the view contains the worker. Bundles absent from `free_for_s` have just become free.
    """
    if worker_id not in view.workers:
        return []
    counts = view.count_bundles()
    due = []
    for bundle in view.free_bundles:
        order = rank_workers(bundle, view.workers, full=_find_full_workers(view, counts))
        counts[order[0]] += 1
        rank = order.index(worker_id)
        if free_for_s.get(bundle, 0.0) >= rank * takeover_grace_s:
            due.append((rank, bundle))
    return [bundle for _, bundle in sorted(due)]


def bundles_to_shed(view: OwnershipView, worker_id: str, *, max_free_bundles: int) -> list[BundleId]:
    """Return the bundles that this worker should release now, mostly none. Other workers take these bundles at once.

    1. If a worker has fewer bundles than `OwnershipView.underload_limit`, workers above this limit release bundles for
       which the underloaded worker ranks first.
    2. A worker above `OwnershipView.max_bundles_per_worker` releases other bundles, too.

    A released bundle moves from a worker above a limit to a worker below this limit. So the releases come to an end,
    and no worker takes back a bundle that it released. At most `max_free_bundles` bundles are free at a time.
    """
    return [
        bundle for bundle in _plan_releases_of_all_workers(view, max_free_bundles) if view.owners[bundle] == worker_id
    ]


def _plan_releases_of_all_workers(view: OwnershipView, max_free_bundles: int) -> list[BundleId]:
    """Return the bundles that all workers release. The result depends only on the view and `max_free_bundles`."""
    counts, max_moves = view.count_bundles(), max_free_bundles - len(view.free_bundles)
    owned = sorted(view.owners.items(), key=lambda item: (-counts[item[1]], item[0]))  # owners with most bundles first
    moves: list[BundleId] = []
    for limit in (view.underload_limit, view.max_bundles_per_worker):
        for bundle, owner in owned:
            if len(moves) >= max_moves or min(counts.values(), default=limit) >= limit:
                break
            if counts[owner] <= limit or bundle in moves:
                continue
            # At the first limit no worker counts as full, because a full worker may release bundles, too.
            full = _find_full_workers(view, counts if limit == view.max_bundles_per_worker else {})
            taker = rank_workers(bundle, view.workers, full=full)[0]
            if counts[taker] < limit and view.workers[taker].room:
                moves.append(bundle)
                counts.update({owner: -1, taker: 1})
    return moves


def _find_full_workers(view: OwnershipView, counts: Mapping[str, int]) -> set[str]:
    max_bundles = view.max_bundles_per_worker  # read once, because it counts the workers
    return {
        worker_id
        for worker_id, load in view.workers.items()
        if not load.room or counts.get(worker_id, 0) >= max_bundles
    }


class ReownDecision(StrEnum):
    KEEP = "KEEP"  # node and acquisition belong to this session: the lease is valid
    WAIT = "WAIT"  # this worker's node of an old session will vanish soon: do no work, and look again
    UNLOAD = "UNLOAD"  # another worker's bundle: stop its work, forget the acquisition, and delete no node
    CREATE = "CREATE"  # acquire the bundle: create the node, raise the fence, and read the node again


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOwnerNode:
    worker_id: str  # content of the node
    session: int  # session of the ephemeral node; 0 if the node is not ephemeral
    version: int


def decide_reown(
    node: BundleOwnerNode | None, *, session: int, worker_id: str, acquiring_session: int | None
) -> ReownDecision:
    """Decide about a bundle that this worker had or should take.

    `acquiring_session` is the session in which this worker acquired the bundle: the session had the node after the
    fence was raised. The session of the node decides, not the worker's name, because a node of an old session vanishes
    with that session. If the answer to a create was lost, the node belongs to `session`, but the acquisition does not.
    The worker then acquires the bundle again, because another worker may have raised the fence meanwhile.

    A `node` of `None` means that there is no node, never that ZooKeeper did not answer.
    """
    if node is None:
        return ReownDecision.CREATE
    if node.session == session:
        return ReownDecision.KEEP if acquiring_session == session else ReownDecision.CREATE
    return ReownDecision.WAIT if node.worker_id == worker_id else ReownDecision.UNLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class ReownAttempts:
    """Limits of the attempts of one session, for each bundle. Not thread-safe.

    Success restores no attempts, so that a loop of "acquired, lost, acquired, lost" ends.
    """

    session: int
    creates: int  # attempts for each bundle, 0 or more
    waits: int  # reads of a node that will vanish; reads and pauses must last longer than the session timeout
    _spent: Counter[tuple[BundleId, ReownDecision]] = field(default_factory=Counter, init=False, repr=False)

    def spend_attempt(self, bundle: BundleId, decision: ReownDecision) -> ReownDecision:
        """Spend one attempt if the decision costs one, and return the decision. KEEP and UNLOAD cost nothing.

        If no attempt remains, return UNLOAD. The bundle then goes to the next worker in its ranking.
        """
        limits = {ReownDecision.CREATE: self.creates, ReownDecision.WAIT: self.waits}
        if decision not in limits:
            return decision
        if self._spent[bundle, decision] >= limits[decision]:
            return ReownDecision.UNLOAD
        self._spent[bundle, decision] += 1
        return decision
