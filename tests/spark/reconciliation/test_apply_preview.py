"""The dry run of an apply on real servers: it says exactly what the apply then does, and changes nothing."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from activities.reconciliation.apply_orphans import ApplyPreviewResult
from activities.reconciliation.inputs_and_results import ApplyPageInput, BeginApplyInput, PlanStepInput
from infra.objects.s3_store import read_store_clock_s
from infra.stack.embedded_stack import StackAddresses
from logstore.deletion.intents import Outcome
from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import Component, LedgerStatement
from logstore.offload.tiered_copy import data_key
from logstore.ports.catalog.deletion import Claim, IntentResult
from logstore.ports.catalog.reconciliation import RunKind
from logstore.positions import LedgerId, Position
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary, VerifyFindingsJob
from logstore.reconciliation.finding_files import findings_to_table
from logstore.reconciliation.findings import ApplyCounts, Finding, FindingKind, PlanOrScrubResult, apply_batch_id
from logstore.reconciliation.services import orphan_inspection
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession
from tests.activities.activity_world import run
from tests.fakes.owners import UnownedTopics
from tests.postgres import PostgresServer
from tests.servers import create_store_settings
from tests.spark.reconciliation import damage
from tests.spark.reconciliation.conftest import planner
from tests.spark.reconciliation.damage import Damaged
from workers.assembly.activities import WorkerActivities, create_apply_preview
from workers.assembly.log_store_from_settings import open_log_store

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(1_200)]

_K = FindingKind
_RUN = "plan-1"
_FINDINGS_PER_PAGE = 5
_TABLES = (
    "ledger ledger_list ledger_copy segment topic cursor pending_deletion run audit record_outbox tombstone catalog"
)


def _orphan_ledger(ledger_id: int) -> Finding:
    prefix = ledger_prefix(LedgerId(ledger_id))
    return Finding(
        kind=_K.ORPHAN_LEDGER, ledger_id=LedgerId(ledger_id), copy="LEDGER", bucket="warm", key=prefix, objects=2
    )


def _orphan_segment(ledger_id: LedgerId, number: int, **more: Any) -> Finding:
    key = segment_key(ledger_id, number)
    facts = {"copy": "LEDGER", "bucket": "warm", "key": key, "objects": 1, "size_bytes": 20, **more}
    return Finding(kind=_K.ORPHAN_SEGMENT, ledger_id=ledger_id, **facts)


def _rows(kind: FindingKind, ledger_ids: Sequence[LedgerId]) -> list[Finding]:
    return [Finding(kind=kind, ledger_id=ledger_id) for ledger_id in ledger_ids]


def _doubtful_orphans(store: Damaged) -> list[Finding]:
    """Ledgers in storage, each with another reason to stay."""
    _, ledgers = store.topic("doubtful", ledgers=5)
    first = ledgers[0]
    statement = store.statement(first)
    found = [_orphan_ledger(store.spare_id())]  # nothing is left of it
    odd = store.orphan(first)
    store.put(f"{ledger_prefix(odd)}notes.txt", statement)
    other = store.orphan(first)
    store.put(meta_key(other, replace(statement.owner, topic="x")), replace(statement, ledger_id=other))
    silent = store.spare_id()
    store.s3.put_object(Bucket=store.settings.primary_bucket, Key=segment_key(silent, 0), Body=b"x")
    foreign = store.orphan(first, application="other")
    future = LedgerId(1 << 41)
    stated = replace(statement, ledger_id=future)
    store.put(meta_key(future, stated.owner), stated)
    later = store.spare_id()
    of_later_epoch = replace(statement, ledger_id=later, epoch=99)
    store.put(meta_key(later, of_later_epoch.owner), of_later_epoch)
    waiting, dead, ended = store.orphan(first), store.orphan(first), store.orphan(first)
    damage.file_intent(store, store.statement(waiting), "PENDING", None)
    damage.file_intent(store, store.statement(dead), "DEAD_LETTERED", "METADATA_MISMATCH")
    owner = replace(statement.owner, topic="persistent://test/ns/another")
    damage.file_intent(store, replace(store.statement(ended), owner=owner), "DELETED", "DELETED")
    made_before = store.orphan(first)
    earlier = replace(store.statement(made_before), created_us=1)
    damage.file_intent(store, earlier, "DELETED", "DELETED")
    lost_row, lost_copies, tiered_only = ledgers[1:4]
    store.sql("DELETE FROM ledger_copy WHERE ledger_id = ?", lost_copies)
    store.sql("DELETE FROM ledger_copy WHERE ledger_id = ?", lost_row)
    store.sql("DELETE FROM ledger WHERE ledger_id = ?", lost_row)
    store.offload(tiered_only, str(uuid4()))
    store.sql("DELETE FROM ledger_copy WHERE ledger_id = ? AND kind = 'LEDGER'", tiered_only)
    twice = _orphan_ledger(store.orphan(first))
    ids = (odd, other, silent, foreign, future, later, waiting, dead, ended, made_before)
    found += map(_orphan_ledger, (*ids, lost_row, lost_copies, tiered_only, first))
    elsewhere = Finding(
        kind=_K.ORPHAN_OFFLOAD,
        ledger_id=first,
        copy="OFFLOADED_LEDGER",
        bucket="colder",
        key=data_key("u", first),
        uuid="u",
        objects=1,
    )
    parts = replace(elsewhere, objects=0, bucket=store.settings.tiered_bucket)
    return [*found, twice, twice, elsewhere, parts]


def _doubtful_rows(store: Damaged) -> list[Finding]:
    """Rows of the catalog and segments, each with another reason to stay."""
    topic, ledgers = store.topic("rows-to-stay", ledgers=5)
    catalog = store.log.catalog
    born = catalog.ledgers.create_ledger(topic.topic_id, application="sexton").ledger_id
    store.log.subscriptions.subscribe(topic.topic_id, "billing", latest=False)
    damaged = Position(ledgers[0], 1)
    unfileable = store.snapshot(topic, "billing", damaged)
    store.sql("UPDATE cursor SET snapshot_ledger = NULL WHERE snapshot_ledger = ?", unfileable)
    store.snapshot(topic, "billing", damaged)
    store.sql("DELETE FROM ledger_copy WHERE ledger_id = ?", unfileable)
    lost = store._stored(topic, Component.SCHEMA_STORAGE, {"schema": "s"}).ledger_id
    store.sql("UPDATE ledger SET state = 'CLOSED' WHERE ledger_id = ?", lost)
    unreferenced = [store.spare_id(), born, ledgers[0], unfileable, lost]
    found = _rows(_K.UNREFERENCED_LEDGER, unreferenced)
    found.append(Finding(kind=_K.STALLED_DELETION, ledger_id=ledgers[0], row_id=999_999))
    statements = {ledger_id: store.statement(ledger_id) for ledger_id in ledgers}
    gone, primary_less, without_rows = ledgers[1], ledgers[2], ledgers[3]
    far = [(ledgers[4], 60), (ledgers[4], 120), (ledgers[4], 400)]
    for ledger_id, number in ((gone, 7), (primary_less, 7), (without_rows, 7), *far):
        store.put(segment_key(ledger_id, number), statements[ledger_id])
    store.sql("DELETE FROM segment WHERE ledger_id = ? AND number = 1", without_rows)
    store.sql("DELETE FROM ledger_copy WHERE ledger_id = ?", primary_less)
    for table in ("segment", "ledger_copy", "ledger"):
        store.sql(f"DELETE FROM {table} WHERE ledger_id = ?", gone)
    segments = [(gone, 7), (primary_less, 7), (without_rows, 7), (ledgers[0], 0), (ledgers[0], 99)]
    found += [_orphan_segment(*at) for at in segments]
    store.put(segment_key(ledgers[0], 6), statements[ledgers[0]])
    changed = replace(statements[ledgers[0]], epoch=7).to_metadata()
    found.append(_orphan_segment(ledgers[0], 6, statement=changed))
    newborn = LedgerStatement(owner=statements[ledgers[0]].owner, ledger_id=born, created_us=5, epoch=1)
    store.put(meta_key(born, newborn.owner), newborn)
    store.put(segment_key(born, 0), newborn)
    found.append(_orphan_segment(born, 0))
    return (
        found
        + [_orphan_segment(*at) for at in far[:1]]
        + _rows(_K.FOREIGN, ledgers)
        + [_orphan_segment(*at) for at in far[1:]]
    )


def _wait_until(store: Damaged, time_us: int) -> None:
    while read_store_clock_s(store.bucket) * 1e6 < time_us:
        time.sleep(0.1)


class _Apply:
    """A plan of these findings, and its apply, whose phase two confirms every deletion."""

    def __init__(self, store: Damaged, findings: Sequence[Finding], before_us: int) -> None:
        self.store, self.log, self.before_us = store, store.log, before_us
        self.activities: WorkerActivities = WorkerActivities(store.log, UnownedTopics())
        publication = PublishedOutputs(Path(store.settings.bulk_dir))
        attempt = publication.create_attempt_folder(_RUN, VerifyFindingsJob.name)
        pq.write_table(findings_to_table(findings), attempt / "part-0.parquet", row_group_size=_FINDINGS_PER_PAGE)
        published = publication.publish(_RUN, VerifyFindingsJob.name, attempt, BulkJobSummary())
        counts = Counter(finding.kind.value for finding in findings)
        sizes: Counter[str] = Counter()
        for finding in findings:
            sizes[finding.kind.value] += finding.size_bytes
        self.plan = PlanOrScrubResult(
            findings=dict(counts), size_bytes=dict(sizes), ledgers=99, before_us=before_us, report=published.folder
        )
        ((epoch,),) = store.sql("SELECT epoch FROM catalog")
        summary = {"catalog_id": store.log.catalog.identities.catalog_id(), "epoch": epoch, "actor": "a", "reason": ""}
        runs = store.log.catalog.reconciliation
        runs.open_run(_RUN, RunKind.PLAN, claim=Claim(workflow_id="w", run_id="", ttl_s=60), summary=summary)
        runs.close_run(_RUN, {**summary, "result": asdict(self.plan)})
        self.epoch = epoch
        self.pages = -(-len(findings) // _FINDINGS_PER_PAGE)

    def preview(self) -> ApplyPreviewResult:
        return create_apply_preview(self.log).preview_apply(_RUN)

    def begin(self) -> None:
        asked = BeginApplyInput(run_id=_RUN, actor="tests", max_orphan_share=1.0)
        assert run(self.activities.applying.begin_apply, asked, workflow_id="apply").pages == self.pages

    def apply_page(self, number: int, *, record: bool = True) -> None:
        batch = apply_batch_id(_RUN, number)
        page = ApplyPageInput(
            run_id=_RUN,
            page=number,
            before_us=self.before_us,
            epoch=self.epoch,
            batch_id=batch,
            batch_workflow_id=f"delete-ledgers/{batch}",
            actor="tests",
        )
        applying = self.activities.applying
        filed = run(applying.recheck_and_file_page, page)
        rows = self.log.catalog.reconciliation.list_filed_copies(batch, after=0, limit=99)
        ended = [IntentResult(row_id=row.row_id, outcome=Outcome.DELETED) for row in rows]
        self.log.catalog.deletions.record_outcomes(ended, holder=batch)
        if filed.objects:
            run(applying.recheck_and_delete_objects, page)
        if record:
            run(applying.record_page_fates, replace(page, intents=filed.intents))

    def apply(self) -> ApplyCounts:
        for number in range(self.pages):
            self.apply_page(number)
        return run(self.activities.applying.conclude_apply, PlanStepInput(run_id=_RUN))


def _state(store: Damaged) -> Mapping[str, object]:
    """Return all rows of the catalog, all objects of all buckets, and the files of bulk jobs."""
    rows = {table: sorted(map(repr, store.sql(f"SELECT * FROM {table}"))) for table in _TABLES.split()}
    settings, state = store.settings, dict[str, object](rows)
    for bucket in (settings.primary_bucket, settings.tiered_bucket, settings.records_bucket):
        pages = store.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        objects = (item for page in pages for item in page.get("Contents", ()))
        state[bucket] = [(item["Key"], item.get("ETag"), item["Size"], item["LastModified"]) for item in objects]
        uploads = store.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        state[f"uploads of {bucket}"] = [(upload["Key"], upload["UploadId"]) for upload in uploads]
    state["files"] = sorted(str(path) for path in Path(settings.bulk_dir).rglob("*"))
    return state


_REASONS = {
    orphan_inspection.NOT_SHOWN, orphan_inspection.YOUNG, orphan_inspection.UNKNOWN_FILE, orphan_inspection.UNSTATED,
    orphan_inspection.OTHER_APPLICATION, orphan_inspection.OTHER_OWNER, orphan_inspection.CHANGED,
    orphan_inspection.ENDED_UPLOAD, orphan_inspection.OTHER_BUCKET, "this catalog never gave out that id",
    "it is of catalog epoch 99, and this is 1", "deletion of this copy is PENDING",
    "deletion of this copy is DEAD_LETTERED",
    "its row names this LEDGER copy", "and storage states a ledger of", "of another creation time than storage states",
    "the ledger's row is lost, and", "the row of this copy is lost", "no deletion of its primary copy is known",
    "the plan names this copy twice", "it has left the catalog", "it is being created", "something names it",
    "its copies, its list or its topic have no row", "that named the ledger is lost",
    "a workflow works on it, or it has ended",
    "the ledger has left the catalog", "a row names it", "rows of segments are lost", "the ledger is being created",
    "the ledger has no primary copy any more", f"it is more than {plausibility_guards.MAX_NUMBERS_ABOVE_LAST} above",
}  # fmt: skip
"""A part of every reason by which an apply keeps a finding, but for a race of two applies."""


def _compare(store: Damaged, warm: WarmSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage.healthy(store)
    for cause in damage.EVERY:
        cause(store)
    planned = planner(store, warm, folder)()
    planned += [*_doubtful_orphans(store), *_doubtful_rows(store)]
    before_us = int(read_store_clock_s(store.bucket) + 2) * 1_000_000
    _wait_until(store, before_us + 1_000_000)
    young = store.orphan(store.healthy[0])
    planned.append(_orphan_ledger(young))
    apply = _Apply(store, planned, before_us)
    before = _state(store)
    monkeypatch.setattr("logstore.reconciliation.findings.MAX_REASONS", 999)
    result = apply.preview()
    assert _state(store) == before
    apply.begin()
    assert apply.preview() == result
    apply.apply_page(0, record=False)
    apply.apply_page(1)
    assert apply.preview() == result, "of an unfinished apply its decisions count"
    done = apply.apply()
    assert (result.counts.applied, result.counts.skipped) == (done.applied, done.skipped)
    assert set(done.applied) == {kind.value for kind in FindingKind if kind.is_removable}
    assert done.failed == 0
    missing = {reason for reason in _REASONS if not any(reason in kept for kept in done.skipped)}
    assert not missing, done.skipped


def test_dry_run_says_what_the_apply_then_does(
    store: Damaged, warm: WarmSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every kind of finding, and every reason to stay."""
    _compare(store, warm, tmp_path / "bulk", monkeypatch)


def test_dry_run_says_what_the_apply_then_does_on_postgresql(
    servers: StackAddresses,
    postgres: PostgresServer,
    warm: WarmSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with postgres.database() as name:
        settings = create_store_settings(servers, tmp_path, database_url=postgres.url(name))
        with open_log_store(settings) as log:
            _compare(Damaged(settings=settings, log=log), warm, tmp_path / "bulk", monkeypatch)
