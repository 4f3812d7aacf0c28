"""What outlives a crash (SQL and objects), and the processes that come and go over it."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, event

from infra.catalog import Database, SqlCatalog
from logstore.deletion.services.tiered_copies import TieredCopyStorage
from logstore.failpoints import SimulatedCrash
from logstore.identity.bucket_markers import MARKER_KEY, BucketRole, NamedBucket, marker_content
from logstore.identity.services.marker_checked_buckets import MarkerChecker
from logstore.log.ledgers import CopyKind
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.object_storage import ObjectInfo
from logstore.retrying_clock import Clock
from tests.ending_functions import REFERENCES
from tests.fakes.bulk import FakeBulkJobs
from tests.fakes.objects import FakeObjectStore as Store
from tests.fakes.objects import Fault, FaultKind, Operation
from tests.faults.auditor import Seen, look
from tests.faults.scene import BUCKET_LIMITS, INLINE_BYTES, PLANTED, Trouble
from workers.assembly.log_store import LogStore, LogStoreBuckets, LogStorePolicies, assemble_log_store
from workers.assembly.record_log_services import ImportedRecordFunctions, RecordLogPolicies

FOREVER = 1_000_000
REPLICA = "far"
PART_BYTES = 400  # tiered copies here are some kilobytes
BUCKET = "cold"
LATER_US = 3_600_000_000
"""Uploads of these worlds end with their processes, and phase two looks an hour later."""
_WRITES = {Operation.PUT, Operation.PART, Operation.DELETE, Operation.ABORT}


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

    def _meet(self, operation: Operation, name: str) -> Fault | None:
        self.before_call()
        if operation in _WRITES:
            self.before_write()
        return super()._meet(operation, name)

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """See the port; an object that a truncated listing lacks is one of the last.

        A listing of more than the prefix lies as one of the prefix alone does.
        """
        found = [*super().list(prefix, start_after=start_after, first_page=first_page)]
        for short in [one for one in self.short if one.startswith(prefix)]:
            below = [item for item in found if item.key.startswith(short)]
            if below or short == prefix:
                metas_first = sorted(below, key=lambda item: item.key.endswith(".parquet"))
                lacking = {item.key for item in metas_first[self.short.pop(short) :]}
                found = [item for item in found if item.key not in lacking]
        yield from found


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
        self.tiered = tiered or LyingStore()
        now_us = time.time_ns() // 1_000  # of the record log, whose clock is compared with the catalog's
        self.records = records or LyingStore(now_us=now_us)
        self.replica = replica or LyingStore(now_us=now_us)
        self.tiered.part_bytes = PART_BYTES
        self.before_call: Callable[[], None] = lambda: None  # of a store or of the database
        for one in (self.store, self.tiered, self.records, self.replica):
            one.before_call, one.before_write = self._call, self._write
        self.inline_bytes = INLINE_BYTES
        self.writes = 0
        self.fatal: Container[int] = ()  # before which writes, counted from 1, its process dies
        self.planted: dict[str, bytes] = {}
        self.bulk = FakeBulkJobs(database.with_suffix(".bulk"))
        self.lost: set[str] = set()  # keys that nobody refers to, on purpose
        if store is None:
            self.plant(
                MARKER_KEY, marker_content(_catalog_id(database))
            )  # else it would be refused for what is planted
            for key, body in PLANTED.items():
                self.plant(key, body)

    def fork(self, database: Path) -> "World":
        """A world that is the same so far and goes its own way from here; no process may be running."""
        store, tiered, records, replica = (
            one.copied() for one in (self.store, self.tiered, self.records, self.replica)
        )
        forked = World(database, self.database, store=store, tiered=tiered, records=records, replica=replica)
        forked.planted = dict(self.planted)
        return forked

    def _call(self, *_: object) -> None:
        self.before_call()

    def _write(self) -> None:
        """Called before a commit lands, and before a key is put or deleted, whatever failpoints there are."""
        self.writes += 1
        if self.writes in self.fatal:
            raise SimulatedCrash(f"write {self.writes}")

    def _commit(self, connection: Connection) -> None:
        if not connection.get_execution_options().get("sexton_reads"):
            self._write()

    def bucket(self, location: CopyLocation) -> LyingStore:
        """The tiered bucket, which is the only other one."""
        assert location.bucket == BUCKET
        return self.tiered

    def plant(self, key: str, body: bytes) -> None:
        """Put an object that is not Sexton's, which is no write of Sexton's either."""
        self.store.before_write = lambda: None
        self.store.put_if_absent(key, body, metadata={})
        self.store.before_write = self._write
        self.planted[key] = body

    def look(self) -> Seen:
        """What the auditor sees."""
        cold = {key: held.body for key, held in self.tiered._held.items() if key != MARKER_KEY}
        stored = {key: body for key, body in self.objects.items() if key not in self.lost}
        return look(self.database, stored, self.planted, tiered=cold, parts=self.tiered.unfinished - self.lost)

    @property
    def objects(self) -> Mapping[str, bytes]:
        """The store's own dict."""
        return {key: held.body for key, held in self.store._held.items()}

    def _buckets(self, catalog: SqlCatalog) -> LogStoreBuckets:
        """The buckets as a process of the catalog uses them."""
        stores = MarkerChecker(catalog.identities)
        warm = NamedBucket(role=BucketRole.PRIMARY, bucket="warm", address="")
        cold = replace(warm, role=BucketRole.TIERED)
        tiered = cache(lambda at: stores.get_checked_bucket(replace(cold, bucket=at.bucket), lambda: self.bucket(at)))
        records = stores.get_checked_bucket(
            replace(warm, role=BucketRole.RECORDS, bucket="records"), lambda: self.records
        )
        replica = stores.get_checked_bucket(
            replace(warm, role=BucketRole.REPLICA, bucket=REPLICA), lambda: self.replica
        )
        return LogStoreBuckets(
            primary=stores.get_checked_bucket(warm, lambda: self.store),
            tiered=tiered,
            records=records,
            replicas={REPLICA: replica},
            now_us=lambda: self.store.now_us,
        )

    @contextmanager
    def process(self, *, registration_timeout_s: float = 600) -> Iterator[LogStore]:
        """A process over what there is; closed as a process is, however it ends."""
        database = Database(self.url)
        if database.is_sqlite:
            event.listen(database.engine, "connect", _without_fsync)
        event.listen(database.engine, "commit", self._commit)
        event.listen(database.engine, "checkout", self._call)
        catalog = SqlCatalog(database, registration_timeout_s=registration_timeout_s)
        stores = self._buckets(catalog)
        policies = LogStorePolicies(
            scratch=self.database.parent / "tmp",
            driver_metadata={"driver": "aws-s3", "bucket": BUCKET},
            cursor_inline_bytes=self.inline_bytes,
            bucket_limits=BUCKET_LIMITS,
            records=RecordLogPolicies(
                clock_bound_s=10**10,  # the fake's clock is its own
                raider_sleep_s=0,
                functions=ImportedRecordFunctions(REFERENCES),
            ),
        )
        clock = Clock(sleep=lambda _: None)
        later = TieredCopyStorage(stores.tiered, now_us=lambda: catalog.offloads.now_us() + LATER_US)
        try:
            with assemble_log_store(
                catalog=catalog,
                stores=stores,
                policies=policies,
                bulk=self.bulk,
                clock=clock,
            ) as log:
                yield replace(log, storages={**log.storages, CopyKind.OFFLOADED_LEDGER.value: later})
        finally:
            database.close()

    def trouble(self, ledger_id: int, trouble: Trouble, *, last_segment: int) -> None:
        """Let storage misbehave for one ledger."""
        prefix = f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"
        last = f"{prefix}{last_segment:08d}.parquet"
        match trouble:
            case Trouble.STUBBORN | Trouble.HOPELESS:
                times = 2 if trouble is Trouble.STUBBORN else FOREVER
                self.store.plan(_fault(Operation.DELETE, FaultKind.KEY_ERROR, last, times))
            case Trouble.SQUATTED:
                self.plant(f"{prefix}notes.txt", b"somebody else's")
            case Trouble.LISTED_EMPTY:
                self.store.short[prefix] = 0
            case Trouble.LISTED_SHORT:
                self.store.short[prefix] = 2
            case Trouble.SILENT:
                self.store.plan(_fault(Operation.LIST, FaultKind.BEFORE, prefix, 10))


def _catalog_id(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("SELECT catalog_id FROM catalog").fetchone()[0])


def _fault(operation: Operation, kind: FaultKind, name: str, times: int) -> Fault:
    return Fault(operation=operation, kind=kind, matches=lambda found: found == name, times=times)


def _without_fsync(connection: object, _: object) -> None:
    """No machine fails here, only processes: what they wrote, the next one reads, synced or not."""
    connection.execute("PRAGMA synchronous=OFF")  # type: ignore[attr-defined]  # a sqlite3.Connection
