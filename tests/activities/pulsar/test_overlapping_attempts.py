"""Attempts of an apply that overlap with a later attempt, or with an undo: the journal and the counts stay true."""

from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from activities.pulsar import apply_cluster
from activities.pulsar.inputs_and_results import (
    ApplyClusterPageInput,
    BeginClusterApplyInput,
    BeginUndoInput,
    ConcludeClusterApplyInput,
    UndoPageInput,
)
from logstore.catalog.reconciliation.cluster_journal import ClusterJournal
from logstore.errors import SextonError, UnknownObject
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import RunKind
from logstore.pulsar.plan_jobs import IDENTITY, VerifyClusterJob
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import CLUSTER_KINDS, LEFT, RESULT, PlanOrScrubResult
from tests.activities.activity_world import World, open_activity_world, run
from tests.fakes import pulsar_cluster
from tests.workflows.pulsar.cluster_plans import orphan_ledger

_RUN_ID = "pulsar-1"
_LEDGER_IDS = (101, 102, 103)
_PAGE = ApplyClusterPageInput(run_id=_RUN_ID, page=0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An apply has begun."""
    world = open_activity_world(tmp_path)
    with world.opened:
        _publish_plan(world)
        begin = BeginClusterApplyInput(run_id=_RUN_ID, actor="tests", max_orphan_share=1.0)
        run(world.activities.cluster_applying.begin_cluster_apply, begin)
        yield world


def _publish_plan(world: World) -> None:
    world.bulk.cluster_findings = [orphan_ledger(ledger_id) for ledger_id in _LEDGER_IDS]
    world.cluster.ledgers |= dict.fromkeys(_LEDGER_IDS, b"ledger")
    report = world.bulk.run_job(VerifyClusterJob(run_id=_RUN_ID, has_offloads=False), lambda _: None).folder
    totals = FindingFiles(Path(report)).count_findings_and_bytes_by_kind(CLUSTER_KINDS)
    plan = PlanOrScrubResult(
        findings={kind.value: rows for kind, (rows, _) in totals.items()},
        size_bytes={kind.value: size for kind, (_, size) in totals.items()},
        ledgers=99,
        before_us=1,
        report=report,
    )
    runs, catalog_id = world.catalog.reconciliation, world.catalog.identities.catalog_id()
    summary = {"catalog_id": catalog_id, "cluster": "east", IDENTITY: pulsar_cluster.IDENTITY}
    runs.open_run(_RUN_ID, RunKind.CLUSTER_PLAN, claim=Claim(workflow_id="tests", run_id="", ttl_s=60), summary=summary)
    runs.close_run(_RUN_ID, {**summary, RESULT: asdict(plan)})


@pytest.mark.parametrize("wakes_up", ["before the later attempt settles", "after its end"])
def test_attempt_that_wakes_up_late_makes_the_journal_forget_nothing(
    world: World, wakes_up: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier attempt could not read a value, which the later one reads."""
    applying, undoing = world.activities.cluster_applying, world.activities.cluster_undoing
    settle = ClusterJournal.settle
    waiting: list[tuple[Collection[int], Collection[int]]] = []

    def settle_late(
        journal: ClusterJournal, run_id: str, *, deleted_ids: Collection[int], existing_ids: Collection[int]
    ) -> None:
        if not deleted_ids:  # the earlier attempt
            waiting.append((deleted_ids, existing_ids))
            world.cluster.unreadable_path = ""
            run(applying.apply_cluster_page, _PAGE)
        elif wakes_up.startswith("before"):
            earlier_deleted, earlier_existing = waiting[0]
            settle(journal, run_id, deleted_ids=earlier_deleted, existing_ids=earlier_existing)
        if deleted_ids or wakes_up.startswith("after"):
            settle(journal, run_id, deleted_ids=deleted_ids, existing_ids=existing_ids)

    monkeypatch.setattr(ClusterJournal, "settle", settle_late)
    world.cluster.unreadable_path = "/managed-ledgers/t/ns/persistent/a"
    run(applying.apply_cluster_page, _PAGE)
    assert (len(waiting), world.cluster.ledgers) == (1, {})
    concluded = run(applying.conclude_cluster_apply, ConcludeClusterApplyInput(run_id=_RUN_ID, actor="tests"))
    assert concluded.counts.applied == {"orphan_ledger": 3}
    assert "0000000003-" in concluded.certificate
    run(undoing.begin_undo, BeginUndoInput(run_id=_RUN_ID, actor="tests"))
    run(undoing.undo_page, UndoPageInput(run_id=_RUN_ID, actor="tests", after=-1))
    assert sorted(world.cluster.ledgers) == list(_LEDGER_IDS)


@pytest.mark.parametrize("cluster", ["the same", "another"])
def test_deletions_of_an_attempt_that_was_overtaken_are_counted_at_the_end(
    world: World, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is lost between two deletions of a page, so that no attempt can store what was deleted."""
    monkeypatch.setattr(apply_cluster, "MAX_LEDGERS_PER_DELETION", 1)
    changes: list[int] = []

    def overtake() -> None:
        changes.append(1)
        if len(changes) == 3:
            world.cluster.lease = ("", world.cluster.lease[1] + 1)

    world.cluster.before_change = overtake
    for _ in range(2):
        with pytest.raises(SextonError, match="lease"):
            run(world.activities.cluster_applying.apply_cluster_page, _PAGE)
    assert sorted(world.cluster.ledgers) == [103]
    if cluster == "another":
        world.cluster.replace_cluster()
    conclude = ConcludeClusterApplyInput(run_id=_RUN_ID, actor="tests", stopped="overtaken", can_go_on=True)
    concluded = run(world.activities.cluster_applying.conclude_cluster_apply, conclude)
    if cluster == "another":
        assert (concluded.counts.applied, concluded.certificate) == ({}, "")
    else:
        assert concluded.counts.applied == {"orphan_ledger": 2}
        assert "0000000002-" in concluded.certificate
        left = world.catalog.reconciliation.get_run(f"apply-{_RUN_ID}").summary[LEFT]
        assert left == 1


def test_undo_of_an_apply_that_has_deleted_nothing_creates_nothing(world: World) -> None:
    """The journal has forgotten the ledgers, and its copies in the records bucket still have them."""
    world.cluster.referenced = {101}
    page = run(world.activities.cluster_applying.apply_cluster_page, _PAGE)
    conclude = ConcludeClusterApplyInput(run_id=_RUN_ID, actor="tests", stopped=page.stopped)
    run(world.activities.cluster_applying.conclude_cluster_apply, conclude)
    world.cluster.ledgers.clear()  # a broker deletes their topics
    with pytest.raises(UnknownObject, match="expected a plan whose apply has deleted ledgers"):
        run(world.activities.cluster_undoing.begin_undo, BeginUndoInput(run_id=_RUN_ID, actor="tests"))
