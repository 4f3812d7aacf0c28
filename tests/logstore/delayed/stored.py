"""A topic with delayed messages in SQL and a bucket in memory, sealed and merged by the services of one process."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.delayed.index_buckets import IndexBucket, SealAndMergeLimits
from logstore.delayed.services.bucket_merger import Merger
from logstore.delayed.services.bucket_snapshots import IndexBucketSnapshots
from logstore.delayed.services.log_sealer import Sealer
from logstore.delayed.tracker import IndexSnapshotGone
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.activities.activity_world import World, open_activity_world

HOUR_MS: Final = 3_600_000
FEW: Final = SealAndMergeLimits(messages=4, ledgers=3, idle_s=60, buckets=2)

Pending = list[tuple[int, Position]]
"""Delivery times and positions, ascending."""


@dataclass
class Stored:
    """One topic, and the services of a process. Its messages are due in hours, counted from the catalog's clock."""

    world: World
    limits: SealAndMergeLimits
    snapshots: IndexBucketSnapshots
    sealer: Sealer
    merger: Merger
    now_ms: int  # when it was made

    @property
    def topic_id(self) -> TopicId:
        return self.world.topic.topic_id

    @property
    def index(self) -> DelayedIndex:
        return self.world.catalog.delayed

    @property
    def buckets(self) -> tuple[IndexBucket, ...]:
        """As they are listed."""
        return self.index.get_bucket_list(self.topic_id).buckets

    def append(self, *hours: int | None, txn: TransactionId | None = None) -> list[Position]:
        """One segment with an entry for each: due in so many hours, before now if negative, or not delayed."""
        times = [None if one is None else self.now_ms + one * HOUR_MS for one in hours]
        entries = [NewEntry(payload=b"x", deliver_at_ms=one) for one in times]
        found = self.world.log.topic_logs.append(self.world.topic, ProducedEntries(entries=entries, txn=txn))
        assert found.first
        assert found.last
        return [replace(found.first, entry_id=at) for at in range(found.first.entry_id, found.last.entry_id + 1)]

    def roll(self) -> None:
        """Let the next segments go into another ledger."""
        self.world.log.topic_logs.roll(self.world.topic)

    def sealed(self, *segments: Sequence[int]) -> tuple[IndexBucket, ...]:
        """One bucket for each of the segments."""
        for hours in segments:
            self.append(*hours)
            self.sealer.drop_buckets_and_seal(self.topic_id, force=True)
        return self.buckets

    def held(self) -> Pending:
        """What all buckets hold, read from storage; a position twice would be here twice."""
        while True:
            listed = self.buckets
            try:
                return sorted(held for bucket in listed for held in self.held_by(bucket))
            except IndexSnapshotGone:
                assert listed != self.buckets, "a bucket is listed and not stored"

    def held_by(self, bucket: IndexBucket) -> Iterator[tuple[int, Position]]:
        """The messages of one bucket, as its segments have them; its bitmaps hold the same positions."""
        snapshots = processed(self.world)
        found = [
            pair
            for rows in snapshots.iterate_rows(bucket)
            for pair in zip(rows.deliver_at_ms, rows.positions(), strict=True)
        ]
        bits = snapshots.read_footer(bucket).bitmaps
        told = sorted(Position(ledger_id, entry) for ledger_id, entries in bits.items() for entry in entries)
        assert told == sorted(position for _, position in found)
        return iter(found)

    def ledgers(self) -> list[LedgerId]:
        """Ledgers of buckets that are listed."""
        listed = self.world.catalog.components.list_ledgers(self.topic_id)
        return [one.ledger_id for one in listed if one.component is Component.DELAYED_INDEX]

    def retired(self) -> list[LedgerId]:
        """Ledgers of buckets with an intent."""
        found = self.world.catalog.deletions.list_intents(None, limit=1_000)
        return sorted(one.ledger_id for one in found if one.component == Component.DELAYED_INDEX)

    def due(self) -> list[TopicId]:
        """What a schedule would take up."""
        return self.index.list_topics_with_work(self.limits, after=TopicId(-1), limit=10)


def processed(world: World) -> IndexBucketSnapshots:
    """Snapshots, as another process has them: it has read none yet."""
    contents = ComponentLedgers(
        components=world.catalog.components,
        ledgers=world.catalog.ledgers,
        objects=world.objects,
        application="sexton",
    )
    return IndexBucketSnapshots(ledgers=world.catalog.ledgers, contents=contents, objects=world.objects)


def stored(folder: Path, limits: SealAndMergeLimits = FEW) -> Stored:
    """An empty topic."""
    return stored_in(open_activity_world(folder), limits)


def stored_in(world: World, limits: SealAndMergeLimits = FEW) -> Stored:
    """The topic of a world, whose services and activities have these limits from now on."""
    services = world.log.delayed
    services.sealer._limits = world.activities.delayed._limits = limits
    return Stored(
        world=world,
        limits=limits,
        snapshots=services.snapshots,
        sealer=services.sealer,
        merger=services.merger,
        now_ms=world.catalog.delayed.now_ms(),
    )
