"""Delayed delivery over a real object store and a real database: seals, merges, restarts, a snapshot that is lost."""

import random
from collections.abc import Iterator

import pytest

from logstore.delayed.services.consumers import Consumer, MessageDelivery
from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.log import Topic
from logstore.positions import Position
from logstore.retrying_clock import Clock
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

pytestmark = pytest.mark.external_service

_HOUR_MS = 3_600_000
_NOISE = random.Random(5).randbytes(4_000)


@pytest.fixture
def log(settings: Settings) -> Iterator[LogStore]:
    """A log store as every process opens it."""
    with open_log_store(settings) as opened:
        yield opened


@pytest.fixture
def topic(log: LogStore) -> Topic:
    """With a subscription at its beginning."""
    made = log.catalog.topics.create_topic("persistent://a/b/later", RetentionPolicy())
    log.subscriptions.subscribe(made.topic_id, "billing", latest=False)
    return made


def _append(log: LogStore, topic: Topic, *hours: int | None) -> None:
    now_ms = log.catalog.delayed.now_ms()
    made = [
        NewEntry(payload=b"%d" % (hour or 0) + _NOISE, deliver_at_ms=None if hour is None else now_ms + hour * _HOUR_MS)
        for hour in hours
    ]
    log.topic_logs.append(topic, ProducedEntries(entries=made))


def _consumer(log: LogStore, topic: Topic, *, hours: int) -> Consumer:
    """Of a process that knows nothing, so many hours from now."""
    now_us = (log.catalog.delayed.now_ms() + hours * _HOUR_MS + 60_000) * 1_000
    delivery = MessageDelivery(
        index=log.catalog.delayed,
        snapshots=log.delayed.snapshots,
        topic_logs=log.topic_logs,
        subscriptions=log.subscriptions,
        transactions=log.catalog.transactions,
        clock=Clock(now_us=lambda: now_us),
    )
    return delivery.create_consumer(topic, "billing")


def _received(log: LogStore, topic: Topic, *, hours: int) -> list[int]:
    with _consumer(log, topic, hours=hours) as consumer:
        return [entry.position.entry_id for entry in consumer.receive(1_000)]


def test_messages_are_delivered_in_their_hour_whatever_holds_them(log: LogStore, topic: Topic) -> None:
    """Sealed, merged, in no bucket yet, or in one whose snapshot is lost; acknowledged ones never return."""
    _append(log, topic, 5, 3, 1, *[8] * 60)
    assert log.delayed.sealer.drop_buckets_and_seal(topic.topic_id, force=True).messages == 63
    _append(log, topic, 4, 2, None)
    assert log.delayed.sealer.drop_buckets_and_seal(topic.topic_id, force=True).messages == 2
    _append(log, topic, 1, 9)
    assert _received(log, topic, hours=0) == [65]
    assert _received(log, topic, hours=1) == [2, 65, 66]
    one, two = log.catalog.delayed.get_bucket_list(topic.topic_id).buckets
    assert log.delayed.merger.merge_pair(topic.topic_id, (one.bucket_id, two.bucket_id)).switched
    assert _received(log, topic, hours=5) == [2, 64, 1, 63, 0, 65, 66]
    ledger = log.catalog.ledgers.list_ledgers(topic.topic_id)[0].ledger_id
    acked = [Position(ledger, entry) for entry in (64, 1, 65, 20, 40)]
    log.subscriptions.acknowledge(topic.topic_id, "billing", positions=acked)
    assert _received(log, topic, hours=5) == [2, 63, 0, 66]
    (merged,) = log.catalog.delayed.get_bucket_list(topic.topic_id).buckets
    log.objects.delete([segment_key(merged.bucket_id, 0)])
    assert _received(log, topic, hours=2) == [2, 66]
    assert len(_received(log, topic, hours=9)) == 68 - 5
