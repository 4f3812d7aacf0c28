"""Promise 6: delayed messages in buckets, and a worker that is killed while it merges two of them."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import ServiceFailed
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.names import TopicName
from logstore.ports.catalog import Topic
from logstore.positions import Position
from workers.assembly.adapters import open_log
from workers.client import Sexton
from workers.demo.auditor import Auditor
from workers.demo.report import PromiseRow
from workers.demo.waiting import happens
from workers.settings import Settings

_PARTS: Final = 3
MOST_BUCKETS: Final = _PARTS - 1
"""That a topic of the demo may have: the last part makes one too many, and a merge begins."""

DEATH: Final = f"catalog.switch_buckets.before=kill@{_PARTS + 1}"
"""The worker that has sealed all parts dies when it has stored what it merged, before that is in the list."""

_SUBSCRIPTION: Final = "reminders"
_SOON, _LATER, _AT_ONCE = 20, 5, 5  # messages of a part: due within the demo, due behind it, and not delayed
_SOON_MS, _SPREAD_MS, _LATER_MS = 5_000, 6_000, 3_600_000
_MOST: Final = 100  # entries of one call


@dataclass(slots=True)
class Delivered:
    """The fate of the messages."""

    topic: Topic
    received: list[tuple[Position, int]] = field(default_factory=list)  # and when, in milliseconds since 1970
    ended_ms: int = 0  # when no consumer received any more


class Delaying:
    """A topic with delayed messages, and one consumer of it at a time, which acknowledges what it gets."""

    def __init__(self, settings: Settings) -> None:
        """Make the topic, and begin to consume."""
        self._settings = settings
        self._began_ms = time.time_ns() // 1_000_000
        with open_log(settings) as log:
            name = TopicName.parse("persistent://demo/shop/reminders").encoded
            self.delivered = Delivered(topic=log.catalog.topics.create(name, RetentionPolicy()))
            log.subscriptions.subscribe(self.delivered.topic.topic_id, _SUBSCRIPTION, latest=False)
        self._pool = ThreadPoolExecutor(1)
        self._consume()

    async def seal(self, died: Callable[[], bool]) -> None:
        """Append and seal part after part, until the worker has died in the merge that the last one begins.

        Raises:
            ServiceFailed: It died sooner, or not at all.
        """
        async with await Sexton.connect(self._settings) as sexton:
            for part in range(_PARTS):
                await asyncio.to_thread(self._append, part)
                sealing = await sexton.seal_buckets(self.delivered.topic, reason="demo", actor="sexton demo")
                if part < _PARTS - 1:
                    await _unless(died, asyncio.ensure_future(sealing.result()))
        if not await happens(died):
            raise ServiceFailed("worker-2", "it did not die in the merge of two buckets", advice="read its log")

    def another_consumer(self) -> None:
        """Let another one go on, which knows what was acknowledged and nothing else."""
        self._end_consumer()
        self._consume()

    async def end(self) -> None:
        """Wait for the merge, and for all that is due within the demo."""
        async with await Sexton.connect(self._settings) as sexton:
            await (await sexton.merge_buckets(self.delivered.topic, reason="demo", actor="sexton demo")).result()
        wanted = _PARTS * (_SOON + _AT_ONCE)
        received, consumer = self.delivered.received, self._consumer
        await happens(lambda: len(received) >= wanted or consumer.done())
        self._end_consumer()
        self.delivered.ended_ms = time.time_ns() // 1_000_000

    def _append(self, part: int) -> None:
        """In an order that is not that of their times."""
        soon = [self._began_ms + _SOON_MS + (at * 7 + part) % _SOON * _SPREAD_MS // _SOON for at in range(_SOON)]
        times = [*soon, *([None] * _AT_ONCE), *(self._began_ms + _LATER_MS + at for at in range(_LATER))]
        entries = [NewEntry(payload=b"%d" % part, deliver_at_ms=one) for one in times]
        with open_log(self._settings) as log:
            log.managed.append(self.delivered.topic, ProducedEntries(entries=entries))

    def _consume(self) -> None:
        self._ended = threading.Event()
        self._consumer: Future[None] = self._pool.submit(self._receive, self._ended)

    def _receive(self, ended: threading.Event) -> None:
        with (
            open_log(self._settings) as log,
            log.delivery.consumer(self.delivered.topic, _SUBSCRIPTION) as consumer,
        ):
            while not ended.is_set():
                found = [entry.position for entry in consumer.receive(_MOST)]
                now_ms = time.time_ns() // 1_000_000
                self.delivered.received.extend((position, now_ms) for position in found)
                if found:
                    topic_id = self.delivered.topic.topic_id
                    log.subscriptions.acknowledge(topic_id, _SUBSCRIPTION, positions=tuple(found))
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


async def _unless(died: Callable[[], bool], sealed: "asyncio.Future[object]") -> None:
    while not sealed.done():
        if died():
            sealed.cancel()
            raise ServiceFailed("worker-2", "it died before there were two buckets to merge", advice="read its log")
        await asyncio.sleep(0.05)
    sealed.result()


def check_delayed(auditor: Auditor, done: Delivered) -> PromiseRow:
    """Each message at its time and once; each that waits is in one bucket; the sources of the merge are retired."""
    times = auditor.delivery_times(done.topic.topic_id)
    buckets, retired = auditor.buckets(done.topic.topic_id), auditor.retired_buckets(done.topic.topic_id)
    counts = Counter((int(position.ledger_id), position.entry_id) for position, _ in done.received)
    waiting = Counter(held for bucket in buckets.values() for held in bucket)
    wrong = [f"entry {held} was delivered {count} times" for held, count in counts.items() if count > 1]
    wrong += [
        f"entry {position} was delivered {early} ms early"
        for position, at_ms in done.received
        if (early := (times[int(position.ledger_id), position.entry_id] or 0) - at_ms) > 0
    ]
    for held, due_ms in times.items():
        if (due_ms or 0) <= done.ended_ms:
            wrong += [] if held in counts else [f"entry {held} was never delivered"]
        elif waiting[held] != 1:
            wrong.append(f"entry {held} waits in {waiting[held]} buckets")
    merged = len(buckets) <= MOST_BUCKETS and len(retired) > _PARTS - MOST_BUCKETS
    wrong += [] if merged else [f"{len(buckets)} buckets and {len(retired)} retired ones after a merge of two"]
    wrong += [f"bucket {one} is listed and retired" for one in retired & buckets.keys()]
    seen = (
        f"worker killed in the merge of two buckets; {len(counts)} messages delivered once, none early;"
        f" {len(times) - len(counts)} wait, each in one of {len(buckets)} buckets"
    )
    return PromiseRow.of("6 no delayed message lost or early", wrong, seen)
