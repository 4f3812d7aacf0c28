"""Promise 6: delayed messages in index buckets, and a worker that is killed while it merges two index buckets."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from logstore.errors import ServiceFailed
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.log import Topic
from logstore.positions import Position
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton
from workers.demo.direct_store_access import DirectStoreAccess
from workers.demo.promise_report import PromiseResult, create_topic_with_subscriptions
from workers.demo.temporary_homes import wait_until
from workers.settings import Settings

_PART_COUNT: Final = 3
MAX_BUCKETS: Final = _PART_COUNT - 1
"""Setting `delayed_buckets` of the demo. The demo seals one index bucket more, so that a merge starts."""

DEATH_IN_MERGE: Final = f"catalog.switch_buckets.before=kill@{_PART_COUNT + 1}"
"""Failpoint: the worker dies in the merge, after it has stored the merged index bucket and before the switch."""

_SUBSCRIPTION: Final = "reminders"
# Messages that are appended between two seals: due during the demo, due later, and not delayed.
_DUE_COUNT, _LATER_COUNT, _UNDELAYED_COUNT = 20, 5, 5
_FIRST_DUE_MS, _DUE_SPREAD_MS, _LATER_MS = 5_000, 6_000, 3_600_000
_MAX_ENTRIES_PER_RECEIVE: Final = 100


@dataclass(slots=True)
class ReceivedDelayedMessages:
    topic: Topic
    received: list[tuple[Position, int]] = field(default_factory=list)  # position, and time in milliseconds since 1970
    ended_ms: int = 0  # time at which the last consumer ended


class DelayedTopic:
    """Topic with delayed messages, and a consumer that acknowledges every entry it receives."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._began_ms = time.time_ns() // 1_000_000
        with open_log_store(settings) as log:
            topic = create_topic_with_subscriptions(log, "reminders", _SUBSCRIPTION)
            self.received_messages = ReceivedDelayedMessages(topic=topic)
        self._pool = ThreadPoolExecutor(1)
        self._start_consumer()

    async def write_buckets_and_await_worker_death(self, has_died: Callable[[], bool]) -> None:
        async with await Sexton.connect(self._settings) as sexton:
            for part in range(_PART_COUNT):
                await asyncio.to_thread(self._append_part, part)
                sealing = await sexton.seal_buckets(self.received_messages.topic, reason="demo", actor="sexton demo")
                if part < _PART_COUNT - 1:
                    await _await_seal_or_raise_if_worker_dies(asyncio.ensure_future(sealing.result()), has_died)
        if not await wait_until(has_died):
            raise ServiceFailed("worker-2", "it did not die in the merge of two buckets", advice="read its log")

    def replace_consumer(self) -> None:
        """End the consumer and start a new one, which knows nothing but the acknowledgements in the catalog."""
        self._end_consumer()
        self._start_consumer()

    async def merge_and_await_deliveries(self) -> None:
        async with await Sexton.connect(self._settings) as sexton:
            await (
                await sexton.merge_buckets(self.received_messages.topic, reason="demo", actor="sexton demo")
            ).result()
        expected_count = _PART_COUNT * (_DUE_COUNT + _UNDELAYED_COUNT)
        received, consumer = self.received_messages.received, self._consumer
        await wait_until(lambda: len(received) >= expected_count or consumer.done())
        self._end_consumer()
        self.received_messages.ended_ms = time.time_ns() // 1_000_000

    def _append_part(self, part: int) -> None:
        due_times = [
            self._began_ms + _FIRST_DUE_MS + (index * 7 + part) % _DUE_COUNT * _DUE_SPREAD_MS // _DUE_COUNT
            for index in range(_DUE_COUNT)
        ]
        later_times = [self._began_ms + _LATER_MS + index for index in range(_LATER_COUNT)]
        times = [*due_times, *([None] * _UNDELAYED_COUNT), *later_times]
        entries = [NewEntry(payload=b"%d" % part, deliver_at_ms=time_ms) for time_ms in times]
        with open_log_store(self._settings) as log:
            log.topic_logs.append(self.received_messages.topic, ProducedEntries(entries=entries))

    def _start_consumer(self) -> None:
        self._ended = threading.Event()
        self._consumer: Future[None] = self._pool.submit(self._receive_and_acknowledge_until_ended, self._ended)

    def _receive_and_acknowledge_until_ended(self, ended: threading.Event) -> None:
        with (
            open_log_store(self._settings) as log,
            log.delivery.create_consumer(self.received_messages.topic, _SUBSCRIPTION) as consumer,
        ):
            while not ended.is_set():
                positions = [entry.position for entry in consumer.receive(_MAX_ENTRIES_PER_RECEIVE)]
                now_ms = time.time_ns() // 1_000_000
                self.received_messages.received.extend((position, now_ms) for position in positions)
                if positions:
                    topic_id = self.received_messages.topic.topic_id
                    log.subscriptions.acknowledge(topic_id, _SUBSCRIPTION, positions=tuple(positions))
                else:
                    consumer.wait(0.2)

    def _end_consumer(self) -> None:
        self._ended.set()
        self._consumer.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._pool.shutdown()


async def _await_seal_or_raise_if_worker_dies(sealed: "asyncio.Future[object]", has_died: Callable[[], bool]) -> None:
    while not sealed.done():
        if has_died():
            sealed.cancel()
            raise ServiceFailed("worker-2", "it died before there were two buckets to merge", advice="read its log")
        await asyncio.sleep(0.05)
    sealed.result()


def check_delayed_messages(
    store_access: DirectStoreAccess, received_messages: ReceivedDelayedMessages
) -> PromiseResult:
    """Check deliveries, the index buckets of waiting messages, and the deletion of merged index buckets."""
    due_ms_by_entry = store_access.read_delivery_times_ms(received_messages.topic.topic_id)
    buckets = store_access.read_index_buckets(received_messages.topic.topic_id)
    retired_buckets = store_access.read_retired_buckets(received_messages.topic.topic_id)
    deliveries = Counter((int(position.ledger_id), position.entry_id) for position, _ in received_messages.received)
    waiting = Counter(entry for entries in buckets.values() for entry in entries)
    problems = [f"entry {entry} was delivered {count} times" for entry, count in deliveries.items() if count > 1]
    problems += [
        f"entry {position} was delivered {early_ms} ms early"
        for position, at_ms in received_messages.received
        if (early_ms := (due_ms_by_entry[int(position.ledger_id), position.entry_id] or 0) - at_ms) > 0
    ]
    for entry, due_ms in due_ms_by_entry.items():
        if (due_ms or 0) <= received_messages.ended_ms:
            problems += [] if entry in deliveries else [f"entry {entry} was never delivered"]
        elif waiting[entry] != 1:
            problems.append(f"entry {entry} waits in {waiting[entry]} buckets")
    is_merged = len(buckets) <= MAX_BUCKETS and len(retired_buckets) > _PART_COUNT - MAX_BUCKETS
    if not is_merged:
        problems.append(f"{len(buckets)} buckets and {len(retired_buckets)} retired ones after a merge of two")
    problems += [f"bucket {bucket} is listed and retired" for bucket in retired_buckets & buckets.keys()]
    evidence = (
        f"worker killed in the merge of two buckets; {len(deliveries)} messages delivered once, none early;"
        f" {len(due_ms_by_entry) - len(deliveries)} wait, each in one of {len(buckets)} buckets"
    )
    return PromiseResult.from_problems("6 no delayed message lost or early", problems, evidence)
