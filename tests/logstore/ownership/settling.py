"""Workers that all see the same, acting in rounds until nothing moves."""

from collections.abc import Mapping
from dataclasses import dataclass

from logstore.ownership import BundleId, OwnershipView, WorkerLoad, bundles_to_shed, bundles_to_take

Owners = dict[BundleId, str]


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Who owns what in the end, and what it took."""

    owners: Owners
    shed: int
    rounds: int


def settle(
    bundles: int,
    workers: Mapping[str, WorkerLoad],
    owners: Mapping[BundleId, str],
    *,
    at_most: int = 16,
) -> Settled:
    """Let nodes of the dead go, then take and shed in turn. Two that take one bundle, or no end, fail."""
    now = {bundle: owner for bundle, owner in owners.items() if owner in workers}
    shed = 0
    for rounds in range(bundles + 2):
        now |= taken(bundles, workers, now)
        gone = let_go(OwnershipView(bundle_count=bundles, workers=workers, owners=now), at_most=at_most)
        if not gone and len(now) == bundles:
            return Settled(owners=now, shed=shed, rounds=rounds)
        shed += len(gone)
        now = {bundle: owner for bundle, owner in now.items() if bundle not in gone}
    raise AssertionError(f"{bundles} bundles still move after as many rounds")


def taken(bundles: int, workers: Mapping[str, WorkerLoad], owners: Mapping[BundleId, str]) -> Owners:
    """What all take at once; nobody takes what another takes."""
    view = OwnershipView(bundle_count=bundles, workers=workers, owners=owners)
    mine = [
        (bundle, one) for one in workers for bundle in bundles_to_take(view, one, free_for_s={}, takeover_grace_s=1)
    ]
    assert len(dict(mine)) == len(mine)
    return dict(mine)


def let_go(view: OwnershipView, *, at_most: int) -> set[BundleId]:
    """What all let go at once; each of its own, and no bundle twice."""
    gone: set[BundleId] = set()
    for worker_id in view.workers:
        mine = bundles_to_shed(view, worker_id, max_free_bundles=at_most)
        assert all(view.owners[bundle] == worker_id for bundle in mine)
        assert len(set(mine)) == len(mine)
        gone.update(mine)
    return gone


def idle(count: int) -> dict[str, WorkerLoad]:
    """So many workers without load, `w0` and on."""
    return {f"w{number}": WorkerLoad() for number in range(count)}
