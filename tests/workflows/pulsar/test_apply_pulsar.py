"""`apply-pulsar`: a limit that holds, surprises that end a plan, and problems after which a later apply goes on."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from activities.pulsar.inputs_and_results import ConcludeClusterApplyInput
from logstore.reconciliation.findings import LEFT, LEFT_HELD_BACK, apply_run_id
from tests.activities import activity_world
from tests.workflows.pulsar.cluster_plans import (
    abandoned_upload,
    apply,
    orphan_managed_ledger,
    orphan_offload,
    planned,
    planned_mixture,
    run_id,
    undo,
)
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
    assert (run.summary[LEFT], run.summary[LEFT_HELD_BACK], run.finished_us) == (1, 1, None)
    result = await apply_to_its_end(house, include_unconfirmed=True, limit=1, reason="all")
    assert (result.done.applied, is_finished(house)) == ({"orphan_ledger": 2}, True)
    run = house.world.catalog.reconciliation.get_run(apply_run_id(run_id(house)))
    assert (run.summary[LEFT], run.summary["reason"]) == (0, "all")


async def test_unconfirmed_ledgers_that_a_limit_leaves_are_counted(house: WorkflowHarness) -> None:
    await planned(house, 101, 102, 103, unconfirmed_ids={103})
    await apply_to_its_end(house, include_unconfirmed=True, limit=1)
    run = house.world.catalog.reconciliation.get_run(apply_run_id(run_id(house)))
    assert (run.summary[LEFT], run.summary[LEFT_HELD_BACK]) == (2, 1)


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


_OTHERS = (orphan_offload(7), abandoned_upload(8), orphan_managed_ledger())
_EVERYTHING: dict[str, Any] = {"include_irreversible": True, "include_unconfirmed": True}


async def test_what_no_undo_puts_back_is_kept_without_the_operators_word(house: WorkflowHarness) -> None:
    await planned_mixture(house, [101], _OTHERS)
    result = await apply_to_its_end(house)
    assert result.done.applied == {"orphan_ledger": 1}
    assert result.done.skipped == {"no undo puts it back; --include-irreversible removes it": 3}
    assert len(house.world.cluster.parts) == 3
    assert not is_finished(house), "a later apply of the plan may remove them"


async def test_page_of_all_kinds_is_removed_by_a_later_apply_with_the_operators_word(house: WorkflowHarness) -> None:
    await planned_mixture(house, [101, 102], _OTHERS)
    await apply_to_its_end(house)
    result = await apply_to_its_end(house, **_EVERYTHING)
    counts = {"orphan_ledger": 2, "orphan_offload": 1, "abandoned_upload": 1, "orphan_managed_ledger": 1}
    assert (result.done.applied, result.done.skipped, result.done.failed) == (counts, {}, 0)
    assert (house.world.cluster.parts, house.world.cluster.ledgers) == ({}, {})
    assert is_finished(house)
    journal = house.world.catalog.cluster_journal.list_removals(apply_run_id(run_id(house)), after=-1, limit=10)
    assert sorted(removal.kind for removal in journal) == sorted(counts.keys() - {"orphan_ledger"})
    assert all(removal.removed_us and removal.parts for removal in journal)
    copies = [key for key in house.world.record_objects.keys if key.startswith("cluster-removals/")]
    assert len(copies) == 3, "one for each batch"


async def test_an_upload_needs_the_option_for_unconfirmed_orphans_too(house: WorkflowHarness) -> None:
    await planned_mixture(house, [], _OTHERS)
    result = await apply_to_its_end(house, include_irreversible=True)
    assert result.done.skipped == {"it does not state its cluster; --include-unconfirmed aborts it": 1}
    assert list(house.world.cluster.parts) == [_OTHERS[1].key]


async def test_kinds_that_no_setting_reaches_are_kept_by_the_name_of_the_setting(house: WorkflowHarness) -> None:
    await planned_mixture(house, [], _OTHERS)
    house.world.cluster.has_bucket = house.world.cluster.has_api = False
    result = await apply_to_its_end(house, **_EVERYTHING)
    assert result.done.skipped == {
        "the setting pulsar_offload_bucket is empty": 2,
        "the setting pulsar_admin_url is empty": 1,
    }
    assert not is_finished(house)


async def test_offloads_in_a_bucket_that_others_may_use_are_kept(house: WorkflowHarness) -> None:
    """Another cluster of the same name would look like an orphan."""
    await planned_mixture(house, [], _OTHERS)
    house.world.cluster.is_bucket_exclusive = False
    result = await apply_to_its_end(house, **_EVERYTHING)
    assert result.done.skipped == {"the setting pulsar_offload_bucket_exclusive is false": 2}
    assert result.done.applied == {"orphan_managed_ledger": 1}
    assert not is_finished(house)


async def test_limit_counts_all_kinds_oldest_first(house: WorkflowHarness) -> None:
    """The offload and the upload are older than the managed ledger, which is older than the ledger."""
    await planned_mixture(house, [101], _OTHERS)
    result = await apply_to_its_end(house, limit=3, **_EVERYTHING)
    assert result.done.applied == {"orphan_offload": 1, "abandoned_upload": 1, "orphan_managed_ledger": 1}
    assert set(house.world.cluster.ledgers) == {101}


async def test_change_of_an_object_since_the_plan_stops_it_for_good(house: WorkflowHarness) -> None:
    await planned_mixture(house, [101], _OTHERS)
    house.world.cluster.changed_paths = {_OTHERS[1].key}
    result = await apply_to_its_end(house, **_EVERYTHING)
    assert result.stopped == f"{_OTHERS[1].key}: expected what the plan saw, found a change"
    assert result.done.applied == {"orphan_ledger": 1, "orphan_offload": 1}
    assert set(house.world.cluster.parts) == {_OTHERS[1].key, _OTHERS[2].key}
    assert is_finished(house)


async def test_refusals_of_the_store_and_of_a_broker_become_fates(house: WorkflowHarness) -> None:
    await planned_mixture(house, [], _OTHERS)
    cluster = house.world.cluster
    cluster.refused_paths = {_OTHERS[0].key: "AccessDenied: no"}
    cluster.kept_paths = {_OTHERS[2].key: "a broker does not delete it: 404"}
    result = await apply_to_its_end(house, **_EVERYTHING)
    assert result.done.skipped == {"a broker does not delete it: 404": 1}
    assert list(result.done.failures.values()) == ["AccessDenied: no"]
    assert is_finished(house)


async def test_what_vanished_before_the_apply_is_kept_and_not_in_the_journal(house: WorkflowHarness) -> None:
    await planned_mixture(house, [], _OTHERS)
    house.world.cluster.parts.clear()
    result = await apply_to_its_end(house, **_EVERYTHING)
    assert result.done.skipped == {"it does not exist any more": 3}
    assert not house.world.catalog.cluster_journal.list_removals(apply_run_id(run_id(house)), after=-1, limit=10)


async def test_undo_of_an_apply_without_ledgers_says_that_nothing_comes_back(house: WorkflowHarness) -> None:
    await planned_mixture(house, [], _OTHERS)
    await apply_to_its_end(house, **_EVERYTHING)
    async with house.worker():
        refused = (await (await undo(house)).result()).refused
    assert refused
    assert "objects, uploads and managed ledgers do not come back" in refused.message
