"""Plans of a cluster, and what they find."""

from typing import Any

from temporalio.client import WorkflowHandle

from logstore.positions import LedgerId
from logstore.pulsar.ledger_verdicts import LedgerVerdict
from logstore.reconciliation.findings import Finding, FindingKind
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.pulsar.job_definitions import PLAN_PULSAR, PlanPulsarInput, PlanPulsarResult
from workflows.pulsar.plan_pulsar import PlanPulsar

ClusterPlan = WorkflowHandle[PlanPulsar, PlanPulsarResult]


def run_id(house: WorkflowHarness) -> str:
    """Of the house's one plan; ids on the shared server tell houses apart."""
    return f"pulsar-{house.queue}"


def orphan_ledger(ledger_id: int) -> Finding:
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
            "confirmed": "true",
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
