"""One row of each table of the catalog is lost: an apply without a limit takes no object of a ledger in use."""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from activities.reconciliation.inputs_and_results import (
    ApplyPageInput,
    BeginApplyInput,
    BeginPlanInput,
    BulkJobInput,
    PlanStepInput,
)
from infra.objects.s3_store import read_store_clock_s
from infra.stack.embedded_stack import StackAddresses
from logstore.catalog import tables as t
from logstore.errors import CorruptData, PreconditionFailed
from logstore.log.ledger_object_keys import segment_key
from logstore.offload.tiered_copy import data_key, index_key
from logstore.ports.catalog.transactions import BufferSnapshotReplacement
from logstore.positions import EARLIEST, LedgerId, Position
from logstore.reconciliation.bulk_job_inputs_and_results import (
    CompareStorageWithCatalogJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
    VerifyFindingsJob,
)
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import ApplyCounts, Finding, FindingKind, PlanOrScrubResult
from spark.job_mains import catalog_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession
from tests.activities.activity_world import run
from tests.fakes.owners import UnownedTopics
from tests.servers import create_store_settings
from tests.spark.reconciliation.damage import Damaged, file_intent
from workers.assembly.activities import WorkerActivities
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses, open_log_store

pytestmark = pytest.mark.external_service

_RUN: Final = "plan-of-losses"
_DELETIONS: Final = "SELECT ledger_id, copy FROM pending_deletion"
_OF_TOPIC: Final = "topic_id = {topic}"
_ANY: Final = "1 = 1"  # rows that are of no topic, or that no plan reads
_LOST: Final[Mapping[str, str]] = {
    "adoption": _ANY,
    "audit": _ANY,
    "bucket_marker": "role = 'records'",
    "buffer_hidden": _OF_TOPIC,
    "buffer_range": _OF_TOPIC,
    "bundle_fence": _ANY,
    "cluster_removal": _ANY,
    "cursor": _OF_TOPIC,
    "delayed_bucket": _OF_TOPIC,
    "delayed_index": _OF_TOPIC,
    "deleted_znode": _ANY,
    "finding_fate": _ANY,
    "ledger": "ledger_id = {first}",
    "ledger_copy": "ledger_id = {first} AND kind = 'LEDGER'",
    "ledger_list": _OF_TOPIC + " AND component = 'MANAGED_LEDGER'",
    "pending_deletion": "ledger_id = {deleted}",
    "producer_sequence": _OF_TOPIC,
    "record_outbox": _ANY,
    "record_staged": _ANY,
    "run": "kind <> 'reconcile-orphans'",
    "schema_version": _OF_TOPIC,
    "segment": "ledger_id = {first} AND number = 1",
    "tombstone": _ANY,
    "topic": _OF_TOPIC,
    "transaction": _ANY,
    "transaction_coordinator": _ANY,
    "transaction_participant": _ANY,
    "transaction_snapshot": _OF_TOPIC,
}
"""Which rows of a table are lost; of a table that has rows of topics, those of the table's own topic."""
_NEEDED: Final = ("catalog", "record_log")
"""Tables of one row, without which a plan or its apply fails."""
_MORE_LOSSES: Final[Mapping[str, str]] = {
    "ledger of a component": "DELETE FROM ledger WHERE ledger_id = {snapshot}",
    "list of cursors": "DELETE FROM ledger_list WHERE topic_id = {topic} AND component = 'MANAGED_CURSOR'",
    "list of schemas": "DELETE FROM ledger_list WHERE topic_id = {topic} AND component = 'SCHEMA_STORAGE'",
    "tiered copy": "DELETE FROM ledger_copy WHERE ledger_id = {first} AND kind <> 'LEDGER'",
    "only segment": "DELETE FROM segment WHERE ledger_id = {schema}",
    "last segment of the open ledger": "DELETE FROM segment WHERE ledger_id = {last} AND number = 1",
    "all segments of the open ledger": "DELETE FROM segment WHERE ledger_id = {last}",
    "primary copy of the open ledger": "DELETE FROM ledger_copy WHERE ledger_id = {last}",
    "open ledger": "DELETE FROM ledger WHERE ledger_id = {last}",
    "ledger of a tiered copy": "DELETE FROM ledger_copy WHERE ledger_id = {first} AND kind = 'LEDGER';"
    " DELETE FROM ledger WHERE ledger_id = {first}",
}
_LOSSES: Final = {**{name: f'DELETE FROM "{name}" WHERE {which}' for name, which in _LOST.items()}, **_MORE_LOSSES}


