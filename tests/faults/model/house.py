"""What outlives processes (the catalog and the bucket, in memory), and the processes that come and go over it."""

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from activities.deletion import DeletionUpkeep, LedgerDeletion
from activities.deletion.retention import Retention
from activities.deletion.topic_deletion import TopicDeletion
from activities.offload import LedgerOffload
from logstore.cursors.services.cursor_ledgers import CursorLedgers
from logstore.cursors.services.subscriptions import Subscriptions
from logstore.deletion.services.primary_copies import PrimaryCopies
from logstore.deletion.services.tiered_copies import TieredCopies
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.log.services import Clock, ManagedLedger, RollPolicy
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.schemas import SchemaRegistry
from logstore.log.services.tiered_segments import TieredSegments
from logstore.offload.places import TieredPlace
from logstore.offload.services.writing import Offloader
from logstore.ports.storage import Storages
from logstore.positions import LedgerId
from tests.fakes.catalog import FakeCatalog
from tests.fakes.objects import Fault, Operation, _Held
from tests.fakes.owners import NobodyOwns
from tests.faults.model.watch import WatchedDeletions, WatchedLedgers, WatchedTopicDeletions
from tests.faults.world import LyingStore

_LEDGER_KEY: Final = re.compile(r"ledgers/[0-9a-f]{2}/(?P<id>[0-9a-f]{16})/(?P<name>[^/]+)")
_APPLICATION: Final = "sexton"
_INLINE_BYTES: Final = 60  # acknowledgements in two ledgers outgrow a cursor's row
FORGOTTEN_S: Final = 10_000.0  # how long an intent that ended well is remembered
_ROLLS: Final = RollPolicy(max_entries=12, max_size_bytes=1 << 30, max_age_s=3_600)

_BUCKET: Final = "cold"
_PLACE: Final = {"driver": "aws-s3", "bucket": _BUCKET}
COLD_PLANTED: Final = {
    "another-ledger-0": b"theirs",
    "another-ledger-0-index": b"theirs too",
    "readme.txt": b"mind the gap",
}

PLANTED: Final = {
    "another-application/ledgers/00/0000000000000000/00000000.parquet": b"theirs",
    "ledgers/ff/00000000000fffff/0123456789abcdef.meta.json": b"theirs too",
    "readme.txt": b"mind the gap",
}


class Store(LyingStore):
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

    def _meet(self, operation: Operation, name: str) -> Fault | None:
        if operation is Operation.DELETE:
            self.before_delete(name)
        return super()._meet(operation, name)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        """See the port."""
        held = self._held.get(key)
        try:
            super().put_if_absent(key, body, metadata=metadata)
        finally:
            found = _LEDGER_KEY.fullmatch(key)
            if found and self._held.get(key) is not held and not self._is_known(int(found["id"], 16)):
                self.late.add(key)
                self.told.discard(key)

    def epoch_of(self, key: str) -> int:
        """The catalog that the object says it is of."""
        return LedgerStatement.from_metadata(self._held[key].metadata).epoch

    def plant(self, key: str, body: bytes) -> None:
        """Let another application put an object, unless the key is taken."""
        if key not in self._held:
            self._held[key] = _Held(body, {}, self.now_us)
            self.planted[key] = body

    def heal(self) -> None:
        """Forget every planned fault."""
        self._faults.clear()
        self.short.clear()

    @property
    def bodies(self) -> dict[str, bytes]:
        """Every object as it is."""
        return {key: held.body for key, held in self._held.items()}


@dataclass(frozen=True, kw_only=True)
class Process:
    """Everything that dies with a process."""

    committer: GroupCommitter
    managed: ManagedLedger
    subscriptions: Subscriptions
    schemas: SchemaRegistry
    deletion: LedgerDeletion
    upkeep: DeletionUpkeep
    offload: LedgerOffload
    topics: TopicDeletion
    retention: Retention

    def close(self) -> None:
        """End its threads, however it ended itself."""
        self.managed.close()
        self.committer.close()


