"""Logs of all topics, for one process: appends, rolls and reads."""

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Final

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import CursorState
from logstore.errors import InvalidInput
from logstore.log.entries import Entry, ProducedEntries
from logstore.log.services.batched_appends import Appender, AppendQueue, AppendResult, require_valid_produced_entries
from logstore.log.services.entry_reader import READABLE_COLUMNS, EntryReader
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.log_end_watch import LogEndPoller, Watch
from logstore.log.services.segment_placement import (
    RememberedTopicState,
    Roller,
    RollPolicy,
    RollResult,
    SegmentPlacer,
)
from logstore.log.services.segment_reader import TieredCopyFinder
from logstore.ports.catalog.log import Topic
from logstore.ports.object_storage import ObjectStore
from logstore.positions import Position, TopicId
from logstore.retrying_clock import Clock

_MAX_REMEMBERED_TOPICS: Final = 10_000
"""Maximum number of topics with an append queue. When this number is reached, idle queues are removed."""


class TopicLogs(EntryReader):
    """Logs of all topics. Thread-safe. `close` ends the threads of the object, but does not close `committer`.

    `transactions` returns the frontier of a topic, the last entry that readers may see. An append fails if its segment
    is not registered within `registration_timeout_s`. `tiered` is read if a primary copy is missing or damaged.
    """

    def __init__(
        self,
        *,
        ledgers: MessageLedgers,
        transactions: Transactions,
        objects: ObjectStore,
        committer: GroupCommitter,
        application: str,
        policy: RollPolicy | None = None,
        clock: Clock | None = None,
        registration_timeout_s: float = 600.0,
        tiered: TieredCopyFinder | None = None,
    ) -> None:
        self._policy = policy or RollPolicy()
        clock = clock or Clock()
        super().__init__(ledgers=ledgers, transactions=transactions, objects=objects, clock=clock, tiered=tiered)
        self._roller = Roller(
            ledgers=ledgers, objects=objects, application=application, clock=clock, patience_s=registration_timeout_s
        )
        placer = SegmentPlacer(
            ledgers=ledgers,
            objects=objects,
            committer=committer,
            roller=self._roller,
            policy=self._policy,
            application=application,
            clock=clock,
        )
        self._appender = Appender(
            ledgers=ledgers, placer=placer, clock=clock, registration_timeout_s=registration_timeout_s
        )
        self._log_end_poller = LogEndPoller(ledgers)
        self._queues: dict[TopicId, AppendQueue] = {}
        self._hints: dict[TopicId, tuple[Topic, RememberedTopicState]] = {}
        self._queues_lock = threading.Lock()

    def append(self, topic: Topic, produced: ProducedEntries) -> AppendResult:
        """Store entries of one producer: all of them contiguously in one ledger, or none.

        Entries with sequence ids up to the producer's highest registered sequence id are duplicates. Duplicates are
        acknowledged and not stored again.
        Entries of a transaction become visible when the transaction commits. While the transaction is open, later
        entries of the topic are not visible either.

        Idempotency: a producer with sequence ids may repeat the call. Without sequence ids, entries may be stored
        twice.

        Raises:
            InvalidInput: There are no entries, sequence ids have no producer or are not ascending, or a segment cannot
                hold a value. Nothing was written.
            TransactionNotOpen: The transaction is decided or unknown. Nothing was written.
            SequenceHeld: Another open transaction has entries with sequence ids of the producer. Nothing was written.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: The entries were not stored, after several attempts.
            OutcomeUnknown: The entries may be stored.
        """
        require_valid_produced_entries(produced)
        return self._get_append_queue(topic).append(produced)

    def roll(self, topic: Topic) -> RollResult:
        """Close the last ledger and open the next one. An empty open ledger is kept.

        Idempotency: a crash leaves at most an unlisted row, which the topic's next trim detaches.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: The ledger was not rolled, after several attempts.
        """
        rolled = self._roller.roll(topic.topic_id)
        known_hints = self._hints.get(topic.topic_id)
        if known_hints:  # the next append must not upload to the closed ledger
            known_hints[1].ledger = None
        return rolled

    def roll_if_due(self, topic: Topic) -> bool:
        """Roll the last ledger if it has reached a limit of `policy`. Return whether this call closed a ledger.

        Without this call the ledger of an idle topic stays open, and an open ledger is never deleted
        (apache/pulsar#9136). Raise the errors of `roll`.
        """
        last = self._ledgers.last_ledger(topic.topic_id)
        if last is None or not self._policy.is_due(last, now_us=self._clock.now_us()):
            return False
        return self.roll(topic).closed is not None

    def select_topics_to_roll(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        """Return the topics whose last ledger `roll_if_due` would roll now. This takes one read of the catalog."""
        now_us = self._clock.now_us()
        return frozenset(
            last_ledger.topic_id
            for last_ledger in self._ledgers.last_ledgers(topic_ids)
            if self._policy.is_due(last_ledger, now_us=now_us)
        )

    def read(
        self,
        topic: Topic,
        *,
        max_entries: int,
        from_position: Position | None = None,
        columns: Sequence[str] = READABLE_COLUMNS,
        cursor_state: CursorState | None = None,
        up_to: Position | None = None,
    ) -> list[Entry]:
        """Return at most `max_entries` entries of `scan`. `max_entries` is at least 1. Raise the errors of `scan`."""
        if max_entries < 1:
            raise InvalidInput("max_entries", expected="1 or more", found=max_entries)
        entries = self.scan(topic, from_position=from_position, columns=columns, cursor_state=cursor_state, up_to=up_to)
        return list(islice(entries, max_entries))

    def watch(self, topic: Topic) -> Watch:
        """Return a watch of a topic's log. Create the watch before the first read, and wait only after an empty read.

        Example:
            ```python
            watch = topic_logs.watch(topic)
            while True:
                state = subscriptions.read_state(topic.topic_id, name)
                entries = topic_logs.read(topic, max_entries=100, cursor_state=state)
                if not entries:
                    watch.wait(timeout_s=30)
            ```
        """
        return Watch(self._log_end_poller, topic.topic_id)

    def reload_last_ledgers(self, is_selected: Callable[[Topic], bool]) -> int:
        """Reload the last ledgers of remembered topics for which `is_selected` is true. Return the number of topics.

        Appends may continue meanwhile. After an error, the last ledgers that were not reloaded are forgotten.
        """
        with self._queues_lock:
            selected = [(topic, hints) for topic, hints in self._hints.values() if is_selected(topic)]
        for _, hints in selected:
            hints.ledger = None
        epoch = self._ledgers.catalog_epoch() if selected else 0
        for topic, hints in selected:
            hints.epoch, hints.ledger = epoch, self._ledgers.last_ledger(topic.topic_id)
        return len(selected)

    def close(self) -> None:
        """End the threads that fetch segments ahead, and wake waiting readers. Running appends continue."""
        self._log_end_poller.close()
        super().close()

    def _get_append_queue(self, topic: Topic) -> AppendQueue:
        with self._queues_lock:
            queue = self._queues.get(topic.topic_id)
            if queue is None:
                if len(self._queues) >= _MAX_REMEMBERED_TOPICS:
                    self._queues = {topic_id: queue for topic_id, queue in self._queues.items() if not queue.idle}
                    self._hints = {topic_id: self._hints[topic_id] for topic_id in self._queues}
                hints = RememberedTopicState()
                self._hints[topic.topic_id] = (topic, hints)
                queue = AppendQueue(partial(self._appender.append, topic, hints))
                self._queues[topic.topic_id] = queue
            return queue
