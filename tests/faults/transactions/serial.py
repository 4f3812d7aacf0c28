"""What is true of transactions, as if everything happened one after the other: the model that reality is compared with.

An entry is known by its payload, which is unique. Its topic's log is the order of registrations. Nothing here is the
product's: states of transactions are three, for whether participants were told changes nothing that anyone sees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

Txn = str


class Fate(Enum):
    """Of a transaction, as readers meet it."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a topic."""

    text: str
    txn: Txn | None = None


@dataclass(slots=True)
class Sub:
    """A subscription: what it has acknowledged, and what open transactions hold of it."""

    acknowledged: set[str] = field(default_factory=set)
    held: dict[Txn, set[str]] = field(default_factory=dict)
    releases: int = 0  # how often something was given back

    @property
    def taken(self) -> set[str]:
        """What is delivered to nobody."""
        return self.acknowledged.union(*self.held.values())


@dataclass(slots=True)
class Log:
    """A topic."""

    items: list[Item] = field(default_factory=list)
    subs: dict[str, Sub] = field(default_factory=dict)


@dataclass(slots=True)
class Serial:
    """All of it."""

    logs: dict[str, Log] = field(default_factory=dict)
    fates: dict[Txn, Fate] = field(default_factory=dict)
    late: set[Txn] = field(default_factory=set)  # open, and past their deadline

    def fate(self, item: Item) -> Fate:
        """A message outside transactions is as one that is committed."""
        return Fate.COMMITTED if item.txn is None else self.fates[item.txn]

    def visible(self, topic: str) -> list[str]:
        """Committed messages up to the first one of an open transaction."""
        return list(self._visible(topic))

    def _visible(self, topic: str) -> Iterator[str]:
        for item in self.logs[topic].items:
            if self.fate(item) is Fate.OPEN:
                return
            if self.fate(item) is Fate.COMMITTED:
                yield item.text

    def deliverable(self, topic: str, sub: str) -> list[str]:
        """What a consumer of the subscription is given."""
        taken = self.logs[topic].subs[sub].taken
        return [text for text in self._visible(topic) if text not in taken]

    def decide(self, txn: Txn, fate: Fate) -> None:
        """All of it at once: messages by their fate, acknowledgements moved or released."""
        self.fates[txn] = fate
        self.late.discard(txn)
        for log in self.logs.values():
            for sub in log.subs.values():
                held = sub.held.pop(txn, set())
                if fate is Fate.COMMITTED:
                    sub.acknowledged |= held
                elif held:
                    sub.releases += 1

    def pins(self, topic: str, item: Item, *, told: bool) -> bool:
        """Whether a ledger with it must stay: somebody may need it. `told`: no transaction is left to be told."""
        fate = self.fate(item)
        if fate is Fate.OPEN or (item.txn is not None and not told):
            return True
        return fate is Fate.COMMITTED and any(
            item.text not in sub.acknowledged for sub in self.logs[topic].subs.values()
        )
