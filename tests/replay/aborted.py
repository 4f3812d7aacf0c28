"""Scenes of aborts of transactions of a Pulsar cluster; see `record`."""

from logstore.errors import CorruptData
from tests.fakes.cluster_transactions import FakeTransaction
from tests.replay.courses import Handle, ended
from tests.workflows.pulsar.cluster_aborts import abort
from tests.workflows.workflow_harness import Gate, WorkflowHarness


async def abort_complete(house: WorkflowHarness) -> Handle:
    """Two transactions."""
    house.world.cluster.transactions.add(1, 2)
    return await ended(house, abort(house, 1, 2, reason="its client is gone"))


async def abort_in_part(house: WorkflowHarness) -> Handle:
    """The participants of one never confirm."""
    transactions = house.world.cluster.transactions
    transactions.add(1)
    transactions.transactions[2] = FakeTransaction(2, is_stuck=True)
    return await ended(house, abort(house, 2, 1))


async def abort_refused(house: WorkflowHarness) -> Handle:
    """There is no such transaction."""
    return await ended(house, abort(house, 7))


async def abort_failed(house: WorkflowHarness) -> Handle:
    """The answer of a broker is damaged."""
    house.world.cluster.transactions.add(1)
    house.world.cluster.transactions.before_abort = _raise_corrupt_data
    return await ended(house, abort(house, 1))


async def abort_running(house: WorkflowHarness) -> Handle:
    """It aborts the second transaction."""
    house.world.cluster.transactions.add(1, 2)
    gate = Gate()

    def wait_at_second() -> None:
        if house.world.cluster.transactions.aborts:
            gate.wait()

    house.world.cluster.transactions.before_abort = wait_at_second
    return await house.stop_worker_at_gate(gate, abort(house, 1, 2))


def _raise_corrupt_data() -> None:
    raise CorruptData("a checksum differs")