class House:
    """Catalog, bucket, and processes by name."""

    def __init__(self) -> None:
        """Begin with an empty catalog and a bucket that holds other applications' objects."""
        self.catalog = FakeCatalog()
        self.watched = WatchedDeletions(self.catalog)
        self.catalog.deletions = self.watched
        self.ledgers = self.catalog.ledgers = WatchedLedgers(self.catalog)
        self.catalog.topic_deletions = WatchedTopicDeletions(self.catalog, self.watched)
        self.store = Store(self._has_primary)
        self.cold = Store(lambda _ledger_id: True)
        for store, planted in ((self.store, PLANTED), (self.cold, COLD_PLANTED)):
            for key, body in planted.items():
                store.plant(key, body)
        self._folder = tempfile.TemporaryDirectory(prefix="model-")
        self._uuids = (f"{number:08x}" for number in count())
        self._clock = Clock(now_us=lambda: self.catalog.now_us, monotonic_s=self._monotonic_s, sleep=self._sleep)
        self._processes: dict[str, Process] = {}

    def process(self, name: str) -> Process:
        """The process of that name, begun now if it does not run."""
        if name not in self._processes:
            self._processes[name] = self._begin()
        return self._processes[name]

    def bury(self, name: str) -> None:
        """The process is dead: whatever it remembered is gone."""
        dead = self._processes.pop(name, None)
        if dead:
            dead.close()

    def close(self) -> None:
        """End every process."""
        for name in list(self._processes):
            self.bury(name)
        self._folder.cleanup()

    def _has_primary(self, ledger_id: int) -> bool:
        return CopyKind.LEDGER in self.catalog.copies.get(LedgerId(ledger_id), {})

    def _bucket(self, place: TieredPlace) -> Store:
        assert place == TieredPlace(_BUCKET), place
        return self.cold

    def _begin(self) -> Process:
        catalog, clock = self.catalog, self._clock
        committer = GroupCommitter(catalog.commits)
        managed = ManagedLedger(
            ledgers=catalog.ledgers,
            objects=self.store,
            committer=committer,
            application=_APPLICATION,
            policy=_ROLLS,
            clock=clock,
            tiered=TieredSegments(offloads=catalog.offloads, buckets=self._bucket),
        )
        contents = ComponentLedgers(
            components=catalog.components,
            ledgers=catalog.ledgers,
            objects=self.store,
            application=_APPLICATION,
            clock=clock,
        )
        snapshots = CursorLedgers(
            cursors=catalog.cursors,
            ledgers=catalog.ledgers,
            contents=contents,
            inline_bytes=_INLINE_BYTES,
            clock=clock,
        )
        subscriptions = Subscriptions(cursors=catalog.cursors, committer=committer, ledgers=snapshots)
        deletions, ledgers = catalog.deletions, catalog.ledgers
        storages: Storages = {
            CopyKind.LEDGER.value: PrimaryCopies(self.store),
            CopyKind.OFFLOADED_LEDGER.value: TieredCopies(self._bucket, now_us=catalog.offloads.now_us),
        }
        offloader = Offloader(
            offloads=catalog.offloads,
            ledgers=ledgers,
            primary=self.store,
            buckets=self._bucket,
            place=_PLACE,
            folder=Path(self._folder.name),
            monotonic_s=self._monotonic_s,
        )
        return Process(
            committer=committer,
            managed=managed,
            subscriptions=subscriptions,
            schemas=SchemaRegistry(schemas=catalog.schemas, contents=contents),
            deletion=LedgerDeletion(
                deletions=deletions, ledgers=ledgers, topics=catalog.topics, storages=storages, owners=NobodyOwns()
            ),
            upkeep=DeletionUpkeep(
                sweeps=catalog.sweeps, deletions=deletions, ledgers=ledgers, finished_retention_s=FORGOTTEN_S
            ),
            offload=LedgerOffload(
                uploader=offloader,
                offloads=catalog.offloads,
                ledgers=ledgers,
                topics=catalog.topics,
                new_uuid=lambda: next(self._uuids),
            ),
            topics=TopicDeletion(topics=catalog.topic_deletions, ledgers=ledgers),
            retention=Retention(topics=catalog.topics, roller=managed, settler=subscriptions),
        )

    def _monotonic_s(self) -> float:
        return self.catalog.now_us / 1_000_000

    def _sleep(self, seconds: float) -> None:
        self.catalog.advance(seconds=seconds)
