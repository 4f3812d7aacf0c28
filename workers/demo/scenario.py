"""The entries that the demo writes and acknowledges, and which ledgers must therefore be deleted and which must stay.

Expectations are worked out here from what was written, not asked from the code that is to be shown.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.names import TopicName
from logstore.ports.catalog import Topic
from logstore.positions import LedgerId, Position
from workers.assembly.log import LogStore

_ENTRIES = 4  # in a segment
_SEGMENTS = 3  # in a ledger

Plan = Callable[[int], dict[str, int]]
"""From the number of ledgers to how many of them each subscription acknowledges."""

_PLANS: tuple[tuple[str, Plan], ...] = (
    ("all-read", lambda n: {"billing": n}),
    ("one-slow", lambda n: {"billing": n, "archive": n // 2}),
    ("unread", lambda _: {"audit": 0}),
)


@dataclass(slots=True)
class WrittenTopic:
    """One topic of the demo: its ledgers in order, and what was put into them."""

    topic: Topic
    kind: str
    payloads: dict[LedgerId, list[bytes]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)  # ledgers, from the first on, by subscription
    contested: set[LedgerId] = field(default_factory=set)  # an object of another system lies among their own

    @property
    def to_delete(self) -> list[LedgerId]:
        """Ledgers that every subscription has passed; the last ledger always stays."""
        return list(self.payloads)[: min(*self.acknowledged.values(), len(self.payloads) - 1)]

    @property
    def deletable(self) -> list[LedgerId]:
        """Those of them that hold nothing but their own objects; the others must be refused."""
        return [ledger_id for ledger_id in self.to_delete if ledger_id not in self.contested]

    @property
    def needed(self) -> list[LedgerId]:
        """The others."""
        return list(self.payloads)[len(self.to_delete) :]


def planned(topics: int, ledgers: int) -> list[int]:
    """How many ledgers of each topic will be deleted, before they are written."""
    plans = (_PLANS[number % len(_PLANS)][1] for number in range(topics))
    return [min(*plan(ledgers).values(), ledgers - 1) for plan in plans]


def write_topics(log: LogStore, *, topics: int, ledgers: int, say: Callable[[str], None]) -> Iterator[WrittenTopic]:
    """Create topics in turn: one read by all, one with a slow subscription, one that no consumer reads."""
    for number in range(topics):
        kind, plan = _PLANS[number % len(_PLANS)]
        say(f"topic {number + 1} of {topics}: {ledgers} ledgers, {kind}")
        name = TopicName.parse(f"persistent://demo/shop/{kind}-{number}").encoded
        written = WrittenTopic(topic=log.catalog.topics.create(name, RetentionPolicy()), kind=kind)
        written.acknowledged = {name: min(count, ledgers) for name, count in plan(ledgers).items()}
        for subscription in written.acknowledged:
            log.subscriptions.subscribe(written.topic.topic_id, subscription, latest=False)
        for index in range(ledgers):
            _write_ledger(log, written, index)
        _acknowledge(log, written)
        yield written


def _write_ledger(log: LogStore, written: WrittenTopic, index: int) -> None:
    if index:
        log.managed.roll(written.topic)  # not after the last one: it stays open
    for part in range(_SEGMENTS):
        payloads = [f"{written.topic.name} {index} {part} {entry}".encode() for entry in range(_ENTRIES)]
        done = log.managed.append(written.topic, ProducedEntries(entries=[NewEntry(payload=p) for p in payloads]))
        if done.first is not None:  # None only for duplicates, of which there are none without a producer
            written.payloads.setdefault(done.first.ledger_id, []).extend(payloads)


def _acknowledge(log: LogStore, written: WrittenTopic) -> None:
    """Single entries out of order for the first ledger, then everything up to the last one, as consumers do."""
    for subscription, count in written.acknowledged.items():
        ledgers = list(written.payloads)[:count]
        if not ledgers:
            continue
        size = len(written.payloads[ledgers[0]])
        singles = tuple(Position(ledgers[0], entry) for entry in reversed(range(size)))
        last = Position(ledgers[-1], len(written.payloads[ledgers[-1]]) - 1)
        log.subscriptions.acknowledge(written.topic.topic_id, subscription, positions=singles)
        log.subscriptions.acknowledge(written.topic.topic_id, subscription, up_to=last)
