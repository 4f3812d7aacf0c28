"""`rebuild-catalog`: however it ends, it lets go of the manifest for which raids wait."""

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle

from tests.replay.rebuilding import REBUILD, Answers, activities_of
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually
from workflows.records.job_definitions import REBUILD_CATALOG, RebuildCatalogInput, RebuildCatalogResult
from workflows.records.rebuild_catalog import RebuildCatalog


async def _started(house: WorkflowHarness) -> "WorkflowHandle[RebuildCatalog, RebuildCatalogResult]":
    request = RebuildCatalogInput(rebuild=REBUILD)
    return await house.client.start_workflow(
        REBUILD_CATALOG.name,
        request,
        id=f"{REBUILD_CATALOG.id(REBUILD)}-{house.queue}",
        task_queue=house.queue,
        result_type=REBUILD_CATALOG.result,
    )


@pytest.mark.parametrize("fault", ["", "no_database", "bug"])
async def test_rebuild_lets_go_of_its_manifest_whether_it_completes_is_refused_or_fails(
    house: WorkflowHarness, fault: str
) -> None:
    answers = Answers(fault=fault)
    async with house.serve(house.queue, activities_of(answers), workflows=[RebuildCatalog]):
        handle = await _started(house)
        if fault == "bug":
            with pytest.raises(WorkflowFailureError):
                await handle.result()
        else:
            result = await handle.result()
            assert (result.refused is not None) is bool(fault)
    assert answers.let_go_of == [REBUILD]


async def test_rebuild_that_is_cancelled_lets_go_of_its_manifest(house: WorkflowHarness) -> None:
    gate = Gate()
    answers = Answers(gate=gate)
    async with house.serve(house.queue, activities_of(answers), workflows=[RebuildCatalog]):
        handle = await _started(house)
        await assert_eventually(gate.reached.is_set)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        gate.open()
    assert answers.let_go_of == [REBUILD]
