"""Worlds with orphans, and the verbs that plans and applies are told in."""

from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from activities.deletion.phase_two_steps import intent_key
from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.positions import LedgerId
from logstore.reconciliation.findings import Finding, FindingKind
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.reconciliation.apply_orphans import ApplyOrphans
from workflows.reconciliation.job_definitions import (
    APPLY_ORPHANS,
    RECONCILE_ORPHANS,
    SCRUB_LEDGERS,
    ApplyOrphansInput,
    ApplyOrphansResult,
    ReconcileOrphansInput,
    ReconcileOrphansResult,
    ScrubLedgersInput,
    ScrubLedgersResult,
)
from workflows.reconciliation.reconcile_orphans import ReconcileOrphans
from workflows.reconciliation.scrub_ledgers import ScrubLedgers

DAY_S = 86_400
Plan = WorkflowHandle[ReconcileOrphans, ReconcileOrphansResult]
Apply = WorkflowHandle[ApplyOrphans, ApplyOrphansResult]
Scrub = WorkflowHandle[ScrubLedgers, ScrubLedgersResult]

__all__ = ["intent_key"]


def run_id(house: WorkflowHarness) -> str:
    """Of the house's one plan; ids on the shared server tell houses apart."""
    return f"plan-{house.queue}"


def orphan_ledgers(house: WorkflowHarness, count: int, *, page: int = 2) -> list[LedgerId]:
    """So many ledgers of which the catalog lost everything but that it had given their ids out, and a plan's findings.

    They are older than any plan's cut-off, and are found so many on a page.
    """
    catalog, found = house.world.catalog, list[LedgerId]()
    for _ in range(count):
        made = catalog.ledgers.create_ledger(house.world.topic.topic_id, application="sexton")
        house.world.store(made, 2)
        for table in ("segment", "ledger_copy", "ledger"):
            house.world.sql(f"DELETE FROM {table} WHERE ledger_id = :ledger", ledger=made.ledger_id)
        house.world.bulk.findings.append(orphan(made))
        found.append(made.ledger_id)
    house.world.bulk.page = page
    house.world.objects.advance(seconds=2 * DAY_S)
    return found


def orphan(made: LedgerStatement) -> Finding:
    """A ledger as a plan finds it."""
    return Finding(
        kind=FindingKind.ORPHAN_LEDGER,
        ledger_id=made.ledger_id,
        copy=CopyKind.LEDGER,
        bucket="warm",
        key=ledger_prefix(made.ledger_id),
        topic=made.owner.topic,
        objects=3,
        size_bytes=300,
    )


def orphan_segments(house: WorkflowHarness, count: int, *, page: int = 2) -> list[str]:
    """So many objects that nobody registered under a ledger that lives; their keys."""
    made = house.world.catalog.ledgers.create_ledger(house.world.topic.topic_id, application="sexton")
    facts, keys = made.to_metadata(), list[str]()
    house.world.objects.put_if_absent(meta_key(made.ledger_id, made.owner), made.to_json(), metadata=facts)
    last = house.world.catalog.ledgers.last_ledger(house.world.topic.topic_id)
    assert house.world.catalog.ledgers.attach_ledger(made.ledger_id, after=last.ledger_id if last else None)
    for number in range(count):
        key = segment_key(made.ledger_id, number)
        house.world.objects.put_if_absent(key, b"x" * 100, metadata=facts)
        finding = Finding(
            kind=FindingKind.ORPHAN_SEGMENT,
            ledger_id=made.ledger_id,
            copy=CopyKind.LEDGER,
            bucket="warm",
            key=key,
            topic=made.owner.topic,
            objects=1,
            size_bytes=100,
        )
        house.world.bulk.findings.append(finding)
        keys.append(key)
    house.world.bulk.page = page
    house.world.objects.advance(seconds=2 * DAY_S)
    return keys


async def plan(house: WorkflowHarness, **more: Any) -> Plan:
    """Start the house's plan."""
    fixed: dict[str, Any] = {"run_id": run_id(house), "actor": "tests"}
    request = ReconcileOrphansInput(**(fixed | more))
    return await house.client.start_workflow(
        ReconcileOrphans.run,
        request,
        id=RECONCILE_ORPHANS.id(request.run_id or f"scheduled-{house.queue}"),
        task_queue=house.queue,
    )


async def planned(house: WorkflowHarness) -> ReconcileOrphansResult:
    """The result of a plan, by a worker of its own."""
    house.world.bulk.compared["ledgers"] = max(1, house.world.catalog.reconciliation.count_ledgers(below=2**62))
    async with house.worker():
        return await (await plan(house)).result()


async def apply(house: WorkflowHarness, **more: Any) -> Apply:
    """Start or join the apply of the house's plan."""
    fixed: dict[str, Any] = {"max_orphan_share": 1.0, "reason": "a test", "policy": house.policy}
    request = ApplyOrphansInput(run_id=run_id(house), actor="tests", **(fixed | more))
    return await house.client.start_workflow(
        ApplyOrphans.run,
        request,
        id=APPLY_ORPHANS.id(request.run_id),
        task_queue=house.queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )


async def scrub(house: WorkflowHarness, **more: Any) -> Scrub:
    """Start or join the house's scrub."""
    request = ScrubLedgersInput(**({"actor": "tests", "reason": "a test"} | more))
    return await house.client.start_workflow(
        ScrubLedgers.run,
        request,
        id=SCRUB_LEDGERS.id(house.queue),
        task_queue=house.queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )


def corrupt(ledger_id: int) -> Finding:
    """A segment whose bits were flipped."""
    return Finding(
        kind=FindingKind.CORRUPT_DATA,
        ledger_id=LedgerId(ledger_id),
        copy=CopyKind.LEDGER,
        bucket="warm",
        key=f"segment {ledger_id}",
        objects=1,
        size_bytes=100,
        detail="expected another digest; read twice",
    )
