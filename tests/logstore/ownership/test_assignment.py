"""Which worker takes which bundle, and which lets go of it."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidInput
from logstore.ownership import BundleId, OwnershipView, WorkerLoad, bundles_to_shed, bundles_to_take, rank_workers
from tests.logstore.ownership.settling import Owners, idle, let_go, settle, taken

_NAMES = [f"w{number}" for number in range(8)]
_LOADS = st.builds(WorkerLoad, load=st.floats(0, 100) | st.sampled_from([0.0, 1e308]), room=st.booleans())
_WORKERS = st.dictionaries(st.sampled_from(_NAMES[:6]), _LOADS, min_size=1)
_BUNDLES = st.integers(0, 10_000).map(BundleId)


@st.composite
def _views(draw: st.DrawFn) -> OwnershipView:
    """Any state: some bundles free, some of workers that are gone, some workers far beyond any share."""
    bundles = draw(st.integers(1, 40))
    names = st.sampled_from(draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=8)))
    owners = draw(st.lists(st.none() | names, min_size=bundles, max_size=bundles))
    owned = {BundleId(bundle): owner for bundle, owner in enumerate(owners) if owner}
    return OwnershipView(bundle_count=bundles, workers=draw(_WORKERS), owners=owned)


def _counts(owners: Mapping[BundleId, str], workers: Mapping[str, WorkerLoad]) -> Counter[str]:
    return Counter(owner for owner in owners.values() if owner in workers)


def test_ranking_is_the_same_in_every_process_and_release() -> None:
    """Workers agree without talking, during a rollout too: the numbers are part of the protocol."""
    workers = idle(3) | {"w3": WorkerLoad(load=4.0)}
    assert {bundle: rank_workers(BundleId(bundle), workers) for bundle in (0, 2, 63, 999)} == {
        0: ["w2", "w0", "w1", "w3"],
        2: ["w0", "w2", "w1", "w3"],
        63: ["w2", "w1", "w3", "w0"],
        999: ["w2", "w1", "w0", "w3"],
    }


@given(_BUNDLES, _WORKERS, st.data())
def test_ranking_holds_each_worker_once_whatever_the_order_they_are_told_in(
    bundle: BundleId, workers: dict[str, WorkerLoad], data: st.DataObject
) -> None:
    """Two workers that list the same directory in other orders agree."""
    shuffled = {name: workers[name] for name in data.draw(st.permutations(list(workers)))}
    assert sorted(rank_workers(bundle, workers)) == sorted(workers)
    assert rank_workers(bundle, shuffled) == rank_workers(bundle, workers)


@given(_BUNDLES, _WORKERS, st.data())
def test_ranking_keeps_its_order_when_a_worker_leaves(
    bundle: BundleId, workers: dict[str, WorkerLoad], data: st.DataObject
) -> None:
    """And, read backwards, when one joins: nobody else's place changes."""
    leaver = data.draw(st.sampled_from(sorted(workers)))
    left = {name: load for name, load in workers.items() if name != leaver}
    assert rank_workers(bundle, left) == [name for name in rank_workers(bundle, workers) if name != leaver]


@given(_BUNDLES, _WORKERS, st.data())
def test_ranking_worker_with_less_load_comes_no_later(
    bundle: BundleId, workers: dict[str, WorkerLoad], data: st.DataObject
) -> None:
    """The least loaded is preferred."""
    name = data.draw(st.sampled_from(sorted(workers)))
    lighter = WorkerLoad(load=data.draw(st.floats(0, workers[name].load)))
    before, after = (rank_workers(bundle, each).index(name) for each in (workers, workers | {name: lighter}))
    assert after <= before


@given(_BUNDLES, _WORKERS, st.sets(st.sampled_from(_NAMES)))
def test_ranking_full_workers_come_last_in_their_order(
    bundle: BundleId, workers: dict[str, WorkerLoad], full: set[str]
) -> None:
    """They are asked when nobody else is there, and not left out."""
    order = rank_workers(bundle, workers)
    expected = [name for name in order if name not in full] + [name for name in order if name in full]
    assert rank_workers(bundle, workers, full=full) == expected


def test_ranking_share_of_a_worker_follows_its_load() -> None:
    """One with load 3 is first for a quarter of what an idle one is first for."""
    workers = {"idle": WorkerLoad(), "busy": WorkerLoad(load=3.0)}
    first = Counter(rank_workers(BundleId(bundle), workers)[0] for bundle in range(5_000))
    assert 0.18 < first["busy"] / 5_000 < 0.22


@pytest.mark.parametrize("load", [-0.1, float("nan"), float("inf")])
def test_load_that_is_no_load_is_refused(load: float) -> None:
    """A NaN would put the workers into no order at all."""
    with pytest.raises(InvalidInput, match=r"^load: expected a finite number, 0 or more"):
        WorkerLoad(load=load)


