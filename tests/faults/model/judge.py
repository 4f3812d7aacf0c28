"""What the model knows of its programs, and whether what is there agrees with it."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.faults.model.auditor import Licence, wrong_now, wrong_since
from tests.faults.model.hands import End, Hands
from tests.faults.model.moment import Moment, Place, look


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a subscription may have acknowledged after a step; any of them."""

    key: tuple[int, str]
    covered: tuple[frozenset[Place], ...]


class Judge(Hands):
    """The model's memory, and its verdict after every step."""

    def __init__(self) -> None:
        """Begin before the first call."""
        super().__init__()
        self.answered: dict[str, set[int]] = {}  # sequence ids that were acknowledged
        self.unanswered: dict[str, list[int]] = {}  # and those of an append that was not
        self.kept_in: dict[tuple[str, int], int] = {}  # where each was when it was last seen
        self.licence = Licence()
        self.expected: Expected | None = None
        self.failed = False

    def keep_every_promise(self) -> None:
        """Promises 1, 2, 3 and 8 hold, and nothing that was answered is lost."""
        before, self.seen = self.seen, look(self.house, frozenset(self.forged))
        wrong = [
            *self.wrong,
            *self.house.watched.wrong,
            *wrong_now(self.seen),
            *wrong_since(before, self.seen, self.licence, set(self.house.watched.detached)),
            *self._unlike_subscriptions(before),
            *self._lost(),
            *self._without_owner(),
        ]
        self.licence, self.expected, self._interrupted = Licence(), None, False
        self.failed = bool(wrong)
        assert not wrong, "\n".join(wrong)

    def expect(self, topic_id: int, name: str, end: End, after: frozenset[Place]) -> None:
        """The subscription covers `after` if the call was answered, what it did if it was refused, else either."""
        if (topic_id, name) in self.seen.cursors:
            before = self.seen.covered(topic_id, name)
            sets = {End.ANSWERED: (after,), End.REFUSED: (before,), End.UNSURE: (before, after)}[end]
            self.expected = Expected(key=(topic_id, name), covered=sets)

    def listed_numbers(self, topic: str) -> list[tuple[int, int]]:
        """Sequence ids of the topic in the order of its log, each with its ledger."""
        ledgers = self.seen.list_of(self.id(topic))
        return [(number, one) for one in ledgers for number in self.seen.numbers(one)]

    def _unlike_subscriptions(self, before: Moment) -> Iterable[str]:
        """Acknowledged is acknowledged, and nothing else is (apache/pulsar#20638)."""
        new = {self.expected.key} if self.expected else set()
        for key in sorted(self.seen.cursors.keys() & (before.cursors.keys() | new)):
            mine = self.expected if self.expected and self.expected.key == key else None
            sets = mine.covered if mine else (before.covered(*key),)
            listed, now = set(self.seen.entries(key[0])), self.seen.covered(*key)
            if now not in [one & listed for one in sets]:
                yield f"subscription {key} has acknowledged {sorted(now)}, expected {[sorted(one) for one in sets]}"

    def _lost(self) -> Iterable[str]:
        """Every acknowledged entry is where it was, or its ledger was detached; in order and once."""
        for topic, answered in self.answered.items():
            listed = self.listed_numbers(topic)
            numbers = [number for number, _ in listed]
            if numbers != sorted(set(numbers)):
                yield f"{topic}: entries in the order {numbers}"
            self.kept_in |= {(topic, number): one for number, one in listed}
            for number in sorted(answered - set(numbers)):
                if self.kept_in.get((topic, number)) not in self.house.watched.detached:
                    yield f"{topic}: entry {number} was acknowledged and is lost"

    def _without_owner(self) -> Iterable[str]:
        """What a batch certified as unfinished has a workflow of its own, or had one (apache/pulsar#982)."""
        certified = self.workflows.certified()
        for row in self.seen.intents.values():
            if row.batch_id in certified and row.state.value == "PENDING" and row.handed_to is None:
                yield f"the intent of ledger {row.ledger_id} was left by its batch, and nobody has it"
