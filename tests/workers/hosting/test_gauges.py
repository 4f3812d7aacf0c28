"""Gauges of the catalog, and what they do when it is away."""

import logging
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from logstore.errors import StoreUnavailable
from logstore.ports.catalog.delayed import CatalogDelayedMessageCounts
from logstore.ports.catalog.deletion import Claim, UndeletedCopyCounts
from logstore.ports.catalog.reconciliation import RunKind
from logstore.ports.catalog.transactions import UnfinishedTransactionCounts
from logstore.reconciliation.findings import STOPPED, PlanOrScrubResult
from logstore.transactions.transaction_ids_and_states import TransactionState
from tests.fakes.meter import FakeMeter, metric_series
from tests.fakes.reconciliation_runs import FakeReconciliationRuns
from workers.hosting.gauges import (
    PeriodicGauges,
    make_gauge_updater,
    sample_cluster_apply,
    sample_cluster_plan,
    sample_delayed_messages,
    sample_deletions,
    sample_missing_data_of_plans,
    sample_transactions,
)

_NAMES = ("sexton_deletion_estimated_inflight", "sexton_deletion_dead_lettered")


_CLAIM = Claim(workflow_id="tests", run_id="", ttl_s=60)


class _Catalog:
    def __init__(self) -> None:
        self.found = UndeletedCopyCounts(estimated_inflight=7, dead_lettered=2)
        self.away = False

    def count_undeleted_copies(self) -> UndeletedCopyCounts:
        if self.away:
            raise StoreUnavailable("the database is away")
        return self.found


def _shown(meter: FakeMeter) -> list[int]:
    return [meter.values[metric_series(name)] for name in _NAMES]


def test_gauges_show_what_the_catalog_says() -> None:
    """Both numbers, and when they were read."""
    meter, catalog = FakeMeter(), _Catalog()
    read = make_gauge_updater(meter, lambda: sample_deletions(catalog.count_undeleted_copies))
    assert not meter.values, "a zero before the first answer would say that all is deleted"
    earliest = int(time.time())
    read()
    assert _shown(meter) == [7, 2]
    assert earliest <= meter.values[metric_series("sexton_deletion_read_timestamp_seconds")] <= time.time()
    assert meter.values[metric_series("sexton_deletion_oldest_pending_seconds")] == 0, "a catalog that does not say"
    catalog.found = UndeletedCopyCounts(estimated_inflight=1, dead_lettered=0, oldest_us=(earliest - 3_600) * 1_000_000)
    read()
    assert meter.values[metric_series("sexton_deletion_oldest_pending_seconds")] >= 3_600
    catalog.found = UndeletedCopyCounts(estimated_inflight=0, dead_lettered=0)
    read()
    assert _shown(meter) == [0, 0]
    assert meter.values[metric_series("sexton_deletion_oldest_pending_seconds")] == 0


def test_gauges_keep_their_values_while_the_catalog_is_away_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """No scrape reads a zero that nobody counted, and a long outage does not fill the log."""
    meter, catalog = FakeMeter(), _Catalog()
    gauges = PeriodicGauges(make_gauge_updater(meter, lambda: sample_deletions(catalog.count_undeleted_copies)))
    gauges.update_gauges_until_outage()
    read_at = meter.values[metric_series("sexton_deletion_read_timestamp_seconds")] = 1
    catalog.away = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            gauges.update_gauges_until_outage()
        assert _shown(meter) == [7, 2]
        assert meter.values[metric_series("sexton_deletion_read_timestamp_seconds")] == read_at
        assert len(caplog.records) == 1
        catalog.away = False
        gauges.update_gauges_until_outage()
        catalog.away = True
        gauges.update_gauges_until_outage()
    assert len(caplog.records) == 2, "a second outage is told again"