def test_view_limits_are_a_tenth_below_an_even_share_and_a_quarter_above() -> None:
    """64 bundles on 5 workers are 12.8 each: one with 10 is underloaded, one with 16 is full."""
    shapes = [(64, 5), (1_000, 5), (65, 5), (3, 5), (10, 1)]
    views = [OwnershipView(bundle_count=bundles, workers=idle(count), owners={}) for bundles, count in shapes]
    assert [(view.underload_limit, view.max_bundles_per_worker) for view in views] == [
        (11, 16),
        (180, 250),
        (12, 17),
        (0, 1),
        (9, 13),
    ]


@given(_views())
def test_taking_leaves_nothing_free_takes_nothing_owned_and_passes_no_cap(view: OwnershipView) -> None:
    """All who see the same take different bundles at once: no two race, none waits, none gets too many."""
    before = view.count_bundles()
    new = taken(view.bundle_count, view.workers, view.owners)
    assert sorted(new) == view.free_bundles
    for worker_id, count in _counts(new, view.workers).items():
        assert before[worker_id] + count <= view.max_bundles_per_worker


@given(_views(), st.integers(0, 6), st.sampled_from([0.5, 3.0]))
def test_taking_over_waits_a_grace_for_each_rank(view: OwnershipView, graces: int, grace_s: float) -> None:
    """After r graces exactly the ranks up to r may take: no stampede, and in the end everybody may."""
    free_for_s = dict.fromkeys(view.free_bundles, graces * grace_s)
    due: Counter[BundleId] = Counter()
    for worker_id in view.workers:
        due.update(bundles_to_take(view, worker_id, free_for_s=free_for_s, takeover_grace_s=grace_s))
        just_before = {bundle: free_s - 0.001 for bundle, free_s in free_for_s.items()}
        due.subtract(bundles_to_take(view, worker_id, free_for_s=just_before, takeover_grace_s=grace_s))
    assert all(count == (graces < len(view.workers)) for count in due.values())
    everybody = [bundles_to_take(view, one, free_for_s=free_for_s, takeover_grace_s=grace_s) for one in view.workers]
    told = Counter(bundle for mine in everybody for bundle in mine)
    assert told == dict.fromkeys(view.free_bundles, min(graces + 1, len(view.workers)))


@given(_views(), st.lists(_WORKERS, min_size=6, max_size=6))
def test_taking_with_stale_loads_still_leaves_nothing_free(
    view: OwnershipView, stale: list[dict[str, WorkerLoad]]
) -> None:
    """Each believes other loads and other workers: a bundle may wait, and never for ever."""
    free_for_s = dict.fromkeys(view.free_bundles, 10.0)
    reached = set()
    for worker_id, believed in zip(view.workers, stale, strict=False):
        own = OwnershipView(
            bundle_count=view.bundle_count, workers=believed | {worker_id: view.workers[worker_id]}, owners=view.owners
        )
        reached.update(bundles_to_take(own, worker_id, free_for_s=free_for_s, takeover_grace_s=1.0))
    assert reached == set(view.free_bundles)


def test_taking_own_bundles_come_before_what_others_left() -> None:
    """What nobody else tries is not kept waiting behind what is contended."""
    view = OwnershipView(bundle_count=32, workers=idle(2), owners={})
    own = bundles_to_take(view, "w0", free_for_s={}, takeover_grace_s=1)
    both = bundles_to_take(view, "w0", free_for_s=dict.fromkeys(view.free_bundles, 1.0), takeover_grace_s=1)
    assert 0 < len(own) < 32
    assert both == own + [bundle for bundle in view.free_bundles if bundle not in own]


@given(_views())
def test_taking_is_not_for_a_worker_that_is_not_seen_alive(view: OwnershipView) -> None:
    """Its own node may be gone: then its session is."""
    free_for_s = dict.fromkeys(view.free_bundles, 1e9)
    assert bundles_to_take(view, "unseen", free_for_s=free_for_s, takeover_grace_s=1) == []
    assert bundles_to_shed(view, "unseen", max_free_bundles=100) == []


@given(_views(), st.integers(0, 50))
def test_shedding_is_by_who_has_too_much_and_few_at_a_time(view: OwnershipView, at_most: int) -> None:
    """Nobody becomes underloaded by it, and no more are without an owner than asked for."""
    gone = let_go(view, at_most=at_most)
    assert len(gone) <= max(0, at_most - len(view.free_bundles))
    before, after = view.count_bundles(), view.count_bundles()
    after.subtract(view.owners[bundle] for bundle in gone)
    for worker_id in view.workers:
        assert after[worker_id] in (before[worker_id], *range(view.underload_limit, before[worker_id]))
    if min(before.values()) >= view.underload_limit and max(before.values()) <= view.max_bundles_per_worker:
        assert not gone


def test_shedding_begins_with_who_has_most() -> None:
    """A joiner is filled from the fullest, whatever the numbers of its bundles."""
    owners = {BundleId(bundle): "w0" if bundle < 25 else "w1" for bundle in range(60)}
    view = OwnershipView(bundle_count=60, workers=idle(3), owners=owners)
    assert bundles_to_shed(view, "w0", max_free_bundles=5) == []
    assert len(bundles_to_shed(view, "w1", max_free_bundles=5)) == 5


