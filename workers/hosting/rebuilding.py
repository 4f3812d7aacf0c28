"""The command that rebuilds a lost catalog; it hosts the worker of its own job: no other runs without a catalog.

Killed at any moment and run again it goes on: the workflow waits in Temporal for a worker of its queue, which is the
rebuild's alone. Where Temporal has forgotten it as well, the database says which rebuild it belongs to.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from infra.catalog.engine.connections import shown_url
from logstore import failpoints
from logstore.errors import PreconditionFailed
from logstore.records.rebuilding import RebuildId
from workers.assembly.databases import RebuildParts, open_rebuild
from workers.client.connections import connect_client
from workers.client.waiting import result_of
from workers.hosting.commanded import hosting
from workers.identity import namespace
from workers.identity.stores import buckets_of
from workers.settings import Settings
from workflows.records.rebuild_catalog import RebuildCatalog
from workflows.records.values import (
    REBUILD_CATALOG,
    RebuildCatalogInput,
    RebuildCatalogProgress,
    RebuildCatalogResult,
)

OnProgress = Callable[[RebuildCatalogProgress], None]

_READY: Final = "READY"
_LOOK_EVERY_S: Final = 1.0
_THREADS: Final = 4


def rebuild_catalog(
    settings: Settings,
    *,
    skip_unreadable: bool = False,
    master: str = "",
    say: Callable[[str], None],
    on_progress: OnProgress,
) -> RebuildCatalogResult:
    """Rebuild the catalog of the settings' buckets into their `database_url`, or go on with it, until its end.

    Args:
        settings: Buckets, Temporal, and the database that is to become the catalog.
        skip_unreadable: Go on without blocks that are corrupt or gone, and name them.
        master: A Spark cluster; empty: that of the settings.
        say: Told what is waited for.
        on_progress: Told about once a second where the rebuild is.

    Raises:
        PreconditionFailed: The database is not empty, or there is no manifest.
        CatalogMismatch: Buckets or namespace are not of one catalog.
        WorkflowFailureError: The job failed, or a guard refused.
        ServiceFailed, StoreUnavailable: Temporal, storage or database do not answer.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.VARIABLE))
    with open_rebuild(settings, buckets_of(settings)) as parts:
        hosting = _hosted(settings, parts, skip_unreadable=skip_unreadable, master=master, say=say, tell=on_progress)
        return asyncio.run(hosting)


async def _hosted(
    settings: Settings,
    parts: RebuildParts,
    *,
    skip_unreadable: bool,
    master: str,
    say: Callable[[str], None],
    tell: OnProgress,
) -> RebuildCatalogResult:
    client = await connect_client(settings)
    await namespace.require(client, parts.catalog_id)
    rebuild, is_new = await _which(client, settings, parts, skip_unreadable=skip_unreadable)
    await _end_abandoned(client, settings, parts, rebuild, say)
    if is_new:  # before there is a workflow: one that dies at once must be found by the command that abandons it
        await asyncio.to_thread(
            parts.start.pin, rebuild, RebuildId.parse(rebuild).manifest, now_us=time.time_ns() // 1_000
        )
    request = RebuildCatalogInput(rebuild=rebuild, skip_unreadable=skip_unreadable, master=master)
    queue = f"{settings.task_queue}-{rebuild}"
    async with hosting(client, queue, RebuildCatalog, _steps(parts), threads=_THREADS, settings=settings):
        handle: WorkflowHandle[Any, RebuildCatalogResult] = await client.start_workflow(
            REBUILD_CATALOG.name,
            request,
            id=REBUILD_CATALOG.id(rebuild),
            task_queue=queue,
            result_type=RebuildCatalogResult,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"rebuild the catalog from manifest {RebuildId.parse(rebuild).manifest}",
            static_details=request.details(),
        )
        watch = asyncio.create_task(_watch(handle, tell))
        try:
            result: RebuildCatalogResult = await result_of(client, handle, say)
        finally:
            watch.cancel()
    await asyncio.to_thread(parts.start.unpin, rebuild)  # where it had ended already, and the pin came late
    return result


def _steps(parts: RebuildParts) -> Sequence[Callable[..., Any]]:
    does = parts.activities
    return [
        does.begin,
        does.find_rows,
        does.load_rows,
        does.publish,
        does.adopt_shards,
        does.finish_adoption,
        does.let_go,
    ]


async def _which(client: Client, settings: Settings, parts: RebuildParts, *, skip_unreadable: bool) -> tuple[str, bool]:
    """The rebuild that the database belongs to, or one from the newest manifest; and whether nothing is loaded yet."""
    target = await asyncio.to_thread(parts.database.target)
    if target.rebuild:
        if target.state == _READY and not await _runs(client, REBUILD_CATALOG.id(target.rebuild)):
            shown = shown_url(settings.database_url)
            raise PreconditionFailed(
                f"database {shown}: expected an empty one to rebuild into, found the catalog that rebuild"
                f" {target.rebuild} has completed"
            )
        return target.rebuild, False
    newest = await asyncio.to_thread(parts.start.newest)
    url = settings.database_url
    new = RebuildId.of(parts.catalog_id, newest.number, database_url=url, skip_unreadable=skip_unreadable)
    return str(new), True


async def _end_abandoned(
    client: Client, settings: Settings, parts: RebuildParts, rebuild: str, say: Callable[[str], None]
) -> None:
    """End rebuilds into the same database from older manifests: no command goes on with them any more.

    They were killed before their load, and a newer manifest has appeared since. Each still holds its manifest, for
    which raids wait, and its workflow, if it was started, waits for a worker that is never started. One that got as far
    as its load is never among them: the database says that it is to go on.
    """
    mine = RebuildId.parse(rebuild)
    into = partial(RebuildId.of, mine.catalog_id, mine.manifest, database_url=settings.database_url)
    targets = {into(skip_unreadable=skip).target for skip in (False, True)}
    for held in await asyncio.to_thread(parts.start.held):
        if held == mine or held.catalog_id != mine.catalog_id or held.target not in targets:
            continue
        handle = client.get_workflow_handle(REBUILD_CATALOG.id(held))
        with suppress(RPCError):  # it has ended, or Temporal has forgotten it
            await handle.terminate(reason=f"rebuild {rebuild} has taken its place")
        await asyncio.to_thread(parts.start.unpin, str(held))
        say(f"rebuild {held} was abandoned, and has ended: {rebuild} has taken its place")


async def _runs(client: Client, workflow_id: str) -> bool:
    try:
        found = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return found.status is WorkflowExecutionStatus.RUNNING


async def _watch(handle: WorkflowHandle[Any, Any], tell: OnProgress) -> None:
    while True:
        with suppress(RPCError, TimeoutError):
            async with asyncio.timeout(5):
                tell(await handle.query(RebuildCatalog.progress))
        await asyncio.sleep(_LOOK_EVERY_S)
