"""Topics with entries and acknowledgements of the demo. The acknowledgements decide which ledgers a trim deletes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from logstore.validated_names import TopicName
from workers.assembly.log_store import LogStore

_ENTRIES_PER_SEGMENT = 4
_SEGMENTS_PER_LEDGER = 3

AcknowledgementPlan = Callable[[int], dict[str, int]]
"""Function that takes the number of ledgers and returns how many of them each subscription acknowledges."""

_PLANS: tuple[tuple[str, AcknowledgementPlan], ...] = (
    ("all-read", lambda n: {"billing": n}),
    ("one-slow", lambda n: {"billing": n, "archive": n // 2}),
    ("unread", lambda _: {"audit": 0}),
)


@dataclass(slots=True)
class WrittenTopic:
    topic: Topic
    kind: str
    payloads: dict[LedgerId, list[bytes]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)  # number of acknowledged ledgers, by subscription
    contested: set[LedgerId] = field(default_factory=set)  # ledgers with a foreign object under their prefix

    @property
    def to_delete(self) -> list[LedgerId]:
        """Ledgers that every subscription has acknowledged, except the last ledger, which always stays."""
        return list(self.payloads)[: min(*self.acknowledged.values(), len(self.payloads) - 1)]

    @property
    def deletable(self) -> list[LedgerId]:
        """Ledgers in `to_delete` without a foreign object. Sexton must refuse to delete the other ledgers."""
        return [ledger_id for ledger_id in self.to_delete if ledger_id not in self.contested]

    @property
    def needed(self) -> list[LedgerId]:
        return list(self.payloads)[len(self.to_delete) :]


def count_deletable_ledgers(topics: int, ledgers: int) -> list[int]:
    plans = (_PLANS[number % len(_PLANS)][1] for number in range(topics))
    return [min(*plan(ledgers).values(), ledgers - 1) for plan in plans]


def write_topics(log: LogStore, *, topics: int, ledgers: int, say: Callable[[str], None]) -> Iterator[WrittenTopic]:
    for number in range(topics):
        kind, plan = _PLANS[number % len(_PLANS)]
        say(f"topic {number + 1} of {topics}: {ledgers} ledgers, {kind}")
        name = TopicName.parse(f"persistent://demo/shop/{kind}-{number}").encoded
        written = WrittenTopic(topic=log.catalog.topics.create_topic(name, RetentionPolicy()), kind=kind)
        written.acknowledged = {name: min(count, ledgers) for name, count in plan(ledgers).items()}
        for subscription in written.acknowledged:
            log.subscriptions.subscribe(written.topic.topic_id, subscription, latest=False)
        for index in range(ledgers):
            _write_ledger(log, written, index)
        _acknowledge_ledgers(log, written)
        yield written


def _write_ledger(log: LogStore, written: WrittenTopic, index: int) -> None:
    if index:
        log.topic_logs.roll(written.topic)  # there is no roll after the last ledger, which stays open
    for part in range(_SEGMENTS_PER_LEDGER):
        payloads = [f"{written.topic.name} {index} {part} {entry}".encode() for entry in range(_ENTRIES_PER_SEGMENT)]
        new_entries = [NewEntry(payload=payload) for payload in payloads]
        result = log.topic_logs.append(written.topic, ProducedEntries(entries=new_entries))
        if result.first is not None:  # None only for a duplicate, which needs a producer
            written.payloads.setdefault(result.first.ledger_id, []).extend(payloads)


def _acknowledge_ledgers(log: LogStore, written: WrittenTopic) -> None:
    for subscription, count in written.acknowledged.items():
        ledgers = list(written.payloads)[:count]
        if not ledgers:
            continue
        entry_count = len(written.payloads[ledgers[0]])
        positions = tuple(Position(ledgers[0], entry) for entry in reversed(range(entry_count)))
        last = Position(ledgers[-1], len(written.payloads[ledgers[-1]]) - 1)
        log.subscriptions.acknowledge(written.topic.topic_id, subscription, positions=positions)
        log.subscriptions.acknowledge(written.topic.topic_id, subscription, up_to=last)
