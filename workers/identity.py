"""The catalog that a process belongs to, by the stores and the namespace that settings name, and its build.

A namespace carries a paused schedule that never runs and names the catalog in its memo: workflow ids and schedules
carry no other name of it. One atomic call puts it there, which any client may make, also where a client may not change
the namespace itself (Temporal Cloud), and it stays as long as the namespace.

A build id names code: two installations of the same code have the same one, and a changed line makes another.

Source: Temporal, "Worker Versioning".
"""

import hashlib
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.common import WorkerDeploymentVersion
from temporalio.converter import PayloadConverter
from temporalio.service import RPCError, RPCStatusCode

from infra.catalog import Database, SqlCatalog
from logstore.errors import CatalogMismatch, CatalogOutdated, ServiceRefused, SextonError
from logstore.identity.markers import MarkerState, Role
from logstore.identity.services.own_stores import OwnStores
from logstore.offload.tiered import CopyLocation
from logstore.ports.catalog import Identities
from logstore.ports.objects import Buckets, OwnedStore
from logstore.records.services.publishing import require_current
from workers import VERSION
from workers.assembly.buckets import own_buckets_by_name
from workers.settings import Settings

CATALOG_SCHEDULE: Final = "sexton-catalog"
_CATALOG: Final = "catalog_id"
_PACKAGES: Final = ("logstore", "activities", "workflows", "infra", "spark", "workers")
_DIGITS: Final = 12  # of SHA-256: no two builds of a deployment are alike by chance

_log = logging.getLogger(__name__)


async def require_namespace(client: Client, catalog_id: str) -> None:
    """See that the namespace is this catalog's; one that is no catalog's becomes so, and of several catalogs one wins.

    Repeating it is harmless.

    Raises:
        CatalogMismatch: It is another catalog's.
    """
    if await compare_namespace(client, catalog_id):
        return
    try:
        # never encrypted: the id is no secret, and is to be read when today's keys are gone
        (plain,) = PayloadConverter.default.to_payloads([catalog_id])
        await client.create_schedule(CATALOG_SCHEDULE, _sign_of(catalog_id), memo={_CATALOG: plain})
    except ScheduleAlreadyRunningError:  # another process came first
        await compare_namespace(client, catalog_id)


async def compare_namespace(client: Client, catalog_id: str) -> bool:
    """Whether the namespace is known to be this catalog's; False where it is no catalog's yet.

    Raises:
        CatalogMismatch: It is another catalog's.
    """
    try:
        found = (await (await client.get_schedule_handle(CATALOG_SCHEDULE).describe()).memo()).get(_CATALOG)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    if found != catalog_id:
        raise CatalogMismatch(
            f"temporal namespace {client.namespace}",
            expected=f"that of catalog {catalog_id}",
            found=f"that of catalog {found}",
            advice=f"give each catalog a namespace of its own; schedule {CATALOG_SCHEDULE} says whose this one is",
        )
    return True


def _sign_of(catalog_id: str) -> Schedule:
    """One that never runs; if it is triggered by hand, no worker polls its queue and it ends at once."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            CATALOG_SCHEDULE, id=CATALOG_SCHEDULE, task_queue=CATALOG_SCHEDULE, execution_timeout=timedelta(seconds=1)
        ),
        spec=ScheduleSpec(),
        state=ScheduleState(paused=True, note=f"never runs: it says that this namespace serves catalog {catalog_id}"),
    )


def buckets_of(settings: Settings) -> tuple[tuple[Role, str], ...]:
    """Every bucket that the settings name."""
    return (
        (Role.PRIMARY, settings.primary_bucket),
        (Role.TIERED, settings.tiered_bucket),
        (Role.RECORDS, settings.records_bucket),
        *((Role.REPLICA, bucket) for bucket in settings.replicas),
    )


def adopt_buckets(settings: Settings, database: Database) -> dict[str, str]:
    """Mark each bucket as the catalog's, unless it is marked; returns a phrase for each bucket.

    A bucket whose store does not answer, or that does not exist, is marked at its first use.

    Raises:
        CatalogMismatch: A bucket is not the catalog's.
    """
    own = own_buckets_by_name(settings, OwnStores(SqlCatalog(database).identities))
    asked = {bucket: _unanswered(own(role, bucket).require) for role, bucket in buckets_of(settings)}
    return {bucket: f"not marked yet: {why}" if why else "marked" for bucket, why in asked.items()}


def _unanswered(compare: Callable[[], object]) -> SextonError | None:
    """Compare a bucket with the catalog; why that cannot be done now, or None.

    Raises:
        CatalogMismatch: It is not the catalog's.
        CatalogOutdated: The database is older than its record log.
    """
    try:
        compare()
    except (CatalogMismatch, CatalogOutdated):
        raise
    except SextonError as error:
        return error
    return None


def compare_buckets(objects: OwnedStore, buckets: Buckets, settings: Settings) -> None:
    """Refuse to start on buckets of another catalog.

    Where the store does not answer now, or refuses us for a moment, the first use of each bucket compares.

    Raises:
        CatalogMismatch: A bucket is not the catalog's.
        CatalogOutdated: The database is older than its record log.
        ServiceRefused: The store refuses us the primary bucket: no such bucket, no permission, wrong keys.
    """
    for store in (objects, buckets(CopyLocation(settings.tiered_bucket))):
        why = _unanswered(store.require)
        if store is objects and isinstance(why, ServiceRefused) and not why.may_pass:
            raise why
        if why:
            _log.warning("a bucket is compared with the catalog at its first use: %s", why)


def compare_with_newest_manifest(settings: Settings, catalog: SqlCatalog) -> None:
    """Compare the catalog with the newest manifest of its record log. A bucket that is nobody's yet has none.

    Raises:
        CatalogOutdated: The database is older than its record log.
        CatalogMismatch: The bucket is another catalog's.
        StoreUnavailable, ServiceRefused: The store does not answer, or refuses us.
    """
    own = own_buckets_by_name(settings, OwnStores(catalog.identities), hasty=True)
    records = own(Role.RECORDS, settings.records_bucket)
    if records.look() is MarkerState.OURS:
        require_current(catalog.records, records)


def refuse_foreign_bucket(settings: Settings, identities: Identities) -> None:
    """Refuse a primary bucket that is another catalog's, for a process that starts jobs and uses no bucket itself.

    A store that is not known, does not answer or refuses us is no obstacle: durable jobs wait for it.

    Raises:
        CatalogMismatch: It is another catalog's, or not the one that this catalog has marked.
    """
    if not settings.has_object_store:
        return
    store = own_buckets_by_name(settings, OwnStores(identities), hasty=True)(Role.PRIMARY, settings.primary_bucket)
    if why := _unanswered(store.look):
        _log.info("the primary bucket is left to the workers: %s", why)


def own_build(settings: Settings) -> WorkerDeploymentVersion | None:
    """The build that a worker with these settings is; None where it takes no part in Worker Versioning."""
    if not settings.deployment_name:
        return None
    return WorkerDeploymentVersion(settings.deployment_name, settings.build_id or code_build_id())


@cache
def code_build_id() -> str:
    """The version, and the beginning of a hash of all code that is installed here, as in `0.1.0-1f2e3d4c5b6a`."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        folder = Path(str(files(package)))
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{VERSION}-{digest.hexdigest()[:_DIGITS]}"
