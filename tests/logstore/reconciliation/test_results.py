"""Summaries of runs, as another build may have written them."""

from dataclasses import asdict

from logstore.reconciliation.findings import RESULT, ApplyCounts, PlanOrScrubResult, apply_counts, plan_result


def test_summary_of_a_newer_build_is_read_without_what_this_one_does_not_know() -> None:
    """After a rollback the newest plan is the newer build's: status page, gauges and `orphans report` go on."""
    plan = PlanOrScrubResult(findings={"orphan_segment": 1}, size_bytes={}, ledgers=2, before_us=3, report="r")
    assert plan_result({RESULT: {**asdict(plan), "compared_twice": 7}}) == plan
    counts = ApplyCounts(failed=1)
    assert apply_counts({RESULT: {**asdict(counts), "spared": 7}}) == counts
