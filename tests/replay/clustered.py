"""Scenes of plans of a Pulsar cluster; see `record`."""

from logstore.errors import CorruptData, InvalidInput
from logstore.pulsar.plan_jobs import SECOND_SCAN
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob
from tests.replay.courses import Handle, ended
from tests.workflows.pulsar.cluster_plans import orphan_ledger, plan
from tests.workflows.workflow_harness import Gate, WorkflowHarness


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
