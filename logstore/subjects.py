"""Subjects of requests and results: the objects that a step is about. Summaries, spans and search attributes show them.

Every input of an activity or of a workflow derives from `HasSubject`. Each mix-in adds what it reads from one field, so
that a class lists the mix-ins of its fields. A result derives from the mix-ins whose fields its span shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

TOPIC: Final = "sexton.topic"
LEDGERS: Final = "sexton.ledgers"
MAX_LEDGERS: Final = 20
"""Maximum number of ledger ids in an attribute of a span."""

AttributeValue = str | int | Sequence[int]

_MAX_IDS_IN_SUMMARY: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Objects that a request or a result is about."""

    rows: tuple[int, int] | None = None  # first and last row id of a chunk
    ledger_id: int | None = None
    copy: str = ""  # kind of the ledger's copy
    ledger_ids: Sequence[int] = ()
    txn: str = ""
    parts: tuple[str, ...] = ()  # further texts of the summary
    run_id: str = ""
    batch_id: str = ""
    topic: str = ""  # encoded
    outcome: str = ""  # or outcomes with their counts

    def with_part(self, part: str) -> "Subject":
        """Return the subject with one more text in its summary. Ignore an empty text."""
        return replace(self, parts=(*self.parts, part)) if part else self

    def summarize(self) -> str:
        texts = [
            f"rows {self.rows[0]} to {self.rows[1]}" if self.rows else "",
            "" if self.ledger_id is None else f"ledger {self.ledger_id}",
            self.copy and f"copy {self.copy}",
            f"ledger {self.ledger_ids[0]}" if len(self.ledger_ids) == 1 else list_ids("ledgers", self.ledger_ids),
            self.txn and f"transaction {self.txn}",
            *self.parts,
            self.run_id and f"run {self.run_id}",
            self.batch_id and f"batch {self.batch_id}",
            self.topic,
        ]
        return ", ".join(filter(None, texts))

    def span_attributes(self) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            TOPIC: self.topic,
            "sexton.batch": self.batch_id,
            "sexton.txn": self.txn,
            LEDGERS: [int(ledger_id) for ledger_id in self.ledger_ids[:MAX_LEDGERS]],
            "sexton.row_range": f"{self.rows[0]}-{self.rows[1]}" if self.rows else "",
            "sexton.outcome": self.outcome,
        }
        ledger: dict[str, AttributeValue] = {} if self.ledger_id is None else {"sexton.ledger": self.ledger_id}
        return {name: value for name, value in attributes.items() if value} | ledger


def list_ids(noun: str, ids: Sequence[object]) -> str:
    """Return the number of ids and the first of them, or "" without ids."""
    more = ", …" if len(ids) > _MAX_IDS_IN_SUMMARY else ""
    return f"{len(ids):,} {noun}: {', '.join(map(str, ids[:_MAX_IDS_IN_SUMMARY]))}{more}" if ids else ""


class HasSubject:
    """Request or result that names its subject. Without mix-ins, the subject is empty."""

    __slots__ = ()

    def subject(self) -> Subject:
        return Subject()


class HasTopic(HasSubject):
    __slots__ = ()
    topic: str

    def subject(self) -> Subject:
        return replace(super().subject(), topic=self.topic)


class HasBatch(HasSubject):
    __slots__ = ()
    batch_id: str

    def subject(self) -> Subject:
        return replace(super().subject(), batch_id=self.batch_id)


class HasRun(HasSubject):
    __slots__ = ()
    run_id: str

    def subject(self) -> Subject:
        return replace(super().subject(), run_id=self.run_id)


class HasPageOfRun(HasRun):
    __slots__ = ()
    page: int

    def subject(self) -> Subject:
        return super().subject().with_part(f"page {self.page}")


class HasTransaction(HasSubject):
    __slots__ = ()
    txn: str

    def subject(self) -> Subject:
        return replace(super().subject(), txn=self.txn)


class HasTransactions(HasSubject):
    __slots__ = ()
    transactions: list[str]

    def subject(self) -> Subject:
        return super().subject().with_part(list_ids("transactions", self.transactions))


class HasCoordinator(HasSubject):
    __slots__ = ()
    tc_id: int

    def subject(self) -> Subject:
        return super().subject().with_part(f"coordinator {self.tc_id}")


class HasLedger(HasSubject):
    __slots__ = ()
    ledger_id: int

    def subject(self) -> Subject:
        return replace(super().subject(), ledger_id=self.ledger_id)


class HasLedgers(HasSubject):
    __slots__ = ()
    ledger_ids: list[int] | None

    def subject(self) -> Subject:
        return replace(super().subject(), ledger_ids=self.ledger_ids or ())


class HasTopics(HasSubject):
    __slots__ = ()
    topic_ids: list[int]

    def subject(self) -> Subject:
        return super().subject().with_part(list_ids("topics", self.topic_ids))


class HasTopicsAfter(HasSubject):
    """Request for pages of topics whose ids are higher than `after`."""

    __slots__ = ()
    after: int

    def subject(self) -> Subject:
        return super().subject().with_part(f"topics after {self.after}" if self.after >= 0 else "")


class HasLedgersAfter(HasLedgers):
    """Request for given ledgers, or for all, whose ids are higher than `after`."""

    __slots__ = ()
    after: int

    def subject(self) -> Subject:
        return super().subject().with_part(f"ledgers after {self.after}" if self.after >= 0 else "")


class HasRowLimit(HasSubject):
    __slots__ = ()
    limit: int  # 0: no limit

    def subject(self) -> Subject:
        return super().subject().with_part(f"at most {self.limit:,} rows" if self.limit else "")


class HasFunction(HasSubject):
    __slots__ = ()
    function: str

    def subject(self) -> Subject:
        return super().subject().with_part(f"function {self.function}")


class HasWatch(HasSubject):
    """Request to look for changes."""

    __slots__ = ()
    watch_s: float

    def subject(self) -> Subject:
        text = f"changes, looked for during {self.watch_s:g} s" if self.watch_s else "changes until now"
        return super().subject().with_part(text)


class HasEligibleAge(HasSubject):
    __slots__ = ()
    eligible_age_s: float | None

    def subject(self) -> Subject:
        text = "" if self.eligible_age_s is None else f"older than {self.eligible_age_s:g} s"
        return super().subject().with_part(text)


class HasOutcome(HasSubject):
    __slots__ = ()
    outcome: Enum | None

    def subject(self) -> Subject:
        return replace(super().subject(), outcome=str(self.outcome.value) if self.outcome else "")


class HasOutcomes(HasSubject):
    __slots__ = ()
    outcomes: Mapping[str, int]  # counts by outcome

    def subject(self) -> Subject:
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return replace(super().subject(), outcome=outcomes)
