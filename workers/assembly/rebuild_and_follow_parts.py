"""Services for two commands: one rebuilds a catalog from the record log, the other fills a replica database."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock

from activities.records.follow_records import FollowRecordsActivities
from activities.records.rebuild_catalog import LoadedCatalogServices, RebuildCatalogActivities
from logstore.catalog import open_catalog
from logstore.catalog.engine.database_connections import mask_passwords
from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.catalog.records.replica_database import open_replica_database
from logstore.errors import ServiceRefused
from logstore.identity.bucket_markers import BucketRole
from logstore.identity.services.marker_checked_buckets import MarkerChecker
from logstore.offload.tiered_copy import CopyLocation
from logstore.records.services.flusher import Flusher
from logstore.records.services.rebuild_manifests import RebuildManifests
from logstore.records.services.record_log import RecordLog
from logstore.records.services.replica_follower import ReplicaFollower, ReplicaFollowSettings
from logstore.records.services.upload_adoption import UploadAdopter
from workers.assembly.checked_buckets import identify_catalog_by_records_marker, make_checked_bucket_opener
from workers.assembly.log_store import make_store_clock, open_spark_bulk_jobs
from workers.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCommandParts:
    catalog_id: str
    manifests: RebuildManifests
    database: RebuildDatabase
    activities: RebuildCatalogActivities


@contextmanager
def open_rebuild_parts(
    settings: Settings, buckets: Sequence[tuple[BucketRole, str]], *, require_no_workers: Callable[[], None] | None
) -> Iterator[RebuildCommandParts]:
    """Open the services for a rebuild into the database in `database_url`.

    `require_no_workers` must raise an error while a worker of the old catalog lives. `None` skips this check.
    """
    lost_catalog, get_bucket = identify_catalog_by_records_marker(settings)
    log = RecordLog(lost_catalog.get_checked_bucket(*get_bucket(BucketRole.RECORDS, settings.records_bucket)))
    start = RebuildManifests(log)
    database = RebuildDatabase(settings.database_url)

    def list_buckets_with_marker() -> Sequence[tuple[BucketRole, str]]:
        marked = []
        for bucket, store in [get_bucket(role, name) for role, name in buckets]:
            try:
                if lost_catalog.has_marker(bucket, store):
                    marked.append((bucket.role, bucket.bucket))
            except ServiceRefused:
                if bucket.role in {
                    BucketRole.PRIMARY,
                    BucketRole.RECORDS,
                }:  # markers of other buckets are checked at the first use
                    raise
        return marked

    with open_spark_bulk_jobs(settings) as bulk, ExitStack() as stack:
        activities = RebuildCatalogActivities(
            bulk=bulk,
            database=database,
            manifests=start,
            markers=list_buckets_with_marker,
            open_loaded=_remember_first_result(partial(_open_loaded_catalog, settings, log, stack)),
            require_no_workers=require_no_workers,
        )
        yield RebuildCommandParts(
            catalog_id=lost_catalog.catalog_id(), manifests=start, database=database, activities=activities
        )


def _open_loaded_catalog(settings: Settings, log: RecordLog, stack: ExitStack) -> LoadedCatalogServices:
    catalog = stack.enter_context(
        open_catalog(settings.database_url, registration_timeout_s=settings.registration_timeout)
    )
    get_bucket = make_checked_bucket_opener(settings, MarkerChecker(catalog.identities))
    adopter = UploadAdopter(
        adoption=catalog.adoption,
        objects=get_bucket(BucketRole.PRIMARY, CopyLocation(settings.primary_bucket)),
        buckets=partial(get_bucket, BucketRole.TIERED),
        application=settings.application,
    )
    flusher = Flusher(
        catalog.records,
        log,
        clock_bound_s=settings.clock_bound,
        cursor_interval_s=settings.records_cursor_interval,
    )
    return LoadedCatalogServices(catalog.records, adopter, flusher)


def _remember_first_result(open_loaded: Callable[[], LoadedCatalogServices]) -> Callable[[], LoadedCatalogServices]:
    """Return a thread-safe function that calls `open_loaded` until a call succeeds, and then returns that result."""
    lock, results = Lock(), list[LoadedCatalogServices]()

    def get() -> LoadedCatalogServices:
        with lock:
            if not results:
                results.append(open_loaded())
            return results[0]

    return get


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowCommandParts:
    catalog_id: str
    replica: str  # first part of the replica's names: followed bucket and a digest of the database's URL
    activities: FollowRecordsActivities
    require_bucket_and_database: Callable[[], None]  # checks the bucket and the database


@contextmanager
def open_follow_parts(settings: Settings, bucket: str) -> Iterator[FollowCommandParts]:
    """Open the replica database in `database_url`, which follows `bucket`: the records bucket or a replica bucket."""
    catalog_identity, get_bucket = identify_catalog_by_records_marker(settings)
    source = RecordLog(catalog_identity.get_checked_bucket(*get_bucket(BucketRole.RECORDS, settings.records_bucket)))
    copied = bucket != settings.records_bucket
    followed = (
        RecordLog(catalog_identity.get_checked_bucket(*get_bucket(BucketRole.REPLICA, bucket))) if copied else source
    )
    url = mask_passwords(settings.database_url)  # so that the replica keeps its name when the password changes
    follow = ReplicaFollowSettings(
        replica=f"{bucket}/{hashlib.sha256(url.encode()).hexdigest()[:8]}",
        bucket=bucket,
        follows_replica_bucket=copied,
        eligible_age_s=settings.eligible_age,
    )
    with open_replica_database(settings.database_url) as database:
        follower = ReplicaFollower(
            follow, source=source, followed=followed, database=database, store_now_us=make_store_clock(settings)
        )
        activities = FollowRecordsActivities(follower, interval_s=settings.records_interval)

        def require() -> None:
            followed.require_ownership_once()
            database.read_applied_manifest()

        yield FollowCommandParts(
            catalog_id=catalog_identity.catalog_id(),
            replica=follow.replica,
            activities=activities,
            require_bucket_and_database=require,
        )
