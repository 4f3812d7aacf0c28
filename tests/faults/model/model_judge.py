"""What the model knows of its programs, and whether what is there agrees with it."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.faults.model.model_actions import CallEnd, ModelActions
from tests.faults.model.model_auditor import StepLicence, find_violations_now, find_violations_of_step
from tests.faults.model.model_observation import EntryPlace, ModelObservation, observe_model


@dataclass(frozen=True, kw_only=True)
class ExpectedAcknowledgements:
    """What a subscription may have acknowledged after a step; any of them."""

    key: tuple[int, str]
    covered: tuple[frozenset[EntryPlace], ...]


class ModelJudge(ModelActions):
    """The model's memory, and its verdict after every step."""

    def __init__(self) -> None:
        """Begin before the first call."""
        super().__init__()
        self.answered: dict[str, set[int]] = {}  # sequence ids that were acknowledged
        self.unanswered: dict[str, list[int]] = {}  # and those of an append that was not
        self.last_ledger_by_number: dict[tuple[str, int], int] = {}  # where each was when it was last seen
        self.licence = StepLicence()
        self.expected: ExpectedAcknowledgements | None = None
        self.failed = False

    def keep_every_promise(self) -> None:
        """Promises 1, 2, 3 and 8 hold, and nothing that was answered is lost."""
        before, self.seen = self.seen, observe_model(self.house, frozenset(self.forged))
        violations = [
            *self.wrong,
            *self.house.watched.wrong,
            *find_violations_now(self.seen),
            *find_violations_of_step(before, self.seen, self.licence, set(self.house.watched.detached)),
            *self._find_wrong_acknowledgements(before),
            *self._find_lost_entries(),
            *self._find_intents_without_workflow(),
        ]
        self.licence, self.expected, self._interrupted = StepLicence(), None, False
        self.failed = bool(violations)
        assert not violations, "\n".join(violations)

    def expect(self, topic_id: int, name: str, end: CallEnd, after: frozenset[EntryPlace]) -> None:
        """The subscription covers `after` if the call was answered, what it did if it was refused, else either."""
        if (topic_id, name) in self.seen.cursors:
            before = self.seen.covered(topic_id, name)
            sets = {CallEnd.ANSWERED: (after,), CallEnd.REFUSED: (before,), CallEnd.UNSURE: (before, after)}[end]
            self.expected = ExpectedAcknowledgements(key=(topic_id, name), covered=sets)

    def list_numbers_with_ledger(self, topic: str) -> list[tuple[int, int]]:
        """Sequence ids of the topic in the order of its log, each with its ledger."""
        ledgers = self.seen.list_topic_ledgers(self.id(topic))
        return [(number, ledger_id) for ledger_id in ledgers for number in self.seen.numbers(ledger_id)]

    def _find_wrong_acknowledgements(self, before: ModelObservation) -> Iterable[str]:
        """Acknowledged is acknowledged, and nothing else is (apache/pulsar#20638)."""
        new_keys = {self.expected.key} if self.expected else set()
        for key in sorted(self.seen.cursors.keys() & (before.cursors.keys() | new_keys)):
            expected = self.expected if self.expected and self.expected.key == key else None
            sets = expected.covered if expected else (before.covered(*key),)
            listed, acknowledged = set(self.seen.entries(key[0])), self.seen.covered(*key)
            if acknowledged not in [allowed & listed for allowed in sets]:
                allowed_entries = [sorted(allowed) for allowed in sets]
                yield f"subscription {key} has acknowledged {sorted(acknowledged)}, expected {allowed_entries}"

    def _find_lost_entries(self) -> Iterable[str]:
        """Every acknowledged entry is where it was, or its ledger was detached; in order and once."""
        for topic, answered in self.answered.items():
            listed = self.list_numbers_with_ledger(topic)
            numbers = [number for number, _ in listed]
            if numbers != sorted(set(numbers)):
                yield f"{topic}: entries in the order {numbers}"
            self.last_ledger_by_number |= {(topic, number): ledger_id for number, ledger_id in listed}
            for number in sorted(answered - set(numbers)):
                if self.last_ledger_by_number.get((topic, number)) not in self.house.watched.detached:
                    yield f"{topic}: entry {number} was acknowledged and is lost"

    def _find_intents_without_workflow(self) -> Iterable[str]:
        """What a batch certified as unfinished has a workflow of its own, or had one (apache/pulsar#982)."""
        certified = self.workflows.certified()
        for row in self.seen.intents.values():
            if row.batch_id in certified and row.state.value == "PENDING" and row.handed_to is None:
                yield f"the intent of ledger {row.ledger_id} was left by its batch, and nobody has it"
