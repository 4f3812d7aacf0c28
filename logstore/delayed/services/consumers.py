"""Delivery to consumers: delayed messages when they are due, and all other messages in the order of the log.

A process has a tracker for each topic with open consumers, and a dispatcher for each subscription with open consumers.
Trackers and dispatchers only read the stored index, so the creation or closing of a consumer does not change the index
(apache/pulsar#19801).

Source: PIP-195.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import CursorState
from logstore.cursors.services.subscriptions import Subscriptions
from logstore.delayed.services.dispatcher import ConsumerHolding, Dispatcher
from logstore.delayed.services.shared_tracker import LostBucketAlarm, MeasuredSnapshotReader, SharedTracker
from logstore.delayed.tracker import IndexSnapshotReader
from logstore.errors import AcknowledgementStale, InvalidInput, PreconditionFailed
from logstore.log.entries import Entry
from logstore.log.services import READABLE_COLUMNS, TopicLogs
from logstore.log.services.log_end_watch import Watch
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.log import AcknowledgeResult, Topic
from logstore.positions import EARLIEST, Position, TopicId
from logstore.retrying_clock import Clock
from logstore.transactions.transaction_ids_and_states import TransactionId


class Consumer:
    """Consumer of one subscription, or of all messages of a topic. Close a consumer after use.

    Consumers of a subscription in one process share the messages: each message goes to one consumer. A message may go
    to consumers in several processes, because processes do not coordinate. To acknowledge single messages, call
    `Subscriptions.acknowledge`.
    """

    def __init__(
        self,
        delivery: "MessageDelivery",
        topic: Topic,
        dispatcher: Dispatcher,
        holding: ConsumerHolding,
        create_watch: Callable[[], Watch],
        *,
        subscription: str | None,
    ) -> None:
        self._subscription = subscription  # None if the consumer has no cursor
        self._delivery, self._topic, self._dispatcher, self._holding = delivery, topic, dispatcher, holding
        self._create_watch = create_watch
        self._watch: Watch | None = None
        self._lock = threading.Lock()  # for `receive` and `close`; locked before the dispatcher's `receiving`
        self._is_closed = False

    def receive(self, max_entries: int) -> list[Entry]:
        """Return at most `max_entries` messages that may be delivered now. Do not wait for messages.

        Messages that were given back come first. Due messages of the index follow, by (delivery time, ledger, entry).
        Then come messages in the order of the log. No message comes before its delivery time.

        A consumer of this process receives a message again only in three cases: `nack` or `close` has given the message
        back, a seek has moved the subscription back, or the transaction that acknowledged the message was aborted.
        After an abort, call `nack` for messages that the transaction acknowledged by `Subscriptions.acknowledge`.
        Without `nack`, such a message comes again only if a consumer called `receive` while the transaction was open.

        Raises:
            InvalidInput: `max_entries` is below 1.
            UnknownObject: The subscription or the topic does not exist any more.
            PreconditionFailed: The consumer is closed.
            MissingData, CorruptData: The log or the cursor is damaged. No message was delivered.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer. No message was delivered.
        """
        if max_entries < 1:
            raise InvalidInput("max_entries", expected="1 or more", found=max_entries)
        with self._lock:
            self._require_open()
            with self._dispatcher.receiving:
                return self._dispatcher.receive_messages(self._holding, max_entries)

    def acknowledge_to(self, position: Position, *, txn: TransactionId | None = None) -> AcknowledgeResult:
        """Acknowledge all messages up to `position`, inclusive.

        If `txn` is aborted, consumers receive the messages again.

        Raises:
            AcknowledgementStale: Since the subscription's last release, this consumer has not received every
                unacknowledged message up to the position. Acknowledge single messages instead.
            PreconditionFailed: The consumer is closed, has no subscription, or was created with `from_position`.
            SextonError: `Subscriptions.acknowledge` raised the error.
        """
        with self._lock:
            self._require_open()
            if self._subscription is None:
                found = "one without a subscription, or that begins at a position of its own"
                raise PreconditionFailed(
                    f"topic {self._topic.name}: expected a consumer of a subscription, found {found}"
                )
            releases = self._require_received(self._subscription, up_to=position)
            # Other consumers may receive during the commit. The commit checks the releases again.
            acknowledged = self._delivery.subscriptions.acknowledge(
                self._topic.topic_id, self._subscription, up_to=position, releases=releases, txn=txn
            )
            with self._dispatcher.receiving:
                self._dispatcher.record_acknowledged(self._holding, position)
            return acknowledged

    def _require_received(self, subscription: str, *, up_to: Position) -> int:
        with self._dispatcher.receiving:
            gap, releases = self._dispatcher.first_unreceived_position(self._holding), self._dispatcher.releases
        if gap <= up_to:
            raise AcknowledgementStale(
                subscription,
                up_to=str(up_to),
                expected="everything up to there to have been received since messages were last given back",
                found=f"that {gap} was not",
                advice="Acknowledge single messages, or give back what was received and receive it again.",
            )
        return releases

    def cumulative_bounds(self) -> tuple[int, Position] | None:
        """Return the subscription's number of releases, and the first position that `acknowledge_to` would refuse.

        The result is `None` if the consumer has no subscription, or was created with `from_position`.
        """
        if self._subscription is None:
            return None
        with self._lock, self._dispatcher.receiving:
            return self._dispatcher.releases, self._dispatcher.first_unreceived_position(self._holding)

    def _require_open(self) -> None:
        if self._is_closed:
            raise PreconditionFailed(f"topic {self._topic.name}: the consumer is closed")

    def nack(self, positions: Sequence[Position]) -> None:
        """Give messages back, so that consumers get them first. Ignore positions that this consumer does not hold."""
        self._dispatcher.give_back(self._holding, positions)

    def wait(self, timeout_s: float) -> None:
        """Wait until a message is appended to the log or becomes due, but at most `timeout_s` seconds.

        Call `receive` first, and wait only if `receive` returned nothing. The first `wait` returns at once, because it
        only records the end of the log. The wait does not end when another consumer gives a message back. Raise
        `StoreUnavailable` or `CatalogBusy` if the catalog does not answer the first `wait`.
        """
        if self._watch is None:
            self._watch = self._create_watch()
        else:
            self._watch.wait(min(timeout_s, self._dispatcher.seconds_until_due()))

    def close(self) -> None:
        """Give back all messages that this consumer has received and not acknowledged. Idempotent.

        The call waits for a running `receive` of this consumer, but not for other consumers.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._delivery.remove_consumer(self._topic, self._dispatcher, self._holding)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MessageDelivery:
    """Creator of the consumers of one process. Thread-safe.

    Messages are due by `clock`. Messages may be delivered up to `tolerance_ms` before their delivery time.
    `alarm` is called for each listed index bucket that cannot be read.
    """

    def __init__(
        self,
        *,
        index: DelayedIndex,
        snapshots: IndexSnapshotReader,
        topic_logs: TopicLogs,
        subscriptions: Subscriptions,
        transactions: Transactions,
        clock: Clock | None = None,
        tolerance_ms: int = 0,
        alarm: LostBucketAlarm = lambda _topic, _bucket: None,
    ) -> None:
        self._index, self.snapshots = index, MeasuredSnapshotReader(snapshots)
        """Snapshot reader that all trackers share. It counts and times all reads."""
        self._topic_logs, self.subscriptions, self._transactions = topic_logs, subscriptions, transactions
        self._clock, self._tolerance_ms = clock or Clock(), tolerance_ms
        self._alarm = alarm
        self._lock = threading.Lock()
        self._trackers: dict[TopicId, SharedTracker] = {}
        self._dispatchers: dict[tuple[TopicId, str], Dispatcher] = {}

    def create_consumer(
        self,
        topic: Topic,
        subscription: str | None = None,
        *,
        from_position: Position | None = None,
        columns: Sequence[str] = READABLE_COLUMNS,
    ) -> Consumer:
        """Return a new consumer. Nothing is read before the consumer's first `receive`.

        The consumer leaves out messages that `subscription` has acknowledged. Without `subscription`, the consumer
        leaves out no message. A consumer with `from_position` begins at this position, and shares its messages with no
        other consumer. Without `from_position`, raise `InvalidInput` if other consumers of the subscription in this
        process have other `columns`.
        """
        with self._lock:
            shared = self._get_or_create_tracker(topic)
            if subscription is not None and from_position is None:
                existing = self._dispatchers.get((topic.topic_id, subscription))
                dispatcher = existing or self._create_dispatcher(topic, shared, subscription, None, columns)
                if set(dispatcher.columns) != set(columns):
                    others = f"{', '.join(dispatcher.columns)}, as the subscription's other consumers here"
                    raise InvalidInput("columns", expected=others, found=", ".join(columns))
                self._dispatchers[topic.topic_id, subscription] = dispatcher
                cursor = subscription
            else:
                dispatcher = self._create_dispatcher(topic, shared, subscription, from_position, columns)
                cursor = None
            with shared.lock:
                create_watch = partial(self._topic_logs.watch, topic)
                return Consumer(self, topic, dispatcher, dispatcher.add_consumer(), create_watch, subscription=cursor)

    @property
    def trackers_memory_bytes(self) -> int:
        total = 0
        with self._lock:
            for shared in self._trackers.values():
                with shared.lock:
                    total += shared.tracker.memory_bytes
        return total

    def remove_consumer(self, topic: Topic, dispatcher: Dispatcher, holding: ConsumerHolding) -> None:
        """Remove a consumer. Drop `dispatcher` after its last consumer, and the tracker after its last dispatcher."""
        with self._lock:
            shared = self._trackers[topic.topic_id]
            with shared.lock:
                dispatcher.remove_consumer(holding)
                if dispatcher.holdings:
                    return
                shared.readers.remove(dispatcher)
                if not shared.readers:
                    del self._trackers[topic.topic_id]
            for key in [key for key, other in self._dispatchers.items() if other is dispatcher]:
                del self._dispatchers[key]
            dispatcher.close_scan()

    def _get_or_create_tracker(self, topic: Topic) -> SharedTracker:
        if topic.topic_id not in self._trackers:
            self._trackers[topic.topic_id] = SharedTracker(
                topic,
                index=self._index,
                snapshots=self.snapshots,
                clock=self._clock,
                tolerance_ms=self._tolerance_ms,
                alarm=self._alarm,
            )
        return self._trackers[topic.topic_id]

    def _create_dispatcher(
        self,
        topic: Topic,
        shared: SharedTracker,
        subscription: str | None,
        start: Position | None,
        columns: Sequence[str],
    ) -> Dispatcher:
        def read_subscription() -> StoredCursor:
            if subscription is None:
                stored = StoredCursor(name="", state=CursorState(EARLIEST), created_us=0)
            else:
                stored = self.subscriptions.get_for_consumer(topic.topic_id, subscription)
            if start is None:
                return stored
            mark_delete = max(stored.state.mark_delete, Position(start.ledger_id, start.entry_id - 1))
            return replace(stored, state=replace(stored.state, mark_delete=mark_delete))

        dispatcher = Dispatcher(
            topic,
            shared,
            read_subscription=read_subscription,
            topic_logs=self._topic_logs,
            transactions=self._transactions,
            columns=columns,
        )
        with shared.lock:
            shared.readers.append(dispatcher)
        return dispatcher