@dataclass(frozen=True, kw_only=True)
class _Topic:
    """A topic with everything that the catalog can say of one, and the objects of its ledgers in use."""

    topic_id: int
    ids: Mapping[str, LedgerId]  # of its ledgers in use
    deleted: LedgerId  # that is being deleted
    objects: frozenset[str]
    tiered: frozenset[str]  # copies beside a primary one: no apply loses data by them


@dataclass(frozen=True, kw_only=True)
class _Applied:
    """A store in which one row of each table was lost, after an apply."""

    topics: Mapping[str, _Topic]
    findings: list[Finding]
    counts: ApplyCounts
    deletions: set[tuple[int, str]]  # ledger and kind of the copy, of those that the apply filed
    objects: frozenset[str]  # that are left


def _fill(store: Damaged, name: str) -> _Topic:
    topic, ledgers = store.topic(name.replace(" ", "-").replace("_", "-"))
    catalog, uuid = store.log.catalog, str(uuid4())
    store.offload(ledgers[0], uuid)
    store.log.subscriptions.subscribe(topic.topic_id, "billing", latest=False)
    snapshot = store.snapshot(topic, "billing", Position(ledgers[0], 1))
    schema = store.log.schemas.set(topic, b"{}").ledger_id
    bucket = store.sealed(topic, ledgers[1])
    buffer = store.buffer_snapshot(topic)
    switch = BufferSnapshotReplacement(topic_id=topic.topic_id, expected=None, read_to=EARLIEST)
    assert catalog.transaction_snapshots.publish_snapshot(switch, buffer.ledger_id, size_bytes=buffer.size_bytes)
    columns = "topic_id, producer, sequence_id"
    store.sql(f"INSERT INTO producer_sequence ({columns}) VALUES (?, 'p', 1)", topic.topic_id)
    deleted = store.orphan(ledgers[0])
    file_intent(store, store.statement(deleted), "PENDING", None)
    live = {"first": ledgers[0], "second": ledgers[1], "last": ledgers[2]}
    live |= {"snapshot": snapshot, "schema": schema, "bucket": bucket, "buffer": buffer.ledger_id}
    return _Topic(
        topic_id=topic.topic_id,
        ids=live,
        deleted=deleted,
        objects=frozenset(key for ledger_id in live.values() for key in store.keys(ledger_id)),
        tiered=frozenset({data_key(uuid, ledgers[0]), index_key(uuid, ledgers[0])}),
    )


def _plan_and_apply(store: Damaged, session: WarmSession, home: Path) -> tuple[PlanOrScrubResult, ApplyCounts]:
    """Do the steps of both workflows, seconds later by the store's clock."""
    jobs = SparkBulkJobs(
        session,
        PublishedOutputs(home / "bulk"),
        lambda: catalog_job_mains(executor_catalog_and_bucket_addresses(store.settings)),
    )
    later = copy(store.log)
    later.bulk, later.store_now_us = jobs, lambda: int((read_store_clock_s(store.bucket) + 5) * 1e6)
    activities = WorkerActivities(later, UnownedTopics())
    planning, applying = activities.planning, activities.applying
    begin = BeginPlanInput(run_id=_RUN, actor="tests", older_than_s=0, unsafe_age=True)
    run(planning.begin_plan_and_remove_old_runs, begin, workflow_id=_RUN)
    for job in (ListStorageJob, ReadLedgersAndIntentsJob, CompareStorageWithCatalogJob):
        run(planning.run_plan_bulk_job, BulkJobInput(run_id=_RUN, job=job.name), workflow_id=_RUN)
    run(planning.require_plausible_comparison, PlanStepInput(run_id=_RUN))
    run(planning.run_plan_bulk_job, BulkJobInput(run_id=_RUN, job=VerifyFindingsJob.name), workflow_id=_RUN)
    planned = run(planning.conclude_plan, PlanStepInput(run_id=_RUN))
    begun = run(
        applying.begin_apply, BeginApplyInput(run_id=_RUN, actor="tests", max_orphan_share=1.0), workflow_id="apply"
    )
    for page in range(begun.pages):
        request = ApplyPageInput(
            run_id=_RUN,
            page=page,
            before_us=begun.before_us,
            epoch=begun.epoch,
            batch_id=f"batch-{page}",
            batch_workflow_id="delete-ledgers/batch",
            actor="tests",
        )
        run(applying.recheck_and_file_page, request)
        run(applying.recheck_and_delete_objects, request)
        run(applying.record_page_fates, request)
    return planned, run(applying.conclude_apply, PlanStepInput(run_id=_RUN))


