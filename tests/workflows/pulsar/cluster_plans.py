"""Plans of a cluster, and what they find."""

import json
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Any

from temporalio.client import WorkflowHandle

from logstore.positions import LedgerId
from logstore.pulsar.cluster_findings import RemovalPart, parse_parts
from logstore.pulsar.ledger_verdicts import LedgerVerdict
from logstore.pulsar.offload_objects import OffloadVerdict
from logstore.pulsar.orphan_managed_ledgers import ManagedLedgerVerdict
from logstore.reconciliation.findings import Finding, FindingKind
from tests.fakes.pulsar_cluster import FakePulsarCluster
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

_OFFLOAD_UUID = "1fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d"

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


def orphan_offload(ledger_id: int) -> Finding:
    """The objects of an offload that nothing refers to, as a plan finds them."""
    key = f"{_OFFLOAD_UUID}-ledger-{ledger_id}"
    parts: list[RemovalPart] = [
        {"key": each, "version_id": None, "etag": '"9e"', "size_bytes": 60, "modified_us": 5}
        for each in (key, f"{key}-index")
    ]
    return _offload(FindingKind.ORPHAN_OFFLOAD, ledger_id, parts, confirmed="true", cluster="east")


def abandoned_upload(ledger_id: int) -> Finding:
    """An upload that nothing goes on with, as a plan finds it."""
    key = f"{_OFFLOAD_UUID}-ledger-{ledger_id}"
    part: RemovalPart = {"key": key, "upload_id": f"upload-{ledger_id}", "size_bytes": 120, "changed_us": 5}
    return _offload(FindingKind.ABANDONED_UPLOAD, ledger_id, [part], confirmed="false")


def _offload(kind: FindingKind, ledger_id: int, parts: list[RemovalPart], **statement: str) -> Finding:
    return Finding(
        kind=kind,
        ledger_id=LedgerId(ledger_id),
        bucket="tiered",
        key=str(parts[0]["key"]),
        uuid=_OFFLOAD_UUID,
        objects=len(parts),
        size_bytes=120,
        newest_us=1_763_600_000_000_000,
        statement={
            "owner": "managed-ledgers/t/ns/persistent/gone",
            "verdict": OffloadVerdict.OWNER_ABSENT.value,
            "parts": json.dumps(parts),
            **statement,
        },
        detail="nothing refers to it, and its managed ledger does not exist",
    )


def orphan_managed_ledger(topic: str = "a-sub__transaction_pending_ack") -> Finding:
    """Pending acknowledgements of a topic that does not exist, as a plan finds them."""
    return Finding(
        kind=FindingKind.ORPHAN_MANAGED_LEDGER,
        key=f"/managed-ledgers/t/ns/persistent/{topic}",
        objects=2,
        newest_us=1_763_650_000_000_000,
        statement={
            "version": "3",
            "czxid": "9",
            "owner": f"managed-ledgers/t/ns/persistent/{topic}",
            "verdict": ManagedLedgerVerdict.TOPIC_ABSENT.value,
            "confirmed": "true",
        },
        detail=ManagedLedgerVerdict.TOPIC_ABSENT.reason,
    )


def plant_removable(cluster: FakePulsarCluster, findings: Sequence[Finding]) -> None:
    """Let the cluster have what the plan found, its bucket and its admin API."""
    cluster.has_bucket = cluster.has_api = True
    for finding in findings:
        cluster.parts[finding.key] = (
            parse_parts(finding) if finding.uuid else [{"path": finding.key, "version": 3, "czxid": 9, "data": ""}]
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


async def planned_mixture(house: WorkflowHarness, ledger_ids: Sequence[int], others: Sequence[Finding]) -> None:
    """Finish the house's plan, which finds ledgers and other orphans of the cluster, which are there."""
    ledgers = [orphan_ledger(ledger_id) for ledger_id in ledger_ids]
    house.world.bulk.cluster_findings = [
        finding for pair in zip_longest(ledgers, others) for finding in pair if finding is not None
    ]
    house.world.cluster.ledgers |= dict.fromkeys(ledger_ids, b"ledger")
    plant_removable(house.world.cluster, others)
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
