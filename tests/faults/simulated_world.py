"""What outlives a crash (SQL and objects), and the processes that come and go over it."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from sqlalchemy import Connection, event

from logstore.catalog import Catalog, Database
from logstore.deletion.services.tiered_copies import TieredCopyStorage
from logstore.failpoints import SimulatedCrash
from logstore.identity.bucket_markers import MARKER_KEY, BucketRole, NamedBucket, marker_content
from logstore.identity.services.marker_checked_buckets import MarkerCheckedBucket
from logstore.log.ledgers import CopyKind
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.object_storage import ObjectInfo
from logstore.retrying_clock import Clock
from tests.ending_functions import ENDING_FUNCTION_REFERENCES
from tests.fakes.bulk_jobs import FakeBulkJobs
from tests.fakes.object_store import FakeObjectStore as Store
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.fakes.pulsar_cluster import FakePulsarCluster
from tests.faults.auditor import Observation, look
from tests.faults.topic_plans import BUCKET_LIMITS, CURSOR_INLINE_BYTES, FOREIGN_OBJECTS, StorageTrouble
from workers.assembly.log_store import ImportedRecordFunctions, LogStore, LogStoreBuckets, LogStorePolicies

ENDLESS_TIMES = 1_000_000
REPLICA_BUCKET_NAME = "far"
PART_BYTES = 400  # tiered copies here are some kilobytes
TIERED_BUCKET = "cold"
PHASE_TWO_DELAY_US = 3_600_000_000
"""Uploads of these worlds end with their processes, and phase two looks an hour later."""
_WRITING_OPERATIONS = {StoreOperation.PUT, StoreOperation.PART, StoreOperation.DELETE, StoreOperation.ABORT}


class LyingStore(Store):
    """A store whose listings of some prefixes are short once, without an error."""

    def __init__(self, **clock: int) -> None:
        super().__init__(**clock)
        self.short: dict[str, int] = {}  # prefix -> how many objects its next listing shows
        self.before_call: Callable[[], None] = lambda: None
        self.before_write: Callable[[], None] = lambda: None

    def copied(self) -> "LyingStore":
        """One that holds the same, and lies the same way."""
        copy = LyingStore(now_us=self.now_us)
        copy._held = dict(self._held)
        copy._faults = [replace(fault) for fault in self._faults]
        copy.short = dict(self.short)
        copy.unlisted = dict(self.unlisted)
        copy.unfinished = set(self.unfinished)
        return copy

    def _meet(self, operation: StoreOperation, name: str) -> Fault | None:
        self.before_call()
        if operation in _WRITING_OPERATIONS:
            self.before_write()
        return super()._meet(operation, name)

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """See the port; an object that a truncated listing lacks is one of the last.

        A listing of more than the prefix lies as one of the prefix alone does.
        """
        listed_objects = [*super().list(prefix, start_after=start_after, first_page=first_page)]
        for short_prefix in [
            prefix_to_shorten for prefix_to_shorten in self.short if prefix_to_shorten.startswith(prefix)
        ]:
            below = [item for item in listed_objects if item.key.startswith(short_prefix)]
            if below or short_prefix == prefix:
                metas_first = sorted(below, key=lambda item: item.key.endswith(".parquet"))
                omitted_keys = {item.key for item in metas_first[self.short.pop(short_prefix) :]}
                listed_objects = [item for item in listed_objects if item.key not in omitted_keys]
        yield from listed_objects


class World:
    """SQL and objects."""

    def __init__(
        self,
        database: Path,
        template: Path,
        *,
        store: LyingStore | None = None,
        tiered: LyingStore | None = None,
        records: LyingStore | None = None,
        replica: LyingStore | None = None,
    ) -> None:
        """Begin with an empty catalog and a bucket that holds other applications' objects."""
        shutil.copy(template, database)
        self.database = database
        self.url = f"sqlite:///{database}"
        self.store = store or LyingStore()
        self.cluster = FakePulsarCluster()
        self.tiered = tiered or LyingStore()
        now_us = time.time_ns() // 1_000  # of the record log, whose clock is compared with the catalog's
        self.records = records or LyingStore(now_us=now_us)
        self.replica = replica or LyingStore(now_us=now_us)
        self.tiered.part_bytes = PART_BYTES
        self.before_call: Callable[[], None] = lambda: None  # of a store or of the database
        for store_of_world in (self.store, self.tiered, self.records, self.replica):
            store_of_world.before_call, store_of_world.before_write = (
                self._before_store_call,
                self._count_write_or_crash,
            )
        self.inline_bytes = CURSOR_INLINE_BYTES
        self.writes = 0
        self.fatal: Container[int] = ()  # before which writes, counted from 1, its process dies
        self.planted: dict[str, bytes] = {}
        self.bulk = FakeBulkJobs(database.with_suffix(".bulk"))
        self.lost: set[str] = set()  # keys that nobody refers to, on purpose
        if store is None:
            self.plant(
                MARKER_KEY, marker_content(_read_catalog_id(database))
            )  # else it would be refused for what is planted
            for key, body in FOREIGN_OBJECTS.items():
                self.plant(key, body)

    def fork(self, database: Path) -> "World":
        """A world that is the same so far and goes its own way from here; no process may be running."""
        store, tiered, records, replica = (
            store_of_world.copied() for store_of_world in (self.store, self.tiered, self.records, self.replica)
        )
        forked = World(database, self.database, store=store, tiered=tiered, records=records, replica=replica)
        forked.planted = dict(self.planted)
        return forked

    def _before_store_call(self, *_: object) -> None:
        self.before_call()

    def _count_write_or_crash(self) -> None:
        """Called before a commit lands, and before a key is put or deleted, whatever failpoints there are."""
        self.writes += 1
        if self.writes in self.fatal:
            raise SimulatedCrash(f"write {self.writes}")

    def _before_commit(self, connection: Connection) -> None:
        if not connection.get_execution_options().get("sexton_reads"):
            self._count_write_or_crash()

    def bucket(self, location: CopyLocation) -> LyingStore:
        """The tiered bucket, which is the only other one."""
        assert location.bucket == TIERED_BUCKET
        return self.tiered

    def plant(self, key: str, body: bytes) -> None:
        """Put an object that is not Sexton's, which is no write of Sexton's either."""
        self.store.before_write = lambda: None
        self.store.put_if_absent(key, body, metadata={})
        self.store.before_write = self._count_write_or_crash
        self.planted[key] = body

    def look(self) -> Observation:
        """What the auditor sees."""
        tiered_bodies = {key: held_object.body for key, held_object in self.tiered._held.items() if key != MARKER_KEY}
        primary_bodies = {key: body for key, body in self.objects.items() if key not in self.lost}
        return look(
            self.database,
            primary_bodies,
            self.planted,
            tiered_objects=tiered_bodies,
            open_upload_keys=self.tiered.unfinished - self.lost,
        )

    @property
    def objects(self) -> Mapping[str, bytes]:
        """The store's own dict."""
        return {key: held_object.body for key, held_object in self.store._held.items()}

    def _buckets(self, catalog: Catalog) -> LogStoreBuckets:
        """The buckets as a process of the catalog uses them."""
        open_checked = partial(MarkerCheckedBucket, catalog.identities)
        warm = NamedBucket(role=BucketRole.PRIMARY, bucket="warm", address="")
        cold = replace(warm, role=BucketRole.TIERED)
        tiered = cache(
            lambda location: open_checked(replace(cold, bucket=location.bucket), lambda: self.bucket(location))
        )
        records = open_checked(replace(warm, role=BucketRole.RECORDS, bucket="records"), lambda: self.records)
        replica = open_checked(replace(warm, role=BucketRole.REPLICA, bucket=REPLICA_BUCKET_NAME), lambda: self.replica)
        return LogStoreBuckets(
            primary=open_checked(warm, lambda: self.store),
            tiered=tiered,
            records=records,
            replicas={REPLICA_BUCKET_NAME: replica},
            now_us=lambda: self.store.now_us,
        )

    @contextmanager
    def process(self, *, registration_timeout_s: float = 600) -> Iterator[LogStore]:
        """A process over what there is; closed as a process is, however it ends."""
        database = Database(self.url)
        if database.is_sqlite:
            event.listen(database.engine, "connect", _without_fsync)
        event.listen(database.engine, "commit", self._before_commit)
        event.listen(database.engine, "checkout", self._before_store_call)
        catalog = Catalog(database, registration_timeout_s=registration_timeout_s)
        stores = self._buckets(catalog)
        policies = LogStorePolicies(
            scratch=self.database.parent / "tmp",
            driver_metadata={"driver": "aws-s3", "bucket": TIERED_BUCKET},
            cursor_inline_bytes=self.inline_bytes,
            bucket_limits=BUCKET_LIMITS,
            clock_bound_s=10**10,  # the fake's clock is its own
            raider_sleep_s=0,
            functions=ImportedRecordFunctions(ENDING_FUNCTION_REFERENCES),
        )
        clock = Clock(sleep=lambda _: None)
        delayed_tiered_storage = TieredCopyStorage(
            stores.tiered, now_us=lambda: catalog.offloads.now_us() + PHASE_TWO_DELAY_US
        )
        try:
            with closing(
                LogStore(
                    catalog=catalog,
                    stores=stores,
                    policies=policies,
                    bulk=self.bulk,
                    cluster=self.cluster,
                    clock=clock,
                )
            ) as log:
                log.storages = {**log.storages, CopyKind.OFFLOADED_LEDGER.value: delayed_tiered_storage}
                yield log
        finally:
            database.close()

    def trouble(self, ledger_id: int, trouble: StorageTrouble, *, last_segment: int) -> None:
        """Let storage misbehave for one ledger."""
        prefix = f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"
        last_segment_key = f"{prefix}{last_segment:08d}.parquet"
        match trouble:
            case StorageTrouble.STUBBORN | StorageTrouble.HOPELESS:
                times = 2 if trouble is StorageTrouble.STUBBORN else ENDLESS_TIMES
                self.store.plan(
                    _planned_fault(StoreOperation.DELETE, FaultKind.REPORT_KEY_FAILED, last_segment_key, times)
                )
            case StorageTrouble.SQUATTED:
                self.plant(f"{prefix}notes.txt", b"somebody else's")
            case StorageTrouble.LISTS_NOTHING_ONCE:
                self.store.short[prefix] = 0
            case StorageTrouble.OMITS_SEGMENT_ONCE:
                self.store.short[prefix] = 2
            case StorageTrouble.SILENT:
                self.store.plan(_planned_fault(StoreOperation.LIST, FaultKind.BEFORE, prefix, 10))


def _read_catalog_id(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("SELECT catalog_id FROM catalog").fetchone()[0])


def _planned_fault(operation: StoreOperation, kind: FaultKind, name: str, times: int) -> Fault:
    return Fault(operation=operation, kind=kind, matches=lambda key_or_prefix: key_or_prefix == name, times=times)


def _without_fsync(connection: object, _: object) -> None:
    """No machine fails here, only processes: what they wrote, the next one reads, synced or not."""
    connection.execute("PRAGMA synchronous=OFF")  # type: ignore[attr-defined]  # a sqlite3.Connection