@given(_views(), st.integers(1, 50))
def test_shedding_gives_to_others_and_brings_counts_closer(view: OwnershipView, at_most: int) -> None:
    """Whoever lets go does not take it again: it goes at once, to one that had less."""
    owners = dict(view.owners) | taken(view.bundle_count, view.workers, view.owners)
    view = OwnershipView(bundle_count=view.bundle_count, workers=view.workers, owners=owners)
    gone = let_go(view, at_most=at_most)
    left = {bundle: owner for bundle, owner in view.owners.items() if bundle not in gone}
    new = taken(view.bundle_count, view.workers, left)
    assert set(new) == gone
    before = view.count_bundles()
    for bundle, taker in new.items():
        assert taker != view.owners[bundle]
        assert before[taker] < before[view.owners[bundle]]


@given(_views(), st.integers(1, 50))
def test_shedding_ends_with_every_bundle_owned_and_nobody_over_the_cap(view: OwnershipView, at_most: int) -> None:
    """From any state, under any loads, in fewer rounds than there are bundles."""
    settled = settle(view.bundle_count, view.workers, view.owners, at_most=at_most)
    assert len(settled.owners) == view.bundle_count
    assert max(_counts(settled.owners, view.workers).values()) <= view.max_bundles_per_worker
    again = settle(view.bundle_count, view.workers, settled.owners, at_most=at_most)
    assert again.owners == settled.owners


def _moved(before: Owners, after: Owners) -> set[BundleId]:
    return {bundle for bundle in after if before.get(bundle) != after[bundle]}


_SIZES = pytest.mark.parametrize(("bundles", "count"), [(64, 3), (64, 5), (1_000, 5), (400, 20)])


@_SIZES
def test_assignment_leaver_moves_its_own_bundles_alone(bundles: int, count: int) -> None:
    """The others keep all of theirs, and share what is left."""
    before = settle(bundles, idle(count), {}).owners
    after = settle(bundles, {name: load for name, load in idle(count).items() if name != "w1"}, before)
    assert _moved(before, after.owners) == {bundle for bundle, owner in before.items() if owner == "w1"}
    assert after.shed == 0


@_SIZES
def test_assignment_joiner_gets_about_its_share_and_others_hardly_anything(bundles: int, count: int) -> None:
    """About N / W, each moved once; another gets only what is above the cap, which is lower for more workers."""
    before = settle(bundles, idle(count - 1), {}).owners
    joined = settle(bundles, idle(count), before)
    moved = _moved(before, joined.owners)
    assert joined.shed == len(moved)
    mine = {bundle for bundle in moved if joined.owners[bundle] == f"w{count - 1}"}
    assert 0.8 <= len(mine) / (bundles / count) <= 1.1
    cap = OwnershipView(bundle_count=bundles, workers=idle(count), owners={}).max_bundles_per_worker
    assert len(moved - mine) <= sum(max(0, owned - cap) for owned in Counter(before.values()).values())


def test_assignment_of_workers_that_all_come_back_is_the_one_before() -> None:
    """Every node is gone and nobody remembers anything: each takes what it had, whoever is seen first."""
    before = settle(1_000, idle(5), {}).owners
    assert settle(1_000, dict(reversed(idle(5).items())), {}).owners == before


def test_assignment_worker_that_left_and_comes_back_finds_most_of_its_bundles() -> None:
    """Under its own name it ranks first for what it had; the others' bundles stay where they were."""
    before = settle(1_000, idle(5), {}).owners
    after = settle(1_000, idle(5), settle(1_000, idle(4), before).owners).owners
    assert len(_moved(before, after)) <= 0.2 * 200
    assert {before[bundle] for bundle in _moved(before, after)} == {"w4"}


def test_assignment_worker_that_says_a_huge_load_is_waited_for_by_nobody() -> None:
    """All bundles find another owner at once, and none is let go for it though it has the fewest."""
    settled = settle(64, idle(4) | {"w4": WorkerLoad(load=1e9)}, {})
    assert set(settled.owners.values()) == set(idle(4))
    assert (settled.shed, settled.rounds) == (0, 0)


def test_assignment_worker_without_room_gets_nothing_and_leaves_no_gap() -> None:
    """The other of two would be full with half of them and a quarter: then everything waited for the one without."""
    workers = idle(1) | {"w1": WorkerLoad(room=False)}
    settled = settle(64, workers, {})
    assert set(settled.owners.values()) == {"w0"}
    assert (settled.shed, settled.rounds) == (0, 0)


def test_assignment_keeps_what_a_worker_without_room_has() -> None:
    """It can take none now, which says nothing of those that it owns."""
    before = settle(64, idle(2), {}).owners
    workers = idle(1) | {"w1": WorkerLoad(room=False)}
    assert settle(64, workers, before).owners == before
    nobody = {name: WorkerLoad(room=False) for name in idle(2)}
    assert settle(64, nobody, before).owners == before
