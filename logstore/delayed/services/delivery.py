"""Delayed delivery: consumers that get messages when their time has come, and all others as they stand in the log.

A process has one tracker a topic, which all subscriptions share, and one place of reading a subscription, which its
consumers share. All of it is made when the first consumer comes and goes with the last one; the durable index is only
read, so consumers that come and go change nothing of it (apache/pulsar#19801).

Source: PIP-195.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from logstore.clock import Clock
from logstore.cursors.services.subscriptions import Subscription, Subscriptions
from logstore.cursors.state import CursorState
from logstore.delayed.buckets import Bucket
from logstore.delayed.services.dispatch import Dispatcher, Holding
from logstore.delayed.services.shared_tracker import Alarm, MeasuredSegments, SharedTracker
from logstore.delayed.tracker import SnapshotReader
from logstore.errors import AcknowledgementStale, InvalidInput, PreconditionFailed
from logstore.log.entries import Entry
from logstore.log.services import READABLE, ManagedLedger
from logstore.log.services.arrivals import Watch
from logstore.ports.catalog import Acknowledged, DelayedIndex, Topic, Transactions
from logstore.positions import EARLIEST, Position, TopicId
from logstore.transactions.transactions import TransactionId


def _silent(topic: Topic, bucket: Bucket) -> None:
    """An alarm is logged in any case."""


class Consumer:
    """Gets messages of one subscription, or all messages of a topic without one. Close it.

    Consumers of a subscription in one process share its messages: each goes to one of them. Those of other processes
    know nothing of each other. Acknowledge single messages with `Subscriptions.acknowledge`, and everything up to one
    with `acknowledge_to`; in a transaction or not.
    """

    def __init__(
        self,
        delivery: "Delivery",
        topic: Topic,
        dispatcher: Dispatcher,
        holding: Holding,
        watching: Callable[[], Watch],
        *,
        subscription: str | None,
    ) -> None:
        """See `Delivery.consumer`, which makes them; a consumer that begins at a position of its own has no cursor."""
        self._subscription = subscription
        self._delivery, self._topic, self._dispatcher, self._holding = delivery, topic, dispatcher, holding
        self._watching = watching
        self._watch: Watch | None = None
        self._using = threading.Lock()  # held while it receives or closes, and before the dispatcher's `receiving`
        self._closed = False

    def receive(self, max_entries: int) -> list[Entry]:
        """Messages that may be delivered now, at most `max_entries`; none if there are none, without waiting.

        First what the index found to be due, in order of (delivery time, ledger, entry), then the log, in its order.
        No message comes before its delivery time. What was received is not received again, here or by another consumer
        of this process, unless it is given back: by `nack` or by closing. Where a transaction that acknowledged it by
        `Subscriptions.acknowledge` was aborted, give it back by `nack`: here that is only seen if a consumer received
        while the transaction held it.
        What is acknowledged never comes again, but after a seek.

        Raises:
            InvalidInput: A limit below 1.
            UnknownObject: No such subscription, or no such topic any more.
            PreconditionFailed: The consumer is closed.
            MissingData, CorruptData: Of the log or the cursor; nothing was handed out.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer; nothing was handed out.
        """
        if max_entries < 1:
            raise InvalidInput("max_entries", expected="1 or more", found=max_entries)
        with self._using:
            self._require_open()
            with self._dispatcher.receiving:
                return self._dispatcher.receive(self._holding, max_entries)

    def acknowledge_to(self, position: Position, *, txn: TransactionId | None = None) -> Acknowledged:
        """Acknowledge everything up to and including the message, if this consumer has received all of it.

        What a transaction acknowledges so is received again if the transaction is aborted.

        Raises:
            AcknowledgementStale: A message up to there is not acknowledged and was not received here, was given back,
                or was received before the subscription gave messages back. Acknowledge single messages instead.
            PreconditionFailed: The consumer is closed, has no subscription, or begins at a position of its own.
            And what `Subscriptions.acknowledge` raises.
        """
        with self._using:
            self._require_open()
            if self._subscription is None:
                found = "one without a subscription, or that begins at a position of its own"
                raise PreconditionFailed(
                    f"topic {self._topic.name}: expected a consumer of a subscription, found {found}"
                )
            releases = self._require_received(self._subscription, up_to=position)
            # The subscription's other consumers receive during the commit, which checks the releases again.
            answer = self._delivery.subscriptions.acknowledge(
                self._topic.topic_id, self._subscription, up_to=position, releases=releases, txn=txn
            )
            with self._dispatcher.receiving:
                self._dispatcher.acknowledged_to(self._holding, position)
            return answer

    def _require_received(self, subscription: str, *, up_to: Position) -> int:
        """Return the releases with which this consumer has received everything up to the position."""
        with self._dispatcher.receiving:
            gap, releases = self._dispatcher.first_gap(self._holding), self._dispatcher.releases
        if gap <= up_to:
            raise AcknowledgementStale(
                subscription,
                up_to=str(up_to),
                expected="everything up to there to have been received since messages were last given back",
                found=f"that {gap} was not",
                advice="Acknowledge single messages, or give back what was received and receive it again.",
            )
        return releases

    def cumulative(self) -> tuple[int, Position] | None:
        """Return the releases that `up_to` needs, and the first position that it must stay before.

        None: this consumer has no subscription, or begins at a position of its own.
        """
        if self._subscription is None:
            return None
        with self._using, self._dispatcher.receiving:
            return self._dispatcher.releases, self._dispatcher.first_gap(self._holding)

    def _require_open(self) -> None:
        if self._closed:
            raise PreconditionFailed(f"topic {self._topic.name}: the consumer is closed")

    def nack(self, positions: Sequence[Position]) -> None:
        """Give messages back: they are delivered again, first of all. One that was not received here is left alone."""
        self._dispatcher.give_back(self._holding, positions)

    def wait(self, timeout_s: float) -> None:
        """Wait until there may be something to receive: a message came to the log, or the time of one has come.

        So receive first and wait where that found nothing. The first wait ends at once, because no consumer has looked
        at the log before. What another consumer gives back meanwhile is met when the time is up.

        Args:
            timeout_s: The longest wait.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog did not answer at the first wait.
        """
        if self._watch is None:
            self._watch = self._watching()
        else:
            self._watch.wait(min(timeout_s, self._dispatcher.idle_s()))

    def close(self) -> None:
        """Give back all that was received and is not acknowledged. Closing again changes nothing.

        It waits until this consumer has received, and for no other one.
        """
        with self._using:
            if not self._closed:
                self._closed = True
                self._delivery.leave(self._topic, self._dispatcher, self._holding)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Delivery:
    """Consumers of one process. Threads share it."""

    def __init__(
        self,
        *,
        index: DelayedIndex,
        segments: SnapshotReader,
        managed: ManagedLedger,
        subscriptions: Subscriptions,
        transactions: Transactions,
        clock: Clock | None = None,
        tolerance_ms: int = 0,
        alarm: Alarm = _silent,
    ) -> None:
        """Deliver what the log holds.

        Args:
            index: The catalog's lists of buckets.
            segments: Where snapshots of buckets are read.
            managed: The log.
            subscriptions: What was acknowledged.
            transactions: How far readers may see.
            clock: Its time decides what is due.
            tolerance_ms: A message may be delivered so much before its time.
            alarm: Told of each bucket that is listed and cannot be read.
        """
        self._index, self.loading = index, MeasuredSegments(segments)
        """What all trackers have loaded, and how long that took."""
        self._managed, self.subscriptions, self._transactions = managed, subscriptions, transactions
        self._clock, self._tolerance_ms = clock or Clock(), tolerance_ms
        self._alarm = alarm
        self._lock = threading.Lock()
        self._trackers: dict[TopicId, SharedTracker] = {}
        self._dispatchers: dict[tuple[TopicId, str], Dispatcher] = {}

    def consumer(
        self,
        topic: Topic,
        subscription: str | None = None,
        *,
        from_position: Position | None = None,
        columns: Sequence[str] = READABLE,
    ) -> Consumer:
        """A consumer; nothing is read until it receives.

        Args:
            topic: Whose messages.
            subscription: Leave out what it has acknowledged. None: there is none, and nothing counts as acknowledged.
            from_position: Nothing before it is wanted; such a consumer shares with no other. None: all that there is.
            columns: What is fetched of messages; consumers of a subscription in one process want the same.

        Raises:
            InvalidInput: Another consumer of the subscription here wants other columns.
        """
        with self._lock:
            shared = self._tracker(topic)
            if subscription is not None and from_position is None:
                known = self._dispatchers.get((topic.topic_id, subscription))
                dispatcher = known or self._dispatcher(topic, shared, subscription, None, columns)
                if set(dispatcher.columns) != set(columns):
                    others = f"{', '.join(dispatcher.columns)}, as the subscription's other consumers here"
                    raise InvalidInput("columns", expected=others, found=", ".join(columns))
                self._dispatchers[topic.topic_id, subscription] = dispatcher
                acknowledging = subscription
            else:
                dispatcher = self._dispatcher(topic, shared, subscription, from_position, columns)
                acknowledging = None
            with shared.lock:
                watching = partial(self._managed.watch, topic)
                return Consumer(self, topic, dispatcher, dispatcher.join(), watching, subscription=acknowledging)

    @property
    def memory_bytes(self) -> int:
        """What all trackers hold in memory, about."""
        total = 0
        with self._lock:
            for shared in self._trackers.values():
                with shared.lock:
                    total += shared.tracker.memory_bytes
        return total

    def leave(self, topic: Topic, dispatcher: Dispatcher, holding: Holding) -> None:
        """For `Consumer.close`, which keeps the consumer from receiving: forget what is not used any more."""
        with self._lock:
            shared = self._trackers[topic.topic_id]
            with shared.lock:
                dispatcher.forget(holding)
                if dispatcher.holdings:
                    return
                shared.readings.remove(dispatcher)
                if not shared.readings:
                    del self._trackers[topic.topic_id]
            for key in [key for key, known in self._dispatchers.items() if known is dispatcher]:
                del self._dispatchers[key]
            dispatcher.end()

    def _tracker(self, topic: Topic) -> SharedTracker:
        if topic.topic_id not in self._trackers:
            self._trackers[topic.topic_id] = SharedTracker(
                topic,
                index=self._index,
                segments=self.loading,
                clock=self._clock,
                tolerance_ms=self._tolerance_ms,
                alarm=self._alarm,
            )
        return self._trackers[topic.topic_id]

    def _dispatcher(
        self,
        topic: Topic,
        shared: SharedTracker,
        subscription: str | None,
        start: Position | None,
        columns: Sequence[str],
    ) -> Dispatcher:
        def state() -> Subscription:
            if subscription is None:
                told = Subscription(name="", state=CursorState(EARLIEST), created_us=0)
            else:
                told = self.subscriptions.consuming(topic.topic_id, subscription)
            if start is None:
                return told
            mark = max(told.state.mark_delete, Position(start.ledger_id, start.entry_id - 1))
            return replace(told, state=replace(told.state, mark_delete=mark))

        made = Dispatcher(
            topic,
            shared,
            state=state,
            managed=self._managed,
            transactions=self._transactions,
            columns=columns,
        )
        with shared.lock:
            shared.readings.append(made)
        return made
