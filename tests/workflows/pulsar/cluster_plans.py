"""Plans of a cluster, and what they find."""

from collections.abc import Collection
from typing import Any

from temporalio.client import WorkflowHandle

from logstore.positions import LedgerId
from logstore.pulsar.ledger_verdicts import LedgerVerdict
from logstore.reconciliation.findings import Finding, FindingKind
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.pulsar.apply_pulsar import ApplyPulsar
from workflows.pulsar.job_definitions import (
    APPLY_PULSAR,
    PLAN_PULSAR,
    UNDO_PULSAR,
    ApplyPulsarInput,
    PlanPulsarInput,
    PlanPulsarResult,
    UndoPulsarInput,
)
from workflows.pulsar.plan_pulsar import PlanPulsar
from workflows.pulsar.undo_pulsar import UndoPulsar

ClusterPlan = WorkflowHandle[PlanPulsar, PlanPulsarResult]


def run_id(house: WorkflowHarness) -> str:
    """Of the house's one plan; ids on the shared server tell houses apart."""
    return f"pulsar-{house.queue}"


def orphan_ledger(ledger_id: int, *, confirmed: bool = True) -> Finding:
    """A ledger of a managed ledger that is gone, as a plan finds it."""
    return Finding(
        kind=FindingKind.ORPHAN_LEDGER,
        ledger_id=LedgerId(ledger_id),
        key=f"/ledgers/00/0000/L{ledger_id:04d}",
        objects=1,
        size_bytes=300,
        newest_us=1_763_700_000_000_000,
        statement={
            "version": "0",
            "czxid": "7",
            "state": "CLOSED",
            "application": "pulsar",
            "component": "managed-ledger",
            "owner": "managed-ledgers/t/ns/persistent/gone",
            "verdict": LedgerVerdict.OWNER_ABSENT.value,
            "confirmed": str(confirmed).lower(),
        },
        detail="nothing refers to it, and its owner does not exist",
    )


async def plan(house: WorkflowHarness, **more: Any) -> ClusterPlan:
    """Start the house's plan."""
    fixed: dict[str, Any] = {"run_id": run_id(house), "actor": "tests"}
    request = PlanPulsarInput(**(fixed | more))
    return await house.client.start_workflow(
        PlanPulsar.run,
        request,
        id=PLAN_PULSAR.id(request.run_id or f"scheduled-{house.queue}"),
        task_queue=house.queue,
    )


async def planned(house: WorkflowHarness, *ledger_ids: int, unconfirmed_ids: Collection[int] = ()) -> None:
    """Finish the house's plan, which finds these ledgers of the cluster."""
    house.world.bulk.cluster_findings = [
        orphan_ledger(ledger_id, confirmed=ledger_id not in unconfirmed_ids) for ledger_id in ledger_ids
    ]
    house.world.cluster.ledgers |= dict.fromkeys(ledger_ids, b"ledger")
    async with house.worker():
        await (await plan(house)).result()


async def apply(house: WorkflowHarness, **more: Any) -> WorkflowHandle[Any, Any]:
    """Start the apply of the house's plan."""
    request = ApplyPulsarInput(run_id=run_id(house), actor="tests", max_orphan_share=1.0, **more)
    return await house.client.start_workflow(
        ApplyPulsar.run, request, id=APPLY_PULSAR.id(request.run_id), task_queue=house.queue
    )


async def undo(house: WorkflowHarness, *ledger_ids: int) -> WorkflowHandle[Any, Any]:
    """Start the undo of the applies of the house's plan."""
    request = UndoPulsarInput(run_id=run_id(house), actor="tests", ledger_ids=list(ledger_ids))
    return await house.client.start_workflow(
        UndoPulsar.run, request, id=UNDO_PULSAR.id(request.run_id), task_queue=house.queue
    )
