"""A worker ends the pin of a rebuild with its workflow, on a real Temporal server."""

import asyncio
from datetime import timedelta
from typing import Any, Final

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from logstore.records.rebuild_job import RebuildId
from logstore.records.services.rebuild_manifests import RebuildManifests
from logstore.records.services.record_log import RecordLog
from tests.fakes.object_store import FakeObjectStore
from tests.servers import CATALOG_ID
from tests.workflows.workflow_harness import assert_eventually
from workers.client.job_client import start_job
from workers.client.temporal_connection import connect_client
from workers.hosting.worker_process import release_pins_of_closed_rebuilds
from workers.settings import Settings
from workflows.records.job_definitions import REBUILD_CATALOG, RebuildCatalogInput

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(300)]

_UNTIL_US: Final = 2**50


def _pin(log: RecordLog, settings: Settings, manifest: int) -> str:
    url = f"{settings.database_url}-{settings.task_queue}"
    rebuild = str(RebuildId.for_command(CATALOG_ID, manifest, database_url=url, skip_unreadable=False))
    log.pin_manifest(rebuild, manifest, _UNTIL_US, "rebuild")
    return rebuild


async def _start(client: Client, rebuild: str, **options: Any) -> WorkflowHandle[Any, Any]:
    request = RebuildCatalogInput(rebuild=rebuild)
    return await start_job(client, REBUILD_CATALOG, request, queue=f"nobody-serves-{rebuild}", **options)


def _pin_ids(log: RecordLog) -> set[str]:
    return {pin.pin_id for pin in log.list_pins()}


@pytest.mark.parametrize("end", ["terminate", "time out"])
def test_pin_ends_with_the_workflow_of_its_rebuild(settings: Settings, end: str) -> None:
    """A pin stays whose workflow runs or is not known, and that of another job."""
    log = RecordLog(FakeObjectStore())
    ended, running, unknown = (_pin(log, settings, manifest) for manifest in (1, 2, 3))
    log.pin_manifest("raid", 4, _UNTIL_US, "raid")

    async def end_one_rebuild() -> None:
        client, start = await connect_client(settings), RebuildManifests(log)
        other = await _start(client, running)
        options = {"execution_timeout": timedelta(seconds=1)} if end == "time out" else {}
        handle = await _start(client, ended, **options)
        if end == "terminate":
            await release_pins_of_closed_rebuilds(client, start)
            assert _pin_ids(log) == {ended, running, unknown, "raid"}
            await handle.terminate()

        async def is_closed() -> bool:
            return (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING

        await assert_eventually(is_closed)
        await release_pins_of_closed_rebuilds(client, start)
        assert _pin_ids(log) == {running, unknown, "raid"}
        await other.terminate()

    asyncio.run(end_one_rebuild())


def test_pin_of_a_rebuild_that_was_started_again_stays(settings: Settings) -> None:
    """Its workflow is closed as Temporal answers, and a new run pins the manifest before the answer is used."""
    log = RecordLog(FakeObjectStore())
    rebuild = _pin(log, settings, 1)

    class RenewedMeanwhile(RebuildManifests):
        def end_pin(self, pin: Any) -> None:
            self.pin_manifest(rebuild, 1, now_us=_UNTIL_US)
            super().end_pin(pin)

        def read_manifest(self, number: int) -> Any:
            return None

    async def end_then_start_again() -> None:
        client = await connect_client(settings)
        await (await _start(client, rebuild)).terminate()
        await release_pins_of_closed_rebuilds(client, RenewedMeanwhile(log))

    asyncio.run(end_then_start_again())
    assert _pin_ids(log) == {rebuild}


def test_pin_stays_while_temporal_does_not_answer_or_has_lost_its_namespace(settings: Settings) -> None:
    """Neither says how the workflow ended."""
    log = RecordLog(FakeObjectStore())
    rebuild = _pin(log, settings, 1)

    async def ask_others() -> None:
        client = await connect_client(settings)
        await (await _start(client, rebuild)).terminate()
        silent = await Client.connect("127.0.0.1:9", lazy=True)
        with pytest.raises(RuntimeError, match="Connection refused"):
            await release_pins_of_closed_rebuilds(silent, RebuildManifests(log))
        empty = await Client.connect(settings.temporal_address, namespace="lost-and-not-registered")
        await release_pins_of_closed_rebuilds(empty, RebuildManifests(log))

    asyncio.run(ask_others())
    assert _pin_ids(log) == {rebuild}
