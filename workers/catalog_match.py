"""Checks that buckets and the Temporal namespace belong to the catalog.

A namespace is marked by a paused schedule with the catalog's id in its memo. The namespace itself cannot have the mark,
because clients of Temporal Cloud cannot change a namespace.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.converter import PayloadConverter
from temporalio.service import RPCError, RPCStatusCode

from logstore.catalog import Catalog, Database
from logstore.errors import CatalogMismatch, CatalogOutdated, ServiceRefused, SextonError
from logstore.identity.bucket_markers import BucketRole, MarkerState
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.catalog.identity import CatalogIdentity
from logstore.ports.object_storage import BucketAtLocation, OwnedStore
from logstore.records.services.manifest_publication import require_current_catalog
from workers.assembly.checked_buckets import make_checked_bucket_opener_by_name
from workers.settings import Settings

CATALOG_SCHEDULE: Final = "sexton-catalog"
_CATALOG: Final = "catalog_id"

_log = logging.getLogger(__name__)


async def mark_namespace_as_own(client: Client, catalog_id: str) -> None:
    """Write the catalog's mark into the namespace unless the namespace has a mark. Idempotent."""
    if await compare_namespace_mark(client, catalog_id):
        return
    try:
        # The id is not encrypted: it is no secret, and must stay readable when today's keys are gone.
        (plain,) = PayloadConverter.default.to_payloads([catalog_id])
        await client.create_schedule(CATALOG_SCHEDULE, _make_mark_schedule(catalog_id), memo={_CATALOG: plain})
    except ScheduleAlreadyRunningError:  # another process has created the schedule
        await compare_namespace_mark(client, catalog_id)


async def compare_namespace_mark(client: Client, catalog_id: str) -> bool:
    """Return whether the namespace has this catalog's mark. Raise `CatalogMismatch` for another catalog's mark."""
    try:
        memo_id = (await (await client.get_schedule_handle(CATALOG_SCHEDULE).describe()).memo()).get(_CATALOG)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    if memo_id != catalog_id:
        raise CatalogMismatch(
            f"temporal namespace {client.namespace}",
            expected=f"that of catalog {catalog_id}",
            found=f"that of catalog {memo_id}",
            advice=f"give each catalog a namespace of its own; schedule {CATALOG_SCHEDULE} says whose this one is",
        )
    return True


def _make_mark_schedule(catalog_id: str) -> Schedule:
    """Return a paused schedule. If a user triggers it, its run times out, because no worker polls the run's queue."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            CATALOG_SCHEDULE, id=CATALOG_SCHEDULE, task_queue=CATALOG_SCHEDULE, execution_timeout=timedelta(seconds=1)
        ),
        spec=ScheduleSpec(),
        state=ScheduleState(paused=True, note=f"never runs: it says that this namespace serves catalog {catalog_id}"),
    )


def list_configured_buckets(settings: Settings) -> tuple[tuple[BucketRole, str], ...]:
    return (
        (BucketRole.PRIMARY, settings.primary_bucket),
        (BucketRole.TIERED, settings.tiered_bucket),
        (BucketRole.RECORDS, settings.records_bucket),
        *((BucketRole.REPLICA, bucket) for bucket in settings.replicas),
    )


def mark_unmarked_buckets(settings: Settings, database: Database) -> dict[str, str]:
    """Write missing markers into the configured buckets. Return "marked" or the problem, by bucket name."""
    get_bucket = make_checked_bucket_opener_by_name(settings, Catalog(database).identities)
    error_by_bucket = {
        bucket: _catch_unanswered_comparison(get_bucket(role, bucket).require_ownership_once)
        for role, bucket in list_configured_buckets(settings)
    }
    return {bucket: f"not marked yet: {error}" if error else "marked" for bucket, error in error_by_bucket.items()}


def _catch_unanswered_comparison(compare: Callable[[], object]) -> SextonError | None:
    try:
        compare()
    except (CatalogMismatch, CatalogOutdated):
        raise
    except SextonError as error:
        return error
    return None


def mark_or_refuse_primary_and_tiered(
    primary_bucket: OwnedStore, tiered_bucket_at: BucketAtLocation, settings: Settings
) -> None:
    """Check the markers of the primary and the tiered bucket when a process starts. Write missing markers.

    If the object store of a bucket does not answer, the bucket is checked at its first use.

    Raises:
        CatalogMismatch: A bucket belongs to another catalog.
        CatalogOutdated: The database is older than its record log.
        ServiceRefused: The primary bucket is missing, or the object store denies access to it.
    """
    for store in (primary_bucket, tiered_bucket_at(CopyLocation(settings.tiered_bucket))):
        error = _catch_unanswered_comparison(store.require_ownership_once)
        if store is primary_bucket and isinstance(error, ServiceRefused) and not error.may_pass:
            raise error
        if error:
            _log.warning("a bucket is compared with the catalog at its first use: %s", error)


def refuse_outdated_catalog(settings: Settings, catalog: Catalog) -> None:
    """Compare the catalog with the newest manifest of its record log. Skip a records bucket without a marker.

    Raises:
        CatalogOutdated: The database is older than its record log.
        CatalogMismatch: The records bucket belongs to another catalog.
        StoreUnavailable: The object store does not answer.
        ServiceRefused: The object store refuses the request.
    """
    get_bucket = make_checked_bucket_opener_by_name(settings, catalog.identities, fails_fast=True)
    records = get_bucket(BucketRole.RECORDS, settings.records_bucket)
    if records.require_ours_or_unmarked() is MarkerState.OURS:
        require_current_catalog(catalog.records, records)


def refuse_foreign_primary_bucket(settings: Settings, identities: CatalogIdentity) -> None:
    """Raise `CatalogMismatch` if the primary bucket belongs to another catalog. Only log other errors of the check."""
    if not settings.has_object_store:
        return
    store = make_checked_bucket_opener_by_name(settings, identities, fails_fast=True)(
        BucketRole.PRIMARY, settings.primary_bucket
    )
    if error := _catch_unanswered_comparison(store.require_ours_or_unmarked):
        _log.info("the primary bucket is left to the workers: %s", error)
