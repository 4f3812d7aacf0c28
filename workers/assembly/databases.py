"""Databases that come from the record log: a lost catalog that is rebuilt, and a replica that follows.

Whose buckets they read, the marker of the records bucket says: the catalog itself is not asked, or not there yet.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock

from activities.records.following import RecordFollowing
from activities.records.rebuilding import Loaded, Rebuilding
from infra.catalog import open_catalog
from infra.catalog.engine.connections import mask_passwords
from infra.catalog.records.following import open_replica
from infra.catalog.records.loading import SqlRebuild
from logstore.errors import ServiceRefused
from logstore.identity.markers import Role
from logstore.identity.services.own_stores import OwnStores
from logstore.offload.tiered import CopyLocation
from logstore.ports.catalog.rebuilding import Rebuild
from logstore.records.services.adopting import Adopter
from logstore.records.services.cold_start import ColdStart
from logstore.records.services.flushing import Flusher
from logstore.records.services.following import Follow, Follower
from logstore.records.services.record_log import RecordLog
from workers.assembly.adapters import bulk_jobs, store_clock
from workers.assembly.buckets import marked_buckets, own_buckets
from workers.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildParts:
    """The parts that the command of a rebuild works with."""

    catalog_id: str
    start: ColdStart
    database: Rebuild
    activities: Rebuilding


@contextmanager
def open_rebuild(
    settings: Settings, buckets: Sequence[tuple[Role, str]], *, require_no_workers: Callable[[], None] | None
) -> Iterator[RebuildParts]:
    """Open the rebuild into `database_url` of the settings, from these buckets, which they name.

    Args:
        settings: Of the rebuild.
        buckets: With their roles.
        require_no_workers: Refuses while a worker of the old catalog lives; None: the rebuild takes over.

    Raises:
        CatalogMismatch: The records bucket says of no catalog that it is its own.
        StoreUnavailable, ServiceRefused: The store does not answer, or refuses us.
    """
    lost, at = marked_buckets(settings)
    log = RecordLog(lost.own(*at(Role.RECORDS, settings.records_bucket)))
    start = ColdStart(log)
    database = SqlRebuild(settings.database_url)

    def markers() -> Sequence[tuple[Role, str]]:
        known = [at(role, bucket) for role, bucket in buckets]
        marked = []
        for one, store in known:
            try:
                if lost.carries_marker(one, store):
                    marked.append((one.role, one.bucket))
            except ServiceRefused:
                if one.role in {Role.PRIMARY, Role.RECORDS}:  # the others are compared at their first use
                    raise
        return marked

    with bulk_jobs(settings) as bulk, ExitStack() as opened:
        activities = Rebuilding(
            bulk=bulk,
            database=database,
            start=start,
            markers=markers,
            opened=_once(partial(_loaded, settings, log, opened)),
            require_no_workers=require_no_workers,
        )
        yield RebuildParts(catalog_id=lost.catalog_id(), start=start, database=database, activities=activities)


def _loaded(settings: Settings, log: RecordLog, while_open: ExitStack) -> Loaded:
    """The catalog, once it is there; it stays open."""
    catalog = while_open.enter_context(
        open_catalog(settings.database_url, registration_timeout_s=settings.registration_timeout)
    )
    own = own_buckets(settings, OwnStores(catalog.identities))
    adopter = Adopter(
        adoption=catalog.adoption,
        objects=own(Role.PRIMARY, CopyLocation(settings.primary_bucket)),
        buckets=partial(own, Role.TIERED),
        application=settings.application,
    )
    flusher = Flusher(
        catalog.records,
        log,
        clock_bound_s=settings.clock_bound,
        cursor_interval_s=settings.records_cursor_interval,
    )
    return Loaded(catalog.records, adopter, flusher)


def _once(make: Callable[[], Loaded]) -> Callable[[], Loaded]:
    """Made by the first of several threads that need it; what fails is tried again by the next."""
    lock, made = Lock(), list[Loaded]()

    def opened() -> Loaded:
        with lock:
            if not made:
                made.append(make())
            return made[0]

    return opened


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowParts:
    """The parts that the command of a replica works with."""

    catalog_id: str
    replica: str  # how its name begins
    activities: RecordFollowing
    require: Callable[[], None]  # looks whether bucket and database can be what they are to be


@contextmanager
def open_following(settings: Settings, bucket: str) -> Iterator[FollowParts]:
    """Open the replica in `database_url` of the settings, which follows a bucket: the record log's own, or a copy.

    Raises:
        CatalogMismatch: The records bucket says of no catalog that it is its own, or the other bucket is another's.
        StoreUnavailable, ServiceRefused: The store does not answer, or refuses us.
    """
    known, at = marked_buckets(settings)
    source = RecordLog(known.own(*at(Role.RECORDS, settings.records_bucket)))
    copied = bucket != settings.records_bucket
    followed = RecordLog(known.own(*at(Role.REPLICA, bucket))) if copied else source
    url = mask_passwords(
        settings.database_url
    )  # whatever the password: every run of the same command comes to one name
    follow = Follow(
        replica=f"{bucket}/{hashlib.sha256(url.encode()).hexdigest()[:8]}",
        bucket=bucket,
        copied=copied,
        eligible_age_s=settings.eligible_age,
    )
    with open_replica(settings.database_url) as database:
        follower = Follower(
            follow, source=source, followed=followed, database=database, store_now_us=store_clock(settings)
        )
        activities = RecordFollowing(follower, interval_s=settings.records_interval)

        def require() -> None:
            followed.require()
            database.applied()

        yield FollowParts(catalog_id=known.catalog_id(), replica=follow.replica, activities=activities, require=require)
