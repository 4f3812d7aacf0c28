"""A topic with delayed messages, its buckets in memory, and processes that deliver them."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from pyroaring import BitMap

from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.cursors.services.subscriptions import CursorSnapshots, Subscriptions
from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket, IndexBucketList
from logstore.delayed.services.consumers import MessageDelivery
from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.log.services import Clock, RollPolicy, TopicLogs
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog.log import Topic
from logstore.positions import EARLIEST, LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.fakes.catalog import FakeCatalog
from tests.fakes.object_store import FakeObjectStore
from tests.logstore.builders import TOPIC
from tests.logstore.delayed.rows import Snapshots


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one process has."""

    delivery: MessageDelivery
    topic_logs: TopicLogs
    subscriptions: Subscriptions


@dataclass
class World:
    """One catalog, one bucket of a store; the list of buckets is this world's own."""

    ledger_entries: int = 6
    catalog: FakeCatalog = field(default_factory=FakeCatalog)
    objects: FakeObjectStore = field(default_factory=FakeObjectStore)
    snapshots: Snapshots = field(default_factory=Snapshots)
    buckets: IndexBucketList = field(default_factory=IndexBucketList)
    messages: dict[Position, int | None] = field(default_factory=dict)  # all that there are, with delivery times
    held: dict[str, dict[LedgerId, BitMap]] = field(default_factory=dict)  # by open transactions
    alarms: list[LedgerId] = field(default_factory=list)
    lookups: int = 0
    topic: Topic = field(init=False)
    opened: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.topic = self.catalog.topics.create_topic(TOPIC, RetentionPolicy())
        transactions: Any = self.catalog.transactions
        transactions.find_held_entries = self._held
        self._ids = itertools.count(1_000_000)
        self._writer = self.process()

    def process(self, *, tolerance_ms: int = 0) -> Process:
        """Another process, which knows nothing."""
        clock = Clock(now_us=lambda: self.catalog.now_us, monotonic_s=lambda: self.catalog.now_us / 1e6)
        committer = self.opened.enter_context(closing(GroupCommitter(self.catalog.commits.commit_writes)))
        given: Any = {"ledgers": self.catalog.ledgers, "objects": self.objects, "application": "sexton", "clock": clock}
        policy = RollPolicy(max_entries=self.ledger_entries, max_size_bytes=10**15, max_age_s=10**9)
        transactions = self.catalog.transactions
        topic_logs = TopicLogs(**given, transactions=transactions, committer=committer, policy=policy)
        self.opened.enter_context(closing(topic_logs))
        contents = ComponentLedgers(**given, components=self.catalog.components)
        states = CursorSnapshots(
            cursors=self.catalog.cursors,
            ledgers=self.catalog.ledgers,
            component_ledgers=contents,
            inline_bytes=40,
            clock=clock,
        )
        subscriptions = Subscriptions(
            cursors=self.catalog.cursors, transactions=transactions, committer=committer, snapshots=states
        )
        delivery = MessageDelivery(
            index=cast("DelayedIndex", self),
            snapshots=self.snapshots,
            topic_logs=topic_logs,
            subscriptions=subscriptions,
            transactions=transactions,
            clock=clock,
            tolerance_ms=tolerance_ms,
            alarm=lambda topic, bucket: self.alarms.append(bucket.bucket_id),
        )
        return Process(delivery=delivery, topic_logs=topic_logs, subscriptions=subscriptions)

    @property
    def now_ms(self) -> int:
        """The clock of all processes."""
        return self.catalog.now_us // 1000

    def get_bucket_list(self, topic_id: TopicId) -> IndexBucketList:
        """See `DelayedIndex`."""
        assert topic_id == self.topic.topic_id
        self.lookups += 1
        return self.buckets

    def subscribe(self, *names: str) -> None:
        """At the beginning."""
        for name in names:
            self.catalog.cursors.create_subscription(self.topic.topic_id, name, latest=False)

    def append(self, *delays: int | None, payload: bytes = b"p") -> list[Position]:
        """One segment of messages; delays are milliseconds from now."""
        times = [None if delay is None else self.now_ms + delay for delay in delays]
        entries = [NewEntry(payload=payload, deliver_at_ms=time) for time in times]
        result = self._writer.topic_logs.append(self.topic, ProducedEntries(entries=entries))
        assert result.first
        first = result.first
        made = {Position(first.ledger_id, first.entry_id + at): time for at, time in enumerate(times)}
        self.messages |= made
        return list(made)

    def acknowledge(self, name: str, positions: Sequence[Position]) -> None:
        """By a process of its own."""
        self._writer.subscriptions.acknowledge(self.topic.topic_id, name, positions=positions)

    def hold(self, name: str, positions: Sequence[Position]) -> None:
        """An open transaction acknowledges."""
        for position in positions:
            self.held.setdefault(name, {}).setdefault(position.ledger_id, BitMap()).add(position.entry_id)

    def abort(self, name: str) -> None:
        """The open transaction is aborted."""
        del self.held[name]
        row = self.catalog.cursors.get_cursor(self.topic.topic_id, name)
        self.catalog.cursor_rows[self.topic.topic_id, name] = replace(row, releases=row.releases + 1)

    def seal(self) -> None:
        """A bucket for what no bucket covers, as far as it is not due."""
        later = {at: due for at, due in self.messages.items() if due and due > self.now_ms}
        wanted = [(due, at) for at, due in later.items() if at > self.buckets.sealed_to]
        if not wanted:
            return
        end = max(self.messages)
        made = self._put(DelayedRows.from_messages(wanted), min(at for _, at in wanted), end)
        self._switch([*self.buckets.buckets, made], end)

    def merge(self, at: int) -> None:
        """Two adjacent buckets become one, without what is past."""
        one, two = self.buckets.buckets[at : at + 2]
        rows = DelayedRows.merge([self.rows(one), self.rows(two)])
        rows = rows.slice(rows.count_due(self.now_ms))
        kept = [bucket for bucket in self.buckets.buckets if bucket not in {one, two}]
        born = [self._put(rows, one.first, two.last)] if len(rows) else []
        self._switch(sorted([*kept, *born], key=lambda bucket: bucket.first), self.buckets.sealed_to)
        self._delete(one, two)

    def drop(self, at: int) -> None:
        """A bucket leaves the list, and its snapshot is deleted."""
        gone = self.buckets.buckets[at]
        self._switch([bucket for bucket in self.buckets.buckets if bucket != gone], self.buckets.sealed_to)
        self._delete(gone)

    def clear(self) -> None:
        """As `delayed clear`."""
        gone = self.buckets.buckets
        self._switch([], EARLIEST)
        self._delete(*gone)

    def trim(self) -> None:
        """The first ledger is deleted, whatever needs it."""
        first = self.catalog.lists[self.topic.topic_id][0]
        rows = self.catalog.segment_rows[first]
        self.catalog.detach(self.topic.topic_id, [first])
        self.objects.delete([segment_key(row.ledger_id, row.number) for row in rows])
        self.messages = {at: due for at, due in self.messages.items() if at.ledger_id != first}

    def rows(self, bucket: IndexBucket) -> DelayedRows:
        """All of a bucket."""
        return DelayedRows.concatenate(
            [self.snapshots.read_segment(bucket, number) for number in range(bucket.segments)]
        )

    def advance(self, ms: int) -> None:
        """Move the clock of all processes."""
        self.catalog.advance(seconds=ms / 1000)

    def _held(self, topic_id: TopicId, name: str) -> Mapping[TransactionId, Mapping[LedgerId, BitMap]]:
        found = self.held.get(name)
        return {TransactionId(0, 1): found} if found else {}

    def _put(self, rows: DelayedRows, first: Position, last: Position) -> IndexBucket:
        return self.snapshots.put(next(self._ids), rows, first, last)

    def _switch(self, buckets: Sequence[IndexBucket], sealed_to: Position) -> None:
        version = self.buckets.version + 1
        self.buckets = replace(self.buckets, version=version, buckets=tuple(buckets), sealed_to=sealed_to)

    def _delete(self, *buckets: IndexBucket) -> None:
        for bucket in buckets:
            self.snapshots.files.pop(bucket.bucket_id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()
