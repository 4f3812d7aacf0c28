"""Scenes of plans of a Pulsar cluster, and of their applies and undos; see `record`."""

from logstore.errors import CorruptData, InvalidInput
from logstore.pulsar.plan_jobs import SECOND_SCAN
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob
from tests.replay.courses import Handle, ended
from tests.workflows.pulsar.cluster_plans import (
    abandoned_upload,
    apply,
    orphan_ledger,
    orphan_managed_ledger,
    orphan_offload,
    plan,
    planned,
    planned_mixture,
    undo,
)
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually
from workflows.deletion.job_definitions import SetRateInput
from workflows.pulsar.apply_pulsar import ApplyPulsar


async def plan_complete(house: WorkflowHarness) -> Handle:
    """Two findings, with a bucket of offloads."""
    house.world.cluster.has_bucket = True
    house.world.bulk.cluster_findings = [orphan_ledger(101), orphan_ledger(102)]
    return await ended(house, plan(house))


async def plan_incomplete(house: WorkflowHarness) -> Handle:
    """A check fails, and scans have problems."""
    house.world.cluster.fail_check("bookies", "expected bookies, found none")
    house.world.bulk.scanned["problems"] = 2
    return await ended(house, plan(house, between_s=1_800.0))


async def plan_refused(house: WorkflowHarness) -> Handle:
    """The settings name no cluster."""
    house.world.cluster.errors = [InvalidInput("pulsar_zookeeper", expected="host:2181", found="nothing")]
    return await ended(house, plan(house))


async def plan_failed(house: WorkflowHarness) -> Handle:
    """The files of the first scan are damaged."""

    def fail(job: BulkJob, _beat: object) -> None:
        if job.name == SECOND_SCAN:
            raise CorruptData("a file of scan-cluster-1: a checksum differs")

    house.world.bulk.meanwhile = fail
    return await ended(house, plan(house))


async def plan_running(house: WorkflowHarness) -> Handle:
    """It has waited, and its second scan is at work."""
    gate = Gate()
    house.world.bulk.meanwhile = lambda job, _beat: gate.wait() if job.name == SECOND_SCAN else None
    return await house.stop_worker_at_gate(gate, plan(house))


async def apply_complete(house: WorkflowHarness) -> Handle:
    """Two ledgers."""
    await planned(house, 101, 102)
    return await ended(house, apply(house))


async def apply_irreversible(house: WorkflowHarness) -> Handle:
    """A page of every kind, of which the store refuses one finding."""
    others = [orphan_offload(7), abandoned_upload(8), orphan_managed_ledger()]
    await planned_mixture(house, [101], others)
    house.world.cluster.refused_paths = {others[0].key: "AccessDenied: no"}
    return await ended(house, apply(house, include_irreversible=True, include_unconfirmed=True))


async def apply_stopped(house: WorkflowHarness) -> Handle:
    """Something refers to a ledger."""
    await planned(house, 101, 102)
    house.world.cluster.referenced = {102}
    return await ended(house, apply(house))


async def apply_refused(house: WorkflowHarness) -> Handle:
    """Others may have ledgers in the same BookKeeper."""
    await planned(house, 101)
    house.world.cluster.is_exclusive = False
    return await ended(house, apply(house))


async def apply_failed(house: WorkflowHarness) -> Handle:
    """The run's folder is damaged."""
    await planned(house, 101)
    house.world.cluster.before_change = _raise_corrupt_data
    return await ended(house, apply(house))


async def apply_paused(house: WorkflowHarness) -> Handle:
    """Paused between its pages, and then at another rate."""
    house.world.bulk.page = 1
    await planned(house, 101, 102)
    gate = Gate()
    house.world.cluster.before_change = gate.wait
    async with house.run_until_gate(gate, apply(house)) as handle:
        await handle.execute_update(ApplyPulsar.pause)
        gate.open()
        await assert_eventually(lambda: len(house.attempts("pulsar.apply_page")) == 1)
        await handle.execute_update(ApplyPulsar.set_rate, SetRateInput(objects_per_s=1_000))
        await handle.execute_update(ApplyPulsar.resume)
        await handle.result()
    return handle


async def apply_running(house: WorkflowHarness) -> Handle:
    """It deletes ledgers."""
    await planned(house, 101)
    gate = Gate()
    house.world.cluster.before_change = gate.wait
    return await house.stop_worker_at_gate(gate, apply(house))


async def undo_complete(house: WorkflowHarness) -> Handle:
    """Two ledgers are back."""
    await planned(house, 101, 102)
    await ended(house, apply(house))
    return await ended(house, undo(house))


async def undo_refused(house: WorkflowHarness) -> Handle:
    """The settings name another cluster."""
    await planned(house, 101)
    await ended(house, apply(house))
    house.world.cluster.replace_cluster()
    return await ended(house, undo(house, 101))


async def undo_failed(house: WorkflowHarness) -> Handle:
    """The journal is damaged."""
    await planned(house, 101)
    await ended(house, apply(house))
    house.world.cluster.before_change = _raise_corrupt_data
    return await ended(house, undo(house))


async def undo_running(house: WorkflowHarness) -> Handle:
    """It puts ledgers back."""
    await planned(house, 101)
    await ended(house, apply(house))
    gate = Gate()
    house.world.cluster.before_change = gate.wait
    return await house.stop_worker_at_gate(gate, undo(house))


def _raise_corrupt_data() -> None:
    raise CorruptData("a checksum differs")
