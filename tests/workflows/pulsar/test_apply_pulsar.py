"""`apply-pulsar`: a limit that holds, surprises that end a plan, and problems after which a later apply goes on."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from activities.pulsar.inputs_and_results import ConcludeClusterApplyInput
from logstore.reconciliation.findings import LEFT, LEFT_UNCONFIRMED, apply_run_id
from tests.activities import activity_world
from tests.workflows.pulsar.cluster_plans import apply, planned, run_id, undo
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.pulsar.job_definitions import ApplyPulsarResult

pytestmark = pytest.mark.external_service

_LEDGERS = range(101, 131)


async def apply_to_its_end(house: WorkflowHarness, **more: Any) -> ApplyPulsarResult:
    async with house.worker():
        result: ApplyPulsarResult = await (await apply(house, **more)).result()
    return result


def is_finished(house: WorkflowHarness) -> bool:
    run = house.world.catalog.reconciliation.get_run(apply_run_id(run_id(house)))
    return run.finished_us is not None


async def test_limit_holds_when_the_workflow_continues_as_new(house: WorkflowHarness) -> None:
    house.world.bulk.page = 1
    house.world.bulk.scanned["ledgers"] = len(_LEDGERS)
    await planned(house, *_LEDGERS)
    async with house.worker():
        handle = await apply(house, limit=29)
        result = await handle.result()
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW
    assert len(house.world.cluster.ledgers) == 1
    assert result.done.applied == {"orphan_ledger": 29}
    assert not is_finished(house)


async def test_repeated_limits_delete_all_and_then_nothing(house: WorkflowHarness) -> None:
    await planned(house, 101, 102, 103)
    left = []
    for _ in range(3):
        await apply_to_its_end(house, limit=2)
        left.append(len(house.world.cluster.ledgers))
    assert left == [1, 0, 0]
    assert is_finished(house)


async def test_unconfirmed_ledgers_that_are_left_are_counted_and_deleted_by_a_later_apply(
    house: WorkflowHarness,
) -> None:
    house.world.bulk.page = 1
    await planned(house, 101, 102, unconfirmed_ids={102})
    await apply_to_its_end(house)
    run = house.world.catalog.reconciliation.get_run(apply_run_id(run_id(house)))
    assert (run.summary[LEFT], run.summary[LEFT_UNCONFIRMED], run.finished_us) == (1, 1, None)
    result = await apply_to_its_end(house, include_unconfirmed=True, limit=1, reason="all")
    assert (result.done.applied, is_finished(house)) == ({"orphan_ledger": 2}, True)
    run = house.world.catalog.reconciliation.get_run(apply_run_id(run_id(house)))
    assert (run.summary[LEFT], run.summary["reason"]) == (0, "all")


async def test_unconfirmed_ledgers_that_a_limit_leaves_are_counted(house: WorkflowHarness) -> None:
    await planned(house, 101, 102, 103, unconfirmed_ids={103})
    await apply_to_its_end(house, include_unconfirmed=True, limit=1)
    run = house.world.catalog.reconciliation.get_run(apply_run_id(run_id(house)))
    assert (run.summary[LEFT], run.summary[LEFT_UNCONFIRMED]) == (2, 1)


async def test_apply_at_work_has_no_outcome_of_an_earlier_one(house: WorkflowHarness) -> None:
    await planned(house, 101, 102)
    await apply_to_its_end(house, limit=1)
    outcomes = []

    def note_outcome() -> None:
        run = house.world.catalog.reconciliation.get_run(apply_run_id(run_id(house)))
        outcomes.append((LEFT in run.summary, run.summary["reason"]))

    house.world.cluster.before_change = note_outcome
    await apply_to_its_end(house, reason="the rest")
    assert outcomes == [(False, "the rest")]


async def test_each_page_renews_the_claim_of_the_run(house: WorkflowHarness) -> None:
    """A plan that begins meanwhile removes old runs on which nobody works."""
    house.world.bulk.page = 1
    await planned(house, 101, 102)
    removed = []

    def remove_old_runs() -> None:
        runs = house.world.catalog.reconciliation
        removed.extend(runs.remove_old_runs(older_than_s=3_600, limit=9))
        house.world.sql("UPDATE run SET created_us = 1, claim_until_us = 1 WHERE finished_us IS NULL")

    house.world.cluster.before_change = remove_old_runs
    result = await apply_to_its_end(house)
    assert removed == []
    assert result.done.applied == {"orphan_ledger": 2}


async def test_repeated_conclusion_of_an_ended_apply_has_the_same_answer(house: WorkflowHarness) -> None:
    await planned(house, 101, 102)
    result = await apply_to_its_end(house)
    assert result.certificate
    request = ConcludeClusterApplyInput(run_id=run_id(house), actor="tests")
    concluded = activity_world.run(house.world.activities.cluster_applying.conclude_cluster_apply, request)
    assert (concluded.counts, concluded.certificate) == (result.done, result.certificate)


async def test_audit_log_has_applies_and_undos(house: WorkflowHarness) -> None:
    await planned(house, 101, 102)
    await apply_to_its_end(house, reason="clean-up")
    async with house.worker():
        await (await undo(house, 101)).result()
    undone, begun_undo, applied, begun_apply = house.world.catalog.inspection.list_audit_entries(limit=4)
    assert [each.act for each in (begun_apply, applied, begun_undo, undone)] == [
        "apply-cluster-plan",
        "applied-cluster-plan",
        "undo-cluster-plan",
        "undone-cluster-plan",
    ]
    assert {(each.actor, each.reason, each.workflow_id) for each in (begun_apply, applied)} == {
        ("tests", "clean-up", f"apply-pulsar/{run_id(house)}")
    }
    assert {(each.actor, each.workflow_id) for each in (begun_undo, undone)} == {
        ("tests", f"undo-pulsar/{run_id(house)}")
    }
    assert {each.detail["plan"] for each in (begun_apply, applied, begun_undo, undone)} == {run_id(house)}
    result: Any = applied.detail["result"]
    assert (begun_apply.detail["orphans"], result["applied"]) == (2, {"orphan_ledger": 2})
    assert (begun_undo.detail["chosen"], undone.detail["counts"]) == (1, {"restored": 1, "stored": 1})


async def test_surprise_ends_the_plan_for_good(house: WorkflowHarness) -> None:
    await planned(house, 101, 102)
    house.world.cluster.referenced = {102}
    result = await apply_to_its_end(house)
    assert result.stopped == "ledger 102: expected no reference, found one"
    assert is_finished(house)
    house.world.cluster.referenced.clear()
    assert (await apply_to_its_end(house)).stopped == result.stopped
    assert set(house.world.cluster.ledgers) == {101, 102}


async def test_ledgers_that_an_apply_did_not_delete_are_no_part_of_its_undo(house: WorkflowHarness) -> None:
    """The second page is journaled, and then meets a surprise. A broker deletes its ledger later."""
    house.world.bulk.page = 1
    await planned(house, 101, 102)
    cluster = house.world.cluster

    def refer_to_second() -> None:
        if 101 not in cluster.ledgers:
            cluster.referenced.add(102)

    cluster.before_change = refer_to_second
    await apply_to_its_end(house)
    assert set(cluster.ledgers) == {102}
    del cluster.ledgers[102]
    async with house.worker():
        await (await undo(house)).result()
    assert set(cluster.ledgers) == {101}


async def test_what_cannot_be_read_now_stops_the_apply_and_a_later_one_goes_on(house: WorkflowHarness) -> None:
    await planned(house, 101, 102)
    house.world.cluster.unreadable_path = "/schemas/t/ns/a"
    result = await apply_to_its_end(house)
    assert result.stopped == "/schemas/t/ns/a: it may refer to an orphan"
    assert (result.done.applied, is_finished(house)) == ({}, False)
    house.world.cluster.unreadable_path = ""
    result = await apply_to_its_end(house)
    assert (result.stopped, result.done.applied) == ("", {"orphan_ledger": 2})


async def test_lease_that_another_job_takes_in_mid_apply_stops_it(house: WorkflowHarness) -> None:
    house.world.bulk.page = 1
    await planned(house, 101, 102)
    cluster = house.world.cluster

    def lose_lease() -> None:
        cluster.lease = ("another job", cluster.lease[1] + 1)

    cluster.before_change = lose_lease
    result = await apply_to_its_end(house)
    assert result.stopped == "cluster: expected no other job that changes it, found another job"
    assert set(cluster.ledgers) == {101, 102}
    assert cluster.lease[0] == "another job"
    cluster.before_change, cluster.lease = lambda: None, ("", cluster.lease[1] + 1)
    assert (await apply_to_its_end(house)).done.applied == {"orphan_ledger": 2}


async def test_apply_that_an_undo_has_overtaken_deletes_nothing_more(house: WorkflowHarness) -> None:
    """The undo ends before the apply asks for the lease again. Otherwise its answer would be wrong a moment later."""
    house.world.bulk.page = 2
    await planned(house, *range(101, 107))
    loop, changes, counts = asyncio.get_running_loop(), [], []

    async def undo_all() -> None:
        counts.append((await (await undo(house)).result()).counts)

    def undo_before_second_deletion() -> None:
        changes.append("change")
        if len(changes) == 2:
            asyncio.run_coroutine_threadsafe(undo_all(), loop).result(60)

    house.world.cluster.before_change = undo_before_second_deletion
    result = await apply_to_its_end(house)
    assert counts == [{"restored": 2, "present": 2, "stored": 4}]
    assert "since it began" in result.stopped
    assert sorted(house.world.cluster.ledgers) == list(range(101, 107))
    assert not is_finished(house), "a person may apply the plan again"
