"""What consumers of the soak do: receive, acknowledge, and write down when; one of them also goes back."""

import random
import time
from collections.abc import Callable
from typing import Final

from logstore.delayed.services.consumers import Consumer
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from tests.soak.soak_setup import SOUGHT_SUBSCRIPTION, OperationJournal
from workers.assembly.log_store import LogStore

_MAX_ENTRIES_PER_RECEIVE: Final = 50
_REMEMBERED_POSITIONS: Final = 400  # positions to go back to


def receive_and_acknowledge(
    log: LogStore, consumer: Consumer, topic: Topic, subscription: str, ops: OperationJournal
) -> list[Position]:
    """Receive and acknowledge; what was received and not acknowledged comes again, here or elsewhere."""
    before_us = log.topic_logs._clock.now_us()
    positions = [entry.position for entry in consumer.receive(_MAX_ENTRIES_PER_RECEIVE)]
    clock_us = max(before_us, log.topic_logs._clock.now_us())
    if not positions:
        consumer.wait(0.3)
        return []
    target = {"topic": topic.name, "subscription": subscription}
    pairs = [(entry.ledger_id, entry.entry_id) for entry in positions]
    ops.say("received", **target, by=ops.name, positions=pairs, clock_ms=clock_us / 1_000, wall=time.time())
    with ops.record_operation("acknowledge", **target, positions=pairs):
        log.subscriptions.acknowledge(topic.topic_id, subscription, positions=tuple(positions))
    return positions


class SeekingConsumer:
    """Sets a subscription to an entry again and again, and consumes from there on."""

    def __init__(self, log: LogStore, topic: Topic, ops: OperationJournal, phase: Callable[[], str]) -> None:
        """Nobody else seeks in the topic."""
        self._log, self._topic, self._ops, self._phase = log, topic, ops, phase
        self._received_positions = [Position(LedgerId(0), 0)]  # before the first ledger
        self._is_last_seek_answered = False  # whether the last seek was answered

    def round(self) -> None:
        """Seek, and consume for a while; once all write nothing new, consume from where the last seek went to."""
        if self._phase() == "work" or not self._is_last_seek_answered:
            self._seek(random.choice(self._received_positions))
        with self._log.delivery.create_consumer(self._topic, SOUGHT_SUBSCRIPTION) as consumer:
            for _ in range(random.randint(10, 100)):
                if self._phase() == "end":
                    return
                received = receive_and_acknowledge(self._log, consumer, self._topic, SOUGHT_SUBSCRIPTION, self._ops)
                self._received_positions = [*self._received_positions, *received][-_REMEMBERED_POSITIONS:]

    def _seek(self, position: Position) -> None:
        self._is_last_seek_answered = False
        to = (position.ledger_id, position.entry_id)
        with self._ops.record_operation("seek", topic=self._topic.name, subscription=SOUGHT_SUBSCRIPTION, to=to):
            self._log.subscriptions.seek(self._topic.topic_id, SOUGHT_SUBSCRIPTION, position)
        self._is_last_seek_answered = True
