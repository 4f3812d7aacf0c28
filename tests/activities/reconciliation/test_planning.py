"""A plan: one cut-off, nothing changed, nothing finished that is not whole."""

from pathlib import Path

import pytest
from temporalio.exceptions import CancelledError

from activities.bulk_jobs import catalog_id_file
from activities.reconciliation.inputs_and_results import BulkJobInput
from logstore.errors import CatalogMismatch, InvalidInput, PreconditionFailed, StoreUnavailable, UnknownObject
from logstore.ports.catalog.reconciliation import RunKind
from logstore.reconciliation.bulk_job_inputs_and_results import (
    LEFT_OUT,
    ROWS_BEFORE,
    CompareStorageWithCatalogJob,
    ListStorageJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.findings import FindingKind
from tests.activities.activity_world import make_activity_environment
from tests.activities.reconciliation.plans import DAY_S, JOBS, RUN, Plans, kinds

REFUSAL = CatalogMismatch("bucket", expected="ours", found="theirs", advice="look")


def test_plan_counts_findings_and_bytes_of_every_kind(plans: Plans) -> None:
    """Zeros too; counted from the published files."""
    plans.orphan_ledger(7)
    plans.orphan_segment(3, 9)
    plans.row(FindingKind.MISSING_DATA, 1, size_bytes=5)
    plans.bulk.facts = {f"{LEFT_OUT}bucket colder": "StoreUnavailable: no answer", "seconds": "3"}
    result = plans.plan()
    assert result.findings == kinds(["orphan_ledger", "orphan_segment", "missing_data"])
    assert (result.size_bytes["orphan_ledger"], result.size_bytes["missing_data"]) == (300, 5)
    assert result.left_out == ["bucket colder: StoreUnavailable: no answer"]
    assert result.ledgers == 4


def test_plan_says_how_much_was_too_young_to_be_compared(plans: Plans) -> None:
    """An inventory may have moved the cut-off of rows to an earlier time; else it is what the plan began with."""
    plans.bulk.compared["young"] = 3
    result = plans.plan()
    assert (result.young, result.rows_before_us) == (3, plans.runs.get_run(RUN).summary["rows_before_us"])


def test_plan_tells_the_cut_off_that_the_comparison_used(plans: Plans) -> None:
    """It decides whether the plan may say that nothing is missing any more."""
    plans.bulk.facts[ROWS_BEFORE] = "77"
    assert plans.plan().rows_before_us == 77


def test_plan_without_findings_is_a_plan(plans: Plans) -> None:
    """All zero is an answer, not a failure."""
    assert plans.plan().findings == kinds([])


def test_cut_offs_are_by_the_clock_of_each_side(plans: Plans) -> None:
    """One clock a decision (icechunk#2310): objects by the store's, rows by the catalog's."""
    plans.warm.now_us, plans.runs.now_us = 900 * DAY_S * 10**6, 5
    plans.begin(older_than_s=3 * DAY_S)
    begun = plans.runs.get_run(RUN).summary
    assert begun["before_us"] == 897 * DAY_S * 10**6
    assert begun["rows_before_us"] == plans.runs.state.now_us - 3 * DAY_S * 10**6


def test_beginning_again_keeps_the_first_cut_off(plans: Plans) -> None:
    """Every step and every retry agrees on it."""
    plans.begin()
    first = plans.runs.get_run(RUN)
    plans.warm.advance(seconds=1_000)
    plans.begin()
    assert plans.runs.get_run(RUN) == first


@pytest.mark.parametrize(
    ("age_s", "error"), [(-1.0, InvalidInput), (0.0, PreconditionFailed), (3_599.0, PreconditionFailed)]
)
def test_age_below_the_floor_is_refused_before_a_run_is_opened(
    age_s: float, error: type[Exception], plans: Plans
) -> None:
    """What an upload may take is no orphan (iceberg#4195)."""
    with pytest.raises(error, match="older-than"):
        plans.begin(older_than_s=age_s)
    assert plans.runs.list_runs(RunKind.PLAN, limit=9) == []


def test_age_below_the_floor_that_is_meant_is_taken(plans: Plans) -> None:
    """Where nobody writes."""
    plans.begin(older_than_s=0.0, unsafe_age=True)
    assert plans.runs.get_run(RUN).summary["before_us"] == plans.warm.now_us


@pytest.mark.parametrize("which", ["warm", "cold"])
def test_another_catalog_s_bucket_is_refused_before_and_after(which: str, plans: Plans) -> None:
    """A bucket that changed hands in between says nothing of what is absent; nothing is finished upon it."""
    getattr(plans, which).refusal = REFUSAL
    with pytest.raises(CatalogMismatch):
        plans.begin()
    assert plans.runs.list_runs(RunKind.PLAN, limit=9) == []
    getattr(plans, which).refusal = None
    plans.begin()
    for job in JOBS:
        plans.do(job)
    getattr(plans, which).refusal = REFUSAL
    with pytest.raises(CatalogMismatch):
        plans.conclude()
    assert plans.runs.get_run(RUN).finished_us is None


def test_bulk_job_that_was_published_does_not_run_again(plans: Plans) -> None:
    """Its summary is answered, on whatever cluster."""
    plans.begin()
    first = plans.do(CompareStorageWithCatalogJob.name, master="spark://one:7077")
    assert plans.do(CompareStorageWithCatalogJob.name) == first
    assert len(plans.bulk.ran) == 1
    assert plans.bulk.masters == ["spark://one:7077"]


def test_bulk_jobs_are_told_the_cut_offs_and_inventories(plans: Plans) -> None:
    """As the plan began with them."""
    plans.begin(inventories=["/inventory/manifest.json"])
    begun = plans.runs.get_run(RUN).summary
    for job in JOBS:
        plans.do(job)
    listing, _, compare, verify = plans.bulk.ran
    assert listing == ListStorageJob(run_id=RUN, inventories=("/inventory/manifest.json",))
    assert compare == CompareStorageWithCatalogJob(
        run_id=RUN, before_us=begun["before_us"], rows_before_us=begun["rows_before_us"], next_ledger_id=100
    )
    assert verify == VerifyFindingsJob(run_id=RUN, before_us=begun["before_us"])


def test_unknown_bulk_job_is_refused(plans: Plans) -> None:
    """By a build that does not know it."""
    plans.begin()
    with pytest.raises(InvalidInput, match="compare-sides"):
        plans.do("compare-everything")


def test_bulk_job_of_no_run_is_refused(plans: Plans) -> None:
    """One that was forgotten meanwhile is not begun anew."""
    plans.begin()
    with pytest.raises(UnknownObject):
        plans.do(ListStorageJob.name, run_id="plan-2")
    assert plans.bulk.ran == []


def test_cancelled_bulk_job_is_cancelled_with_all_that_it_submits(plans: Plans) -> None:
    """No job is left behind on the cluster."""
    env = make_activity_environment(RUN)
    plans.begin()

    def cancel_and_beat(_job: object, beat: object) -> None:
        env.cancel()
        beat()  # type: ignore[operator]  # of no arguments

    plans.bulk.meanwhile = cancel_and_beat
    asked = BulkJobInput(run_id=RUN, job=ListStorageJob.name)
    with pytest.raises(CancelledError):
        env.run(plans.planning.run_plan_bulk_job, asked)
    assert plans.bulk.stopped == [RUN]
    assert plans.bulk.find_published_summary(RUN, ListStorageJob.name) is None


@pytest.mark.parametrize(
    ("compared", "counted", "told"),
    [
        ({"ledgers": 3}, 4, "expected 4 ledgers or more, found 3"),
        ({"ledgers": 0, "named": 0, "matched": 0}, 0, "found none"),
        ({"named": 0}, 4, "expected copies of 4 ledgers"),
        ({"matched": 0}, 4, "expected primary copies that storage and catalog both name, found none of 4"),
        ({"tiered_stored": 2, "tiered_named": 5}, 4, "expected tiered copies .* found none of 5"),
        (
            {"objects": 0, "stored": 0, "matched": 0},
            4,
            "expected objects of 4 ledgers in the primary bucket, found none",
        ),
    ],
    ids=["short", "empty", "no-copies", "no-overlap", "no-overlap-of-tiered-copies", "nothing-listed"],
)
def test_comparison_whose_sides_cannot_both_be_right_is_refused(
    compared: dict[str, int], counted: int, told: str, plans: Plans
) -> None:
    """A stale or empty side makes live data look dead (ClickHouse#114194, lakeFS#4658)."""
    plans.bulk.compared |= compared
    plans.runs.counted = counted
    plans.begin()
    for job in JOBS[:3]:
        plans.do(job)
    with pytest.raises(PreconditionFailed, match=told):
        plans.check()


def test_bucket_without_objects_can_be_planned_while_nothing_is_expected_in_it(plans: Plans) -> None:
    """A store that is new, or whose ledgers are all too young to be judged."""
    plans.bulk.compared |= {"objects": 0, "stored": 0, "matched": 0, "expected": 0}
    assert plans.plan().findings == kinds([])


def test_catalog_of_which_every_ledger_is_offloaded_can_be_planned(plans: Plans) -> None:
    """Its primary bucket holds at most what was left over, and that overlaps with nothing."""
    tiered = {"tiered_stored": 4, "tiered_named": 4, "tiered_matched": 4}
    plans.bulk.compared |= {"stored": 1, "named": 0, "matched": 0} | tiered
    assert plans.plan().findings == kinds([])


def test_plan_of_which_a_job_is_not_published_is_not_finished(plans: Plans) -> None:
    """A run without a summary is no plan."""
    plans.begin()
    plans.do(CompareStorageWithCatalogJob.name)
    with pytest.raises(PreconditionFailed, match="list-storage"):
        plans.conclude()
    assert plans.runs.get_run(RUN).finished_us is None


def test_concluding_again_keeps_the_first_summary(plans: Plans) -> None:
    """And a plan that is begun again says that it is done."""
    plans.orphan_ledger(7)
    first = plans.plan()
    begun = plans.begin()
    assert plans.conclude() == first
    assert begun.done == first


def test_old_runs_are_forgotten_with_their_output(plans: Plans) -> None:
    """Output that is of no run goes too: whoever removed its row may have died before."""
    plans.orphan_ledger(7)
    plans.plan()
    catalog_id_file(plans.bulk.create_run_folder("plan-of-nobody")).write_text(plans.identities.id)
    plans.runs.age(RUN, seconds=31 * DAY_S)
    plans.begin("plan-2")
    assert plans.bulk.list_run_ids() == ["plan-2"]
    assert [one.run_id for one in plans.runs.list_runs(RunKind.PLAN, limit=9)] == ["plan-2"]


def test_output_of_another_catalog_in_the_same_folder_stays(plans: Plans, tmp_path: Path) -> None:
    """Its plans are of no run here, and its apply may be at work on them."""
    plans.orphan_ledger(7)
    found = plans.plan()
    other = Plans(tmp_path)
    other.identities.id = "another"
    other.begin("plan-2")
    assert plans.bulk.list_run_ids() == [RUN, "plan-2"]
    assert plans.begin_apply(max_orphan_share=1.0).findings == found.findings["orphan_ledger"] == 1


def test_run_id_that_another_catalog_uses_in_the_same_folder_is_refused(plans: Plans, tmp_path: Path) -> None:
    """What its jobs published is not of this store, and is never taken for this run's (lakeFS#4658)."""
    plans.plan()
    other = Plans(tmp_path)
    other.identities.id = "another"
    with pytest.raises(PreconditionFailed, match="expected an id that no other catalog uses"):
        other.begin()
    assert other.runs.list_runs(RunKind.PLAN, limit=9) == []


def test_store_that_tells_no_time_is_waited_for(plans: Plans) -> None:
    """No decision falls back to this machine's clock (lakeFS#4382)."""

    def silent() -> int:
        raise StoreUnavailable("no date in the answer")

    plans.planning._store_now_us = silent
    with pytest.raises(StoreUnavailable):
        plans.begin()
    assert plans.runs.list_runs(RunKind.PLAN, limit=9) == []
