"""What is true of transactions, as if everything happened one after the other: the model that reality is compared with.

An entry is known by its payload, which is unique. Its topic's log is the order of registrations. Nothing here is the
product's: states of transactions are three, for whether participants were told changes nothing that anyone sees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

TransactionName = str


class TransactionFate(Enum):
    """Of a transaction, as readers meet it."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class SerialEntry:
    """An entry of a topic."""

    text: str
    txn: TransactionName | None = None


@dataclass(slots=True)
class SerialSubscription:
    """A subscription: what it has acknowledged, and what open transactions hold of it."""

    acknowledged: set[str] = field(default_factory=set)
    held: dict[TransactionName, set[str]] = field(default_factory=dict)
    releases: int = 0  # how often something was given back

    @property
    def taken(self) -> set[str]:
        """What is delivered to nobody."""
        return self.acknowledged.union(*self.held.values())


@dataclass(slots=True)
class SerialLog:
    """A topic."""

    items: list[SerialEntry] = field(default_factory=list)
    subs: dict[str, SerialSubscription] = field(default_factory=dict)


@dataclass(slots=True)
class SerialModel:
    """All of it."""

    logs: dict[str, SerialLog] = field(default_factory=dict)
    fates: dict[TransactionName, TransactionFate] = field(default_factory=dict)
    late: set[TransactionName] = field(default_factory=set)  # open, and past their deadline

    def fate(self, item: SerialEntry) -> TransactionFate:
        """A message outside transactions is as one that is committed."""
        return TransactionFate.COMMITTED if item.txn is None else self.fates[item.txn]

    def visible(self, topic: str) -> list[str]:
        """Committed messages up to the first one of an open transaction."""
        return list(self._iterate_visible_texts(topic))

    def _iterate_visible_texts(self, topic: str) -> Iterator[str]:
        for item in self.logs[topic].items:
            if self.fate(item) is TransactionFate.OPEN:
                return
            if self.fate(item) is TransactionFate.COMMITTED:
                yield item.text

    def deliverable(self, topic: str, sub: str) -> list[str]:
        """What a consumer of the subscription is given."""
        undeliverable = self.logs[topic].subs[sub].taken
        return [text for text in self._iterate_visible_texts(topic) if text not in undeliverable]

    def decide(self, txn: TransactionName, fate: TransactionFate) -> None:
        """All of it at once: messages by their fate, acknowledgements moved or released."""
        self.fates[txn] = fate
        self.late.discard(txn)
        for log in self.logs.values():
            for sub in log.subs.values():
                held_texts = sub.held.pop(txn, set())
                if fate is TransactionFate.COMMITTED:
                    sub.acknowledged |= held_texts
                elif held_texts:
                    sub.releases += 1

    def pins(self, topic: str, item: SerialEntry, *, are_all_told: bool) -> bool:
        """Return whether a ledger with the entry must stay, because it may be needed.

        `are_all_told` means that every participant of every transaction was told.
        """
        fate = self.fate(item)
        if fate is TransactionFate.OPEN or (item.txn is not None and not are_all_told):
            return True
        return fate is TransactionFate.COMMITTED and any(
            item.text not in sub.acknowledged for sub in self.logs[topic].subs.values()
        )