def test_gauge_that_cannot_be_read_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A row of another build may be one that this one cannot read: the others stay fresh, and the reading goes on."""
    meter, catalog = FakeMeter(), _Catalog()

    def of_another_build() -> None:
        raise TypeError("unexpected keyword argument")

    gauges = PeriodicGauges(
        of_another_build, make_gauge_updater(meter, lambda: sample_deletions(catalog.count_undeleted_copies))
    )
    for _ in range(3):
        gauges.update_gauges_until_outage()
    assert _shown(meter) == [7, 2]
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info


@pytest.mark.parametrize(
    ("plans", "shown"),
    [
        ([(100, 2), (50, 0)], 2),  # an older cut-off: the rows that lost their objects were left out
        ([(100, 2), (50, 1)], 2),
        ([(100, 2), (50, 3)], 3),
        ([(100, 2), (100, 0)], 0),
        ([(100, 2), (101, 0), (50, 0)], 0),
        ([(100, 2), (50, 0), (99, 0)], 2),
        ([(200, 1), (100, 2), (50, 0)], 2),
    ],
)
def test_loss_stands_until_a_plan_has_looked_at_rows_as_young(plans: list[tuple[int, int]], shown: int) -> None:
    """Oldest first: the cut-off of rows, and what is missing."""
    meter, runs = FakeMeter(), FakeReconciliationRuns()
    for number, (rows_before_us, missing) in enumerate(plans):
        runs.open_run(f"plan-{number}", RunKind.PLAN, claim=_CLAIM, summary={})
        found = PlanOrScrubResult(
            findings={"missing_data": missing},
            size_bytes={},
            ledgers=1,
            before_us=1_000 + number,
            report="",
            rows_before_us=rows_before_us,
        )
        runs.close_run(f"plan-{number}", {"result": asdict(found)})
    make_gauge_updater(meter, lambda: sample_missing_data_of_plans(runs.list_runs))()
    assert meter.values[metric_series("sexton_reconciliation_missing_data")] == shown


def test_missing_data_is_that_of_the_newest_plan_that_finished() -> None:
    """A plan at work, or one that failed, says nothing; nor does silence say that nothing is missing."""
    meter, runs = FakeMeter(), FakeReconciliationRuns()
    read, claim = make_gauge_updater(meter, lambda: sample_missing_data_of_plans(runs.list_runs)), _CLAIM
    read()
    assert not meter.values
    for number, missing in enumerate((3, 1)):
        runs.open_run(f"plan-{number}", RunKind.PLAN, claim=claim, summary={})
        found = PlanOrScrubResult(findings={"missing_data": missing}, size_bytes={}, ledgers=1, before_us=1, report="")
        runs.close_run(f"plan-{number}", {"result": asdict(found)})
    runs.open_run("plan-2", RunKind.PLAN, claim=claim, summary={})
    read()
    assert meter.values[metric_series("sexton_reconciliation_missing_data")] == 1
    assert meter.values[metric_series("sexton_reconciliation_plan_timestamp_seconds")] == runs.now_us // 1_000_000


def test_newest_finished_plan_of_a_cluster_is_shown_beside_that_of_the_store() -> None:
    """By kind, zeros too; a plan at work says nothing."""
    meter, runs = FakeMeter(), FakeReconciliationRuns()
    read = make_gauge_updater(meter, lambda: sample_cluster_plan(runs.list_runs))
    read()
    assert not meter.values
    for number, incomplete in enumerate(([], ["a znode cannot be read"])):
        found = PlanOrScrubResult(
            findings={"orphan_ledger": 3 + number},
            size_bytes={"orphan_ledger": 900},
            ledgers=1,
            before_us=1,
            report="",
            incomplete=incomplete,
        )
        runs.open_run(f"pulsar-{number}", RunKind.CLUSTER_PLAN, claim=_CLAIM, summary={})
        runs.close_run(f"pulsar-{number}", {"result": asdict(found)})
    runs.open_run("pulsar-2", RunKind.CLUSTER_PLAN, claim=_CLAIM, summary={})
    read()
    assert meter.values[metric_series("sexton_pulsar_findings", kind="orphan_ledger")] == 4
    assert meter.values[metric_series("sexton_pulsar_findings", kind="hazard")] == 0
    assert meter.values[metric_series("sexton_pulsar_finding_bytes", kind="orphan_ledger")] == 900
    assert meter.values[metric_series("sexton_pulsar_plan_complete")] == 0
    assert meter.values[metric_series("sexton_pulsar_plan_timestamp_seconds")] == runs.now_us // 1_000_000
    assert metric_series("sexton_reconciliation_missing_data") not in meter.values


def test_gauge_shows_whether_the_newest_apply_in_a_cluster_was_stopped() -> None:
    """Unfinished applies, and those of the own store, do not count."""
    meter, runs = FakeMeter(), FakeReconciliationRuns()
    read = make_gauge_updater(meter, lambda: sample_cluster_apply(runs.list_runs))

    def apply(run_id: str, summary: dict[str, str] | None) -> float | None:
        runs.now_us += 1
        runs.open_run(run_id, RunKind.APPLY, claim=_CLAIM, summary={})
        if summary is not None:
            runs.close_run(run_id, summary)
        read()
        return meter.values.get(metric_series("sexton_pulsar_apply_stopped"))

    assert apply("apply-plan-1", {}) is None
    assert apply("apply-pulsar-1", {STOPPED: "ledger 7: expected no reference, found one"}) == 1
    assert apply("apply-plan-2", {}) == 1
    assert apply("apply-pulsar-2", None) == 1
    assert apply("apply-pulsar-3", {STOPPED: ""}) == 0


def test_transactions_are_counted_by_state_with_the_ages_of_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state without transactions is zero, and not the last value that it had."""
    meter, now_us = FakeMeter(), 1_000_000_000
    monkeypatch.setattr("workers.hosting.gauges.time", SimpleNamespace(time_ns=lambda: now_us * 1_000))
    answers = [
        UnfinishedTransactionCounts(
            count_by_state={TransactionState.OPEN: 3, TransactionState.ABORTING: 1},
            oldest_open_us=now_us - 90_000_000,
            oldest_decided_us=now_us - 7_000_000,
            hidden_bytes=12,
        ),
        UnfinishedTransactionCounts(count_by_state={}, oldest_open_us=None, oldest_decided_us=None, hidden_bytes=12),
    ]
    read = make_gauge_updater(meter, lambda: sample_transactions(lambda: answers.pop(0)))
    shown = []
    for _ in range(2):
        read()
        rows = [
            meter.values[metric_series("sexton_transactions_unfinished", state=state)]
            for state in ("OPEN", "COMMITTING", "ABORTING")
        ]
        ages = [
            meter.values[metric_series(f"sexton_transactions_oldest_{which}_seconds")] for which in ("open", "decided")
        ]
        shown.append((rows, ages, meter.values[metric_series("sexton_transactions_hidden_bytes")]))
    assert shown == [([3, 0, 1], [90, 7], 12), ([0, 0, 0], [0, 0], 12)]


def test_delayed_messages_are_shown_with_their_buckets_and_what_is_in_none() -> None:
    """As the catalog counts them."""
    meter = FakeMeter()
    counts = CatalogDelayedMessageCounts(buckets=3, messages=700, unsealed=11)
    make_gauge_updater(meter, lambda: sample_delayed_messages(lambda: counts, lambda: 4_096))()
    names = ("buckets", "messages", "unsealed_messages", "memory_bytes")
    assert [meter.values[metric_series(f"sexton_delayed_{name}")] for name in names] == [3, 700, 11, 4_096]
