"""A replica with a database of its own beside a world of records."""

import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from logstore.catalog.records.replica_database import open_replica_database
from logstore.records.job_results import FollowedRecords
from logstore.records.services.record_log import RecordLog
from logstore.records.services.replicas import ReplicaFollower, ReplicaFollowSettings, ReplicaShipments
from logstore.records.tombstone_rules import ReplicaState
from tests.fakes.object_store import FakeObjectStore
from tests.logstore.records.world import RecordsWorld
from tests.migrated_catalogs import create_migrated_sqlite

FAR: Final = "far"


class Mirror:
    """A replica with a database of its own, which follows the source's bucket, or one that is shipped to."""

    def __init__(self, world: RecordsWorld, folder: Path, *, copied: bool = False) -> None:
        self.world, self.copied = world, copied
        self.url = f"sqlite:///{folder / 'mirror.db'}"
        self.begins = f"{FAR if copied else 'records'}/mirror"  # its name
        self.far = FakeObjectStore()
        self._open = ExitStack()
        create_migrated_sqlite(folder / "mirror.db")
        self.database = self._open.enter_context(open_replica_database(self.url))

    def close(self) -> None:
        """Close its database."""
        self._open.close()

    @property
    def name(self) -> str:
        """Under which it was seeded."""
        seen = self.database.read_applied_manifest()
        assert seen
        return seen.replica

    @property
    def replication(self) -> ReplicaShipments:
        """As the workers of the source have it."""
        return ReplicaShipments(
            self.world.objects,
            {FAR: self.far} if self.copied else {},
            store_now_us=lambda: self.world.objects.now_us,
            eligible_age_s=self.world.eligible_age_s,
        )

    def ship(self) -> None:
        """Bring the bucket that it follows to the newest manifest."""
        self.far.now_us = self.world.objects.now_us
        self.replication.ship_to_replica(FAR)

    def step(self, *, seed: bool = False, eligible_age_s: float | None = None) -> FollowedRecords:
        """One step, as its command takes it."""
        age_s = self.world.eligible_age_s if eligible_age_s is None else eligible_age_s
        bucket = self.begins.partition("/")[0]
        follow = ReplicaFollowSettings(
            replica=self.begins, bucket=bucket, follows_replica_bucket=self.copied, eligible_age_s=age_s
        )
        follower = ReplicaFollower(
            follow,
            source=RecordLog(self.world.objects),
            followed=RecordLog(self.far if self.copied else self.world.objects),
            database=self.database,
            store_now_us=lambda: self.world.objects.now_us,
        )
        return follower.apply_new_manifests(seed=seed)

    def sql(self, statement: str) -> list[int]:
        """One column of its database."""
        with sqlite3.connect(self.url.removeprefix("sqlite:///")) as connection:
            return [value for (value,) in connection.execute(statement)]

    @property
    def ledgers(self) -> set[int]:
        """Those that it would serve."""
        return set(self.sql("SELECT ledger_id FROM ledger"))

    def state(self) -> ReplicaState | None:
        """As `records replicas` shows it."""
        return {one.replica: one.state for one in self.replication.list_replica_statuses()}.get(self.name)
