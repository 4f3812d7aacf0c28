"""Background work of a worker: span files, transaction snapshots, pins of rebuilds, and checks for a newer catalog."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from infra.telemetry.tracing import prune_span_files
from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogMismatch, CatalogOutdated, SextonError
from logstore.ports.object_storage import OwnedStore
from logstore.records.services.manifest_publication import require_current_catalog
from logstore.records.services.rebuild_manifests import RebuildManifests
from workers.assembly.log_store import LogStore
from workers.settings import Settings
from workflows.records.job_definitions import REBUILD_CATALOG

_PRUNE_INTERVAL_S: Final = 300.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def run_in_background(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def prune_span_files_repeatedly(settings: Settings, *, interval_s: float = _PRUNE_INTERVAL_S) -> None:
    """Prune the home's span files at once and then after each interval, until cancelled. Log disk errors."""
    limits = {"older_than_s": settings.trace_retention, "max_bytes": settings.trace_max_bytes}
    while True:
        try:
            removed = await asyncio.to_thread(prune_span_files, settings.traces_dir, **limits)
        except OSError as error:
            _log.warning("span files are not pruned: %s", error)
        else:
            if removed:
                _log.info("removed %d span files, by age or by size", removed)
        await asyncio.sleep(interval_s)


_SNAPSHOTS_INTERVAL_S: Final = 1.0  # a fifth of the time after which a snapshot is due


async def write_due_buffer_snapshots_repeatedly(
    write_due_snapshots: Callable[[], int], *, interval_s: float = _SNAPSHOTS_INTERVAL_S
) -> None:
    """Write due snapshots of transaction buffers until cancelled. Log an outage of the catalog once."""
    has_logged = False
    while True:
        try:
            due_count, has_logged = await asyncio.to_thread(write_due_snapshots), False
        except SextonError as error:
            if not has_logged:
                _log.warning("no snapshot of transactions is written, because the catalog does not answer: %s", error)
            due_count, has_logged = 0, True
        if not due_count:
            await asyncio.sleep(interval_s)


_PINS_INTERVAL_S: Final = 60.0  # can be frequent, because a check costs one listing and a few reads
_CLOSED_STATUSES: Final = frozenset(
    {
        WorkflowExecutionStatus.COMPLETED,
        WorkflowExecutionStatus.FAILED,
        WorkflowExecutionStatus.CANCELED,
        WorkflowExecutionStatus.TERMINATED,
        WorkflowExecutionStatus.TIMED_OUT,
    }
)


async def release_rebuild_pins_repeatedly(
    client: Client, manifests: RebuildManifests, *, interval_s: float = _PINS_INTERVAL_S
) -> None:
    while True:
        try:
            await release_pins_of_closed_rebuilds(client, manifests)
        except (RPCError, SextonError) as error:
            _log.debug("pins of rebuilds are not compared with their workflows: %s", error)
        await asyncio.sleep(interval_s)


async def release_pins_of_closed_rebuilds(client: Client, manifests: RebuildManifests) -> None:
    """End the pins of rebuilds whose workflow is closed. If Temporal does not know the workflow, the pin stays.

    Raises:
        RPCError: Temporal does not answer.
        StoreUnavailable: The object store does not answer.
    """
    for pin in await asyncio.to_thread(manifests.list_pins):
        if await _is_rebuild_certainly_closed(client, REBUILD_CATALOG.id(pin.pin_id)):
            await asyncio.to_thread(manifests.end_pin, pin)
            _log.info("rebuild %s has ended, and holds manifest %d no more", pin.pin_id, pin.manifest)


async def _is_rebuild_certainly_closed(client: Client, workflow_id: str) -> bool:
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return description.workflow_type == REBUILD_CATALOG.name and description.status in _CLOSED_STATUSES


@asynccontextmanager
async def watch_catalog_currency(
    log: LogStore,
    *,
    interval_s: float,
    require_current: Callable[[RecordOutbox, OwnedStore], None] = require_current_catalog,
) -> "AsyncIterator[asyncio.Task[CatalogMismatch | CatalogOutdated]]":
    """During the block, check in a task that no other database was rebuilt from the record log. Yield the task.

    If a check finds a newer catalog, the task ends with the error. The worker must then end. Otherwise the worker would
    do the new catalog's jobs on the old database. Deletes of an outdated worker are refused in any case.

    An object store that does not answer is asked again after `interval_s`. Tests replace `require_current`.
    """
    check = partial(require_current, log.catalog.records, log.record_objects)
    watch = asyncio.create_task(_wait_until_catalog_is_outdated(check, interval_s))
    try:
        yield watch
    finally:
        watch.cancel()


async def _wait_until_catalog_is_outdated(
    require_current: Callable[[], None], interval_s: float
) -> CatalogMismatch | CatalogOutdated:
    while True:
        await asyncio.sleep(interval_s)
        try:
            await asyncio.to_thread(require_current)
        except (CatalogMismatch, CatalogOutdated) as refusal:
            _log.error("this worker ends, because its database is not the catalog any more: %s", refusal)
            return refusal
        except SextonError as error:
            _log.debug("the record log did not say whether the database is the catalog: %s", error)
