"""A replica's database over what settings and its command name: two buckets of one catalog, and a database.

Whose buckets they are, the marker of the source's records bucket says; the catalog itself is not asked.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from activities.records.following import RecordFollowing
from infra.catalog.engine.connections import shown_url
from infra.catalog.records.following import open_replica
from logstore.identity.markers import Role
from logstore.records.services.following import Follow, Follower
from logstore.records.services.record_log import RecordLog
from workers.assembly.adapters import store_clock
from workers.assembly.buckets import marked_buckets
from workers.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowParts:
    """What the command of a replica works with."""

    catalog_id: str
    replica: str  # how its name begins
    activities: RecordFollowing
    require: Callable[[], None]  # looks whether bucket and database can be what they are to be


def replica_name(bucket: str, database_url: str) -> str:
    """How the name begins to which every run of the same command comes, whatever the password in the URL."""
    return f"{bucket}/{hashlib.sha256(shown_url(database_url).encode()).hexdigest()[:8]}"


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
    follow = Follow(
        replica=replica_name(bucket, settings.database_url),
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
