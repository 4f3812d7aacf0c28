"""Work beside the serving of queues: span files, snapshots, pins of rebuilds, and whether the catalog is ours."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from infra.telemetry.span_files import prune_span_files
from logstore.errors import CatalogMismatch, CatalogOutdated, SextonError
from logstore.ports.catalog import Records
from logstore.ports.objects import OwnedStore
from logstore.records.services.cold_start import ColdStart
from logstore.records.services.publishing import require_current
from workers.assembly.log import LogStore
from workers.settings import Settings
from workflows.records.values import REBUILD_CATALOG

_PRUNE_EVERY_S: Final = 300.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def alongside(endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let work that never ends go on while the block runs."""
    task = asyncio.create_task(endless)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def prune_traces(settings: Settings, *, every_s: float = _PRUNE_EVERY_S) -> None:
    """Prune the home's span files at once, and then every `every_s` seconds.

    A folder that cannot be read or written is logged, and tried again.
    """
    limits = {"older_than_s": settings.trace_retention, "max_bytes": settings.trace_max_bytes}
    while True:
        try:
            removed = await asyncio.to_thread(prune_span_files, settings.traces_dir, **limits)
        except OSError as error:
            _log.warning("span files are not pruned: %s", error)
        else:
            if removed:
                _log.info("removed %d span files, by age or by size", removed)
        await asyncio.sleep(every_s)


_SNAPSHOTS_EVERY_S: Final = 1.0  # a fifth of the time after which a snapshot is due


async def write_snapshots(write_due: Callable[[], int], *, every_s: float = _SNAPSHOTS_EVERY_S) -> None:
    """Write snapshots of transaction buffers that are due, until cancelled; a catalog that is away is logged once.

    Each worker does so, for topics that no other has taken. A coordinator would have to stay awake for it, or to wait
    for it, and a snapshot is worth neither: what a worker that dies has taken is due again.

    Args:
        write_due: Writes a page of snapshots, and says how many were due.
        every_s: Between two looks where nothing was due.
    """
    told = False
    while True:
        try:
            done, told = await asyncio.to_thread(write_due), False
        except SextonError as error:
            if not told:
                _log.warning("no snapshot of transactions is written, because the catalog does not answer: %s", error)
            done, told = 0, True
        if not done:
            await asyncio.sleep(every_s)


_PINS_EVERY_S: Final = 60.0  # one listing and a few reads
_CLOSED: Final = frozenset(
    {
        WorkflowExecutionStatus.COMPLETED,
        WorkflowExecutionStatus.FAILED,
        WorkflowExecutionStatus.CANCELED,
        WorkflowExecutionStatus.TERMINATED,
        WorkflowExecutionStatus.TIMED_OUT,
    }
)


async def watch_rebuild_pins(client: Client, start: ColdStart, *, every_s: float = _PINS_EVERY_S) -> None:
    """End the pins of closed rebuilds every `every_s` seconds. A service that does not answer is asked again."""
    while True:
        try:
            await end_rebuild_pins(client, start)
        except (RPCError, SextonError) as error:
            _log.debug("pins of rebuilds are not compared with their workflows: %s", error)
        await asyncio.sleep(every_s)


async def end_rebuild_pins(client: Client, start: ColdStart) -> None:
    """End the pins of rebuilds whose workflow is closed.

    Nobody else ends the pin of a workflow that is terminated while no command serves it. A workflow that Temporal does
    not know keeps its pin: the namespace may be lost, or a command may be about to start it. A run that starts
    meanwhile pins the manifest anew, before it reads it.

    Raises:
        RPCError: Temporal does not answer.
        StoreUnavailable: The store does not answer.
    """
    for pin in await asyncio.to_thread(start.pins):
        if await _is_closed(client, REBUILD_CATALOG.id(pin.pin_id)):
            await asyncio.to_thread(start.end_pin, pin)
            _log.info("rebuild %s has ended, and holds manifest %d no more", pin.pin_id, pin.manifest)


async def _is_closed(client: Client, workflow_id: str) -> bool:
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return description.workflow_type == REBUILD_CATALOG.name and description.status in _CLOSED


@asynccontextmanager
async def watched(
    log: LogStore, *, every_s: float, ask: Callable[[Records, OwnedStore], None] = require_current
) -> "AsyncIterator[asyncio.Task[CatalogMismatch | CatalogOutdated]]":
    """Ask while the block runs whether the database is the catalog still; the task ends with the refusal alone.

    Another one may have been rebuilt from the record log meanwhile. The worker would go on to take work of the new
    catalog's jobs from their queues and answer from what the old database says: what it deletes is refused by its
    buckets in any case, and by its end the work is left to workers of the new catalog.

    Args:
        log: Whose catalog and record log are asked.
        every_s: Between two questions, in seconds, above 0. A store that does not answer is asked again.
        ask: For tests.
    """
    watch = asyncio.create_task(_refusal(partial(ask, log.catalog.records, log.record_objects), every_s))
    try:
        yield watch
    finally:
        watch.cancel()


async def _refusal(still_current: Callable[[], None], every_s: float) -> CatalogMismatch | CatalogOutdated:
    while True:
        await asyncio.sleep(every_s)
        try:
            await asyncio.to_thread(still_current)
        except (CatalogMismatch, CatalogOutdated) as refusal:
            _log.error("this worker ends, because its database is not the catalog any more: %s", refusal)
            return refusal
        except SextonError as error:
            _log.debug("the record log did not say whether the database is the catalog: %s", error)
