"""What consumers of the soak do: receive, acknowledge, and write down when; one of them also goes back."""

import random
import time
from collections.abc import Callable
from typing import Final

from logstore.delayed.services.consumers import Consumer
from logstore.ports.catalog import Topic
from logstore.positions import LedgerId, Position
from tests.soak.scene import SOUGHT, Ops
from workers.assembly.log_store import LogStore

_AT_ONCE: Final = 50
_REMEMBERED: Final = 400  # positions to go back to


def receive(log: LogStore, consumer: Consumer, topic: Topic, subscription: str, ops: Ops) -> list[Position]:
    """Receive and acknowledge; what was received and not acknowledged comes again, here or elsewhere."""
    before_us = log.managed._clock.now_us()
    positions = [one.position for one in consumer.receive(_AT_ONCE)]
    clock_us = max(before_us, log.managed._clock.now_us())
    if not positions:
        consumer.wait(0.3)
        return []
    asked = {"topic": topic.name, "subscription": subscription}
    pairs = [(one.ledger_id, one.entry_id) for one in positions]
    ops.say("received", **asked, by=ops.name, positions=pairs, clock_ms=clock_us / 1_000, wall=time.time())
    with ops.op("acknowledge", **asked, positions=pairs):
        log.subscriptions.acknowledge(topic.topic_id, subscription, positions=tuple(positions))
    return positions


class Seeker:
    """Sets a subscription to an entry again and again, and consumes from there on."""

    def __init__(self, log: LogStore, topic: Topic, ops: Ops, phase: Callable[[], str]) -> None:
        """Nobody else seeks in the topic."""
        self._log, self._topic, self._ops, self._phase = log, topic, ops, phase
        self._met = [Position(LedgerId(0), 0)]  # before the first ledger
        self._stands = False  # whether the last seek was answered

    def round(self) -> None:
        """Seek, and consume for a while; once all write nothing new, consume from where the last seek went to."""
        if self._phase() == "work" or not self._stands:
            self._seek(random.choice(self._met))
        with self._log.delivery.create_consumer(self._topic, SOUGHT) as consumer:
            for _ in range(random.randint(10, 100)):
                if self._phase() == "end":
                    return
                met = receive(self._log, consumer, self._topic, SOUGHT, self._ops)
                self._met = [*self._met, *met][-_REMEMBERED:]

    def _seek(self, position: Position) -> None:
        self._stands = False
        to = (position.ledger_id, position.entry_id)
        with self._ops.op("seek", topic=self._topic.name, subscription=SOUGHT, to=to):
            self._log.subscriptions.seek(self._topic.topic_id, SOUGHT, position)
        self._stands = True