@pytest.fixture(scope="module")
def applied(servers: StackAddresses, warm: WarmSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Applied]:
    """A topic for each loss, one plan of all of them, and its apply."""
    home = tmp_path_factory.mktemp("lost-rows")
    settings = create_store_settings(servers, home)
    with open_log_store(settings) as log:
        store = Damaged(settings=settings, log=log)
        topics = {name: _fill(store, name) for name in _LOSSES}
        _, (control, *_) = store.topic("control")
        store.put(segment_key(control, 2), store.statement(control))
        for name, loss in _LOSSES.items():
            topic = topics[name]
            for statement in loss.split(";"):
                store.sql(statement.format(**topic.ids, topic=topic.topic_id, deleted=topic.deleted))
        filed = set(store.sql(_DELETIONS))
        planned, counts = _plan_and_apply(store, warm, home)
        yield _Applied(
            topics=topics,
            findings=[finding for _, finding in FindingFiles(Path(planned.report)).iterate_findings()],
            counts=counts,
            deletions=set(store.sql(_DELETIONS)) - filed,
            objects=frozenset([*store.keys(None), *store.keys(None, tiered=True)]),
        )


def test_losses_name_every_table_of_the_catalog() -> None:
    assert {*_LOST, *_NEEDED} == {*t.metadata.tables}


@pytest.mark.parametrize("loss", _LOSSES)
def test_no_object_of_a_ledger_in_use_goes_because_a_row_is_lost(loss: str, applied: _Applied) -> None:
    """Neither at once nor by a deletion that phase two is to run."""
    topic = applied.topics[loss]
    assert topic.objects <= applied.objects
    going = [found for found in applied.findings if found.ledger_id in topic.ids.values() and found.kind.is_removable]
    assert [found for found in going if not topic.tiered & {found.key}] == []


_NAMED: Final = {
    "cursor": "snapshot",
    "delayed_bucket": "bucket",
    "ledger": "first",
    "ledger_copy": "first",
    "schema_version": "schema",
    "segment": "first",
    "transaction_snapshot": "buffer",
    "ledger of a component": "snapshot",
    "only segment": "schema",
    "last segment of the open ledger": "last",
    "all segments of the open ledger": "last",
    "primary copy of the open ledger": "last",
    "open ledger": "last",
    "ledger of a tiered copy": "first",
}
"""The ledger that a loss damages; other rows are needed by none, or no plan can tell that they are lost."""


@pytest.mark.parametrize("loss", _LOSSES)
def test_loss_that_damages_a_ledger_is_reported_by_its_name(loss: str, applied: _Applied) -> None:
    topic = applied.topics[loss]
    damaged = {found.ledger_id: found for found in applied.findings if found.kind is not FindingKind.STALLED_DELETION}
    named = [name for name, ledger_id in topic.ids.items() if ledger_id in damaged]
    if loss == "tiered copy":
        assert [damaged[topic.ids[name]].kind for name in named] == [FindingKind.ORPHAN_OFFLOAD]
        return
    assert named == ([_NAMED[loss]] if loss in _NAMED else [])
    kinds = {damaged[topic.ids[name]].kind for name in named}
    assert kinds <= {FindingKind.MISSING_DATA, FindingKind.MISMATCH}


def test_true_orphan_beside_the_losses_is_removed(applied: _Applied) -> None:
    """The apply was no idle one: an object without a row goes, and a deletion that lost its row is filed again."""
    assert applied.counts.applied["orphan_segment"] == 1
    lost, tiered = applied.topics["pending_deletion"].deleted, applied.topics["tiered copy"].ids["first"]
    assert applied.deletions == {(lost, "LEDGER"), (tiered, "OFFLOADED_LEDGER")}
    assert applied.counts.failed == 2, "phase two has not run yet"


@pytest.mark.parametrize("table", _NEEDED)
def test_nothing_is_removed_without_the_row_that_speaks_for_the_catalog(
    table: str, store: Damaged, warm: WarmSession, tmp_path: Path
) -> None:
    _, (ledger, *_) = store.topic("control")
    store.put(segment_key(ledger, 2), store.statement(ledger))
    before = store.keys(None)
    store.sql(f"DELETE FROM {table}")
    with pytest.raises((PreconditionFailed, CorruptData)):
        _plan_and_apply(store, warm, tmp_path)
    assert store.keys(None) == before
