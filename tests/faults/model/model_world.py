"""What outlives processes (the catalog and the bucket, in memory), and the processes that come and go over it."""

import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Final, cast

from logstore.catalog.sql_catalog import Catalog
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.log.services import Clock, RollPolicy
from logstore.offload.tiered_copy import CopyLocation
from logstore.positions import LedgerId
from tests.driver.activity_worker import ActivityWorker
from tests.fakes.bulk_jobs import FakeBulkJobs
from tests.fakes.catalog import FakeCatalog
from tests.fakes.object_store import FakeObjectStore, Fault, StoreOperation, _HeldObject
from tests.fakes.owners import UnownedTopics
from tests.fakes.pulsar_cluster import FakePulsarCluster
from tests.faults.model.watched_catalog import WatchedDeletions, WatchedLedgers, WatchedPhaseOne
from tests.faults.simulated_world import LyingStore
from workers.assembly.activities import WorkerActivities
from workers.assembly.log_store import LogStore, LogStoreBuckets, LogStorePolicies

_LEDGER_KEY: Final = re.compile(r"ledgers/[0-9a-f]{2}/(?P<id>[0-9a-f]{16})/(?P<name>[^/]+)")
_CURSOR_INLINE_BYTES: Final = 60  # acknowledgements in two ledgers outgrow a cursor's row
FINISHED_RETENTION_S: Final = 10_000.0  # how long an intent that ended well is remembered
_ROLL_POLICY: Final = RollPolicy(max_entries=12, max_size_bytes=1 << 30, max_age_s=3_600)

_TIERED_BUCKET: Final = "cold"
_DRIVER_METADATA: Final = {"driver": "aws-s3", "bucket": _TIERED_BUCKET}
FOREIGN_TIERED_OBJECTS: Final = {
    "another-ledger-0": b"theirs",
    "another-ledger-0-index": b"theirs too",
    "readme.txt": b"mind the gap",
}

FOREIGN_OBJECTS: Final = {
    "another-application/ledgers/00/0000000000000000/00000000.parquet": b"theirs",
    "ledgers/ff/00000000000fffff/0123456789abcdef.meta.json": b"theirs too",
    "readme.txt": b"mind the gap",
}


class LateNotingStore(LyingStore):
    """A bucket. It remembers what was put for a copy that the catalog no longer had.

    A writer whose idea of the log is old uploads before it is told that it lost; so does a creator that slept.
    """

    def __init__(self, is_known: Callable[[int], bool]) -> None:
        super().__init__()
        self._is_known = is_known
        self.late: set[str] = set()  # reconciliation finds these: no row of the catalog can name them
        self.told: set[str] = set()  # and these phase two: who put them was answered, or has given up
        self.planted: dict[str, bytes] = {}
        self.before_delete: Callable[[str], None] = lambda _key: None

    def _meet(self, operation: StoreOperation, name: str) -> Fault | None:
        if operation is StoreOperation.DELETE:
            self.before_delete(name)
        return super()._meet(operation, name)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        held_before = self._held.get(key)
        try:
            super().put_if_absent(key, body, metadata=metadata)
        finally:
            match = _LEDGER_KEY.fullmatch(key)
            if match and self._held.get(key) is not held_before and not self._is_known(int(match["id"], 16)):
                self.late.add(key)
                self.told.discard(key)

    def epoch_of(self, key: str) -> int:
        """The catalog that the object says it is of."""
        return LedgerStatement.from_metadata(self._held[key].metadata).epoch

    def plant(self, key: str, body: bytes) -> None:
        """Let another application put an object, unless the key is taken."""
        if key not in self._held:
            self._held[key] = _HeldObject(body, {}, self.now_us)
            self.planted[key] = body

    def heal(self) -> None:
        """Forget every planned fault."""
        self._faults.clear()
        self.short.clear()

    @property
    def bodies(self) -> dict[str, bytes]:
        """Every object as it is."""
        return {key: held_object.body for key, held_object in self._held.items()}


class ModelProcess:
    """Everything that dies with a process."""

    def __init__(self, exit_stack: ExitStack, log: LogStore) -> None:
        """Take the log of the process, and what ends it."""
        self._ended = exit_stack
        self.committer, self.topic_logs = log.committer, log.topic_logs
        self.subscriptions, self.schemas = log.subscriptions, log.schemas
        self.worker = ActivityWorker(WorkerActivities(log, UnownedTopics()).all())

    def close(self) -> None:
        """End its threads, however it ended itself."""
        self._ended.close()


class ModelWorld:
    """Catalog, bucket, and processes by name."""

    def __init__(self) -> None:
        """Begin with an empty catalog and a bucket that holds other applications' objects."""
        self.catalog = FakeCatalog()
        self.watched = WatchedDeletions(self.catalog)
        self.catalog.deletions = self.watched
        self.ledgers = self.catalog.ledgers = WatchedLedgers(self.catalog)
        self.catalog.phase_one = WatchedPhaseOne(self.catalog, self.watched)
        self.store = LateNotingStore(self._has_primary)
        self.cold = LateNotingStore(lambda _ledger_id: True)
        self.records = FakeObjectStore()
        for store, planted in ((self.store, FOREIGN_OBJECTS), (self.cold, FOREIGN_TIERED_OBJECTS)):
            for key, body in planted.items():
                store.plant(key, body)
        self._folder = tempfile.TemporaryDirectory(prefix="model-")
        self._uuids = (f"{number:08x}" for number in count())
        self._clock = Clock(now_us=lambda: self.catalog.now_us, monotonic_s=self._monotonic_s, sleep=self._sleep)
        self._processes: dict[str, ModelProcess] = {}

    def process(self, name: str) -> ModelProcess:
        """The process of that name, begun now if it does not run."""
        if name not in self._processes:
            self._processes[name] = self._begin()
        return self._processes[name]

    def bury(self, name: str) -> None:
        """The process is dead: whatever it remembered is gone."""
        process = self._processes.pop(name, None)
        if process:
            process.close()

    def close(self) -> None:
        """End every process."""
        for name in list(self._processes):
            self.bury(name)
        self._folder.cleanup()

    def _has_primary(self, ledger_id: int) -> bool:
        return CopyKind.LEDGER in self.catalog.copies.get(LedgerId(ledger_id), {})

    def _bucket(self, location: CopyLocation) -> LateNotingStore:
        assert location == CopyLocation(_TIERED_BUCKET), location
        return self.cold

    def _begin(self) -> ModelProcess:
        exit_stack = ExitStack()
        log = LogStore(
            catalog=cast("Catalog", self.catalog),
            stores=LogStoreBuckets(
                primary=self.store, tiered=self._bucket, records=self.records, now_us=lambda: self.store.now_us
            ),
            policies=LogStorePolicies(
                scratch=Path(self._folder.name),
                driver_metadata=_DRIVER_METADATA,
                roll=_ROLL_POLICY,
                cursor_inline_bytes=_CURSOR_INLINE_BYTES,
                finished_retention_s=FINISHED_RETENTION_S,
                new_uuid=lambda: next(self._uuids),
            ),
            bulk=FakeBulkJobs(Path(self._folder.name) / "bulk"),
            cluster=FakePulsarCluster(),
            clock=self._clock,
        )
        return ModelProcess(exit_stack, exit_stack.enter_context(closing(log)))

    def _monotonic_s(self) -> float:
        return self.catalog.now_us / 1_000_000

    def _sleep(self, seconds: float) -> None:
        self.catalog.advance(seconds=seconds)
