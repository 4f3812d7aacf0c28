"""Compound operations as jobs: copies of one ledger go in one transaction, and what a guard refuses is a result."""

from typing import Any

import pytest

from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId
from tests.workflows.offload.offloading import offload
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.deletion.job_definitions import ExplicitDetach


async def operated(house: WorkflowHarness, ledger_id: LedgerId, *remove: CopyKind, **more: Any) -> Any:
    """The certificate of one operation."""
    asked = ExplicitDetach(ledger_ids=[int(ledger_id)], remove=[one.value for one in remove], **more)
    return await house.done(house.delete(detach=asked))


async def test_both_copies_go_and_one_tombstone_is_left(house: WorkflowHarness) -> None:
    """The tiered one first, while the ledger stays; then the last one, which ends it."""
    (ledger,) = house.world.create_readable_ledgers(1)
    async with house.worker():
        await (await offload(house, ledger)).result()
    first = await operated(house, ledger, CopyKind.OFFLOADED_LEDGER)
    assert (first.outcomes, house.world.sql("SELECT id FROM tombstone")) == ({"DELETED": 1}, [])
    assert house.world.catalog.ledgers.list_ledgers(house.world.topic.topic_id)[0].copies == (CopyKind.LEDGER,)
    assert house.world.tiered.keys == []
    second = await operated(house, ledger, CopyKind.LEDGER, generation=1)
    assert second.outcomes == {"DELETED": 1}
    assert [row.id for row in house.world.sql("SELECT id FROM tombstone")] == [ledger]


@pytest.mark.parametrize(
    ("more", "kind", "told"),
    [
        ({"generation": 4}, "PreconditionFailed", "expected generation 4, found 0"),
        ({"pass_over": ["nobody"]}, "UnknownObject", "nobody"),
    ],
)
async def test_operation_that_is_refused_is_a_result(
    house: WorkflowHarness, more: dict[str, Any], kind: str, told: str
) -> None:
    """Nothing changed, and no failure shows in the Web UI."""
    (ledger,) = house.world.fill(1)
    result = await operated(house, ledger, CopyKind.LEDGER, **more)
    assert result.refused.type == kind
    assert told in result.refused.message
    assert house.world.intents() == []
