"""What an apply deletes in a cluster is stored before, once, and leaves with the run of the apply."""

from dataclasses import replace

import pytest

from logstore.errors import UnknownObject
from logstore.failpoints import SimulatedCrash, arm
from logstore.ports.catalog.reconciliation import JournaledLedger, JournaledRemoval, RunKind
from tests.contracts.catalog.worlds import World, claim

pytestmark = pytest.mark.postgres

_RUN = "apply-pulsar-1"
_BIG_ID = 2**63 - 1


def open_apply(world: World, run_id: str = _RUN) -> None:
    world.catalog.reconciliation.open_run(run_id, RunKind.APPLY, claim=claim(), summary={})


def journaled(ledger_id: int) -> JournaledLedger:
    return JournaledLedger(ledger_id=ledger_id, path=f"path {ledger_id}", version=3, czxid=_BIG_ID, data=b"\0\xff")


def list_all(world: World, run_id: str = _RUN) -> list[JournaledLedger]:
    return world.catalog.cluster_journal.list_ledgers(run_id, after=-1, limit=10_000)


def test_ledgers_are_listed_by_id_in_pages(world: World) -> None:
    open_apply(world)
    port = world.catalog.cluster_journal
    port.add(_RUN, [journaled(ledger_id) for ledger_id in (_BIG_ID, *range(2_500, 0, -1))])
    assert list_all(world) == [journaled(ledger_id) for ledger_id in (*range(1, 2_501), _BIG_ID)]
    assert [each.ledger_id for each in port.list_ledgers(_RUN, after=2_499, limit=1)] == [2_500]
    assert port.list_ledgers("another", after=-1, limit=1) == []
    assert port.find_ledger_ids(_RUN, [_BIG_ID, 5, 9_999]) == {_BIG_ID, 5}
    assert port.find_ledger_ids("another", [5]) == frozenset()


def test_the_first_row_of_a_ledger_stays(world: World) -> None:
    open_apply(world)
    port = world.catalog.cluster_journal
    port.add(_RUN, [journaled(1)])
    port.add(_RUN, [replace(journaled(1), version=4), journaled(2)])
    assert list_all(world) == [journaled(1), journaled(2)]


def test_the_first_time_of_deletion_stays(world: World) -> None:
    open_apply(world)
    port = world.catalog.cluster_journal
    port.add(_RUN, [journaled(1), journaled(2)])
    port.settle(_RUN, deleted_ids=[1], existing_ids=[])
    first = list_all(world)
    assert [each.deleted_us is None for each in first] == [False, True]
    port.settle(_RUN, deleted_ids=[1, 2], existing_ids=[])
    second = list_all(world)
    assert second[0] == first[0]
    assert second[1].deleted_us is not None


def test_ledgers_that_were_not_deleted_leave_the_journal(world: World) -> None:
    open_apply(world)
    open_apply(world, "another")
    port = world.catalog.cluster_journal
    for run_id in (_RUN, "another"):
        port.add(run_id, [journaled(1), journaled(2), journaled(3)])
    port.settle(_RUN, deleted_ids=[1], existing_ids=[2, 3])
    assert [each.ledger_id for each in list_all(world)] == [1]
    assert [each.ledger_id for each in list_all(world, "another")] == [1, 2, 3]


def test_ledgers_that_were_deleted_and_exist_again_stay_in_the_journal(world: World) -> None:
    """An undo puts ledgers back, also before their deletion is stored."""
    open_apply(world)
    port = world.catalog.cluster_journal
    port.add(_RUN, [journaled(1), journaled(2), journaled(3)])
    port.settle(_RUN, deleted_ids=[1], existing_ids=[])
    port.store_undo_results(_RUN, [replace(journaled(2), restoration="restored", stored_data="stored")])
    port.settle(_RUN, deleted_ids=[], existing_ids=[1, 2, 3])
    assert [each.ledger_id for each in list_all(world)] == [1, 2]


def test_the_result_of_the_last_undo_is_stored(world: World) -> None:
    open_apply(world)
    port = world.catalog.cluster_journal
    port.add(_RUN, [journaled(1), journaled(2)])
    port.store_undo_results(_RUN, [replace(journaled(2), restoration="restored", stored_data="gone")])
    port.store_undo_results(_RUN, [replace(journaled(2), restoration="present", stored_data="stored")])
    assert list_all(world) == [journaled(1), replace(journaled(2), restoration="present", stored_data="stored")]
    assert [each.ledger_id for each in port.list_ledgers(_RUN, after=-1, limit=9, ledger_ids=[2, 3])] == [2]


def test_a_journal_needs_the_run_and_leaves_with_it(world: World) -> None:
    port = world.catalog.cluster_journal
    with pytest.raises(UnknownObject):
        port.add(_RUN, [journaled(1)])
    open_apply(world)
    port.add(_RUN, [journaled(1)])
    world.catalog.reconciliation.close_run(_RUN, {})
    assert world.catalog.reconciliation.remove_old_runs(older_than_s=-60.0, limit=10) == [_RUN]
    assert list_all(world) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_while_ledgers_are_stored_loses_none(world: World, moment: str) -> None:
    open_apply(world)
    arm(f"catalog.journal_ledgers.{moment}", action="crash")
    with pytest.raises(SimulatedCrash):
        world.catalog.cluster_journal.add(_RUN, [journaled(1)])
    world.catalog.cluster_journal.add(_RUN, [journaled(1)])
    assert list_all(world) == [journaled(1)]


def make_removal(number: int) -> JournaledRemoval:
    return JournaledRemoval(
        number=number,
        kind="orphan_offload",
        path=f"key-{number}",
        bucket="tiered",
        parts=[{"key": f"key-{number}", "version_id": None, "etag": '"9e"', "size_bytes": 2**40}],
    )


def list_removals(world: World, run_id: str = _RUN) -> list[JournaledRemoval]:
    return world.catalog.cluster_journal.list_removals(run_id, after=-1, limit=10)


def test_removals_are_listed_by_number_and_keep_their_first_row(world: World) -> None:
    open_apply(world)
    port = world.catalog.cluster_journal
    port.add_removals(_RUN, [make_removal(2), make_removal(1)])
    port.add_removals(_RUN, [replace(make_removal(2), parts=[]), make_removal(3)])
    assert list_removals(world) == [make_removal(1), make_removal(2), make_removal(3)]
    assert port.list_removals(_RUN, after=1, limit=1) == [make_removal(2)]
    assert port.list_removals(_RUN, after=-1, limit=9, numbers=[3, 9]) == [make_removal(3)]
    assert port.list_removals("another", after=-1, limit=9) == []


def test_the_first_time_of_removal_stays(world: World) -> None:
    open_apply(world)
    port = world.catalog.cluster_journal
    port.add_removals(_RUN, [make_removal(number) for number in (1, 2, 3)])
    port.settle_removals(_RUN, [1])
    first = list_removals(world)
    assert [(removal.number, removal.removed_us is None) for removal in first] == [(1, False), (2, True), (3, True)]
    port.settle_removals(_RUN, [1])
    assert list_removals(world) == first


def test_removals_need_the_run_and_leave_with_it(world: World) -> None:
    port = world.catalog.cluster_journal
    with pytest.raises(UnknownObject):
        port.add_removals(_RUN, [make_removal(1)])
    open_apply(world)
    port.add_removals(_RUN, [make_removal(1)])
    world.catalog.reconciliation.close_run(_RUN, {})
    assert world.catalog.reconciliation.remove_old_runs(older_than_s=-60.0, limit=10) == [_RUN]
    assert list_removals(world) == []
