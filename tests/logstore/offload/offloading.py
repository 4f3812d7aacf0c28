"""A ledger with a tiered copy, from real segments, over fakes."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from logstore.deletion.intents import DeletionIntent
from logstore.log.ledgers import CopyKind
from logstore.log.services import RollPolicy, TopicLogs
from logstore.log.services.segment_reader import TieredCopyFinder
from logstore.offload.services.tiered_copy_upload import CopyEvidence, Offloader, UploadAttemptResult
from logstore.offload.tiered_copy import CopyLocation, data_key, index_key
from logstore.positions import LedgerId
from tests.fakes.object_store import FakeObjectStore
from tests.logstore.log.world import World, plain

METADATA = {"driver": "aws-s3", "bucket": "cold"}
UUID = "01234567-89ab-4cde-8f01-23456789abcd"


@dataclass(kw_only=True)
class Offloading:
    """One topic, a primary and a tiered bucket."""

    folder: Path
    world: World = field(default_factory=World)
    tiered: FakeObjectStore = field(default_factory=FakeObjectStore)
    now_s: float = 0.0

    def bucket(self, location: CopyLocation) -> FakeObjectStore:
        assert location == CopyLocation("cold")
        return self.tiered

    def process(self, *, entries: int = 4) -> TopicLogs:
        """One that rolls after so many entries and reads every copy."""
        segments = TieredCopyFinder(offloads=self.world.catalog.offloads, buckets=self.bucket)
        return self.world.process(RollPolicy(max_entries=entries), tiered=segments)

    def fill(self, ledgers: int = 2) -> list[LedgerId]:
        """Ledgers of two segments of two entries, whose payloads are their positions; the last one is open."""
        process = self.process()
        for ledger in range(ledgers):
            for first in (0, 2):
                process.append(self.world.topic, plain(*[b"%d:%d" % (ledger, first + at) for at in range(2)]))
        return [one.ledger_id for one in self.world.catalog.ledgers.list_ledgers(self.world.topic.topic_id)]

    def offloader(self, monotonic_s: Callable[[], float] | None = None) -> Offloader:
        """Its clock stands until moved."""
        return Offloader(
            offloads=self.world.catalog.offloads,
            ledgers=self.world.catalog.ledgers,
            primary=self.world.objects,
            buckets=self.bucket,
            driver_metadata=METADATA,
            folder=self.folder,
            monotonic_s=monotonic_s or (lambda: self.now_s),
        )

    def upload(self, ledger_id: LedgerId, uuid: str = UUID, *, timeout_s: float = 60) -> UploadAttemptResult:
        """One attempt."""
        return self.offloader().upload_and_prove(ledger_id, uuid, timeout_s=timeout_s)

    def offload(self, ledger_id: LedgerId, uuid: str = UUID) -> CopyEvidence:
        """A published copy."""
        done = self.upload(ledger_id, uuid)
        assert done.evidence
        assert self.world.catalog.offloads.publish_tiered_copy(ledger_id, uuid)
        return done.evidence

    def intents(self) -> list[DeletionIntent]:
        """Of tiered copies, newest first."""
        rows = self.world.catalog.deletions.list_intents(None, limit=100)
        return [row for row in rows if row.copy is CopyKind.OFFLOADED_LEDGER]

    def pair(self, ledger_id: LedgerId, uuid: str = UUID) -> tuple[str, str]:
        """Keys of data and index."""
        return data_key(uuid, ledger_id), index_key(uuid, ledger_id)

    def body(self, key: str) -> bytes:
        """A tiered object's content."""
        stored = self.tiered.get(key)
        assert stored
        return stored.body

    def damage(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Let a tiered object hold something else, behind the port's back."""
        stored = self.tiered.get(key)
        assert stored
        self.tiered.delete([key])
        file = io.BytesIO(change(stored.body))
        self.tiered.put_file_if_absent(key, file, metadata=stored.metadata, require_may_proceed=lambda: None)
