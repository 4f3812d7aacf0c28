"""Open transactions of a Pulsar cluster, and rules about their aborts.

Source: Pulsar's `TransactionMetadataStoreService` and `TopicTransactionBuffer`. A coordinator removes a transaction
after all participants have confirmed its end. A topic delivers no message behind the first one of its oldest open
transaction: that is its max read position.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from logstore.transactions.transaction_ids_and_states import TransactionIdText, TransactionState

NOTHING: Final = "nothing"
"""Debt of a participant that has ended its part, or has no part yet."""

ENDS_BY_STATE: Final = {"OPEN": "commit or abort", "COMMITTING": "commit", "ABORTING": "abort"}

BEFORE_ABORT: Final = "before"
"""Key in the summary of a run: transactions by id, as they were before the first abort."""

AFTER_ABORT: Final = "after"
"""Key in the summary of a run: participants by transaction, as they were at the end."""

MIN_ABORT_AGE_S: Final = 600.0
"""Age below which a transaction may still be in use by its client."""

_MAX_NAMES: Final = 5  # of subscriptions in a sentence; a topic may have thousands


class AbortOutcome(StrEnum):
    """Result of an abort for one transaction."""

    ABORTED = "aborted"  # and no participant owes anything
    ENDED = "ended"  # by an abort or a commit; no participant owes anything
    COMMITTED = "committed"  # a commit came first
    UNSETTLED = "unsettled"  # it has not ended, or a participant owes something


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAbort:
    """Result of an abort for one transaction."""

    txn: TransactionIdText
    outcome: str  # an `AbortOutcome`
    problem: str = ""  # why it is not aborted, or not settled; a sentence
    still_held: list[str] = field(default_factory=list)  # who waits for other transactions; sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionParticipant:
    """Topic with messages of a transaction, or a subscription with acknowledgements of it."""

    topic: str
    subscription: str | None
    owes: str  # "commit", "abort", "commit or abort", or `NOTHING`
    position: str | None = None  # of the first message, or of the last message of a cumulative acknowledgement
    waiting: tuple[str, ...] = ()  # subscriptions that have read all messages before those of open transactions
    loaded: bool = True  # whether a broker has loaded the topic; if not, only the coordinator's log names it
    max_read_position: str | None = None  # of a topic with messages: the last one that consumers may read
    was_aborted: bool = False  # whether the topic has stored that it skips the messages of the transaction
    pending_transactions: int = 0  # of a subscription: transactions with single acknowledgements
    problem: str = ""  # why it could not be asked

    @property
    def has_details(self) -> bool:
        """Whether the participant itself knows more: who waits for messages, or if single acknowledgements are open."""
        return self.loaded and (self.position is None) is (self.subscription is not None)

    def __str__(self) -> str:
        return self.topic if self.subscription is None else f"{self.topic}, subscription {self.subscription}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """Transaction that has not ended."""

    coordinator: int
    sequence: int
    state: str
    opened_ms: int  # by the broker's clock
    timeout_ms: int
    participants: tuple[TransactionParticipant, ...] = ()
    coordinator_loaded: bool = True  # whether a broker has loaded it; if not, no timeout ends the transaction

    @property
    def id(self) -> str:
        return f"{self.coordinator}:{self.sequence}"


@dataclass(frozen=True, slots=True)
class TransactionReport:
    transactions: tuple[OpenTransaction, ...]  # oldest first
    problems: tuple[str, ...]  # what could not be read, as sentences


def transaction_from_document(document: Mapping[str, Any]) -> OpenTransaction:
    """Return a transaction from the JSON of its `asdict`."""
    participants = map(participant_from_document, document["participants"])
    return OpenTransaction(**{**document, "participants": tuple(participants)})


def participant_from_document(document: Mapping[str, Any]) -> TransactionParticipant:
    return TransactionParticipant(**{**document, "waiting": tuple(document["waiting"])})


def find_abort_refusal(transaction: OpenTransaction, *, now_s: float, unsafe_age: bool) -> str | None:
    """Return why a transaction may not be aborted now, as a sentence, or `None` if it may."""
    if refusal := find_state_refusal(transaction):
        return refusal
    age_s = now_s - transaction.opened_ms / 1_000
    if age_s < MIN_ABORT_AGE_S and not unsafe_age:
        ages = f"expected an age of {MIN_ABORT_AGE_S:.0f} s, found {math.floor(age_s)} s"
        return f"transaction {transaction.id}: {ages}. Its client may still use it; --unsafe-age aborts it all the same"
    return None


def find_state_refusal(transaction: OpenTransaction) -> str | None:
    """Return why the state of a transaction forbids its abort, as a sentence, or `None` if it does not."""
    if transaction.state in {TransactionState.OPEN, TransactionState.ABORTING}:
        return None
    return f"transaction {transaction.id}: expected OPEN or ABORTING, found {transaction.state}"


def needs_other_transactions(participants: Iterable[TransactionParticipant]) -> bool:
    """Return whether only the open transactions of the cluster explain the state of participants after an end."""
    return any(each.waiting or each.pending_transactions or _is_held(each) for each in participants)


def list_unsettled_parts(participants: Sequence[TransactionParticipant], others: TransactionReport) -> list[str]:
    """Return what participants of an ended transaction have not done, as sentences.

    `participants` have the positions that they had before the end. `others` are the open transactions. If some of them
    could not be read, they may explain anything.
    """
    names_in_open_transactions = {
        (participant.topic, participant.subscription)
        for transaction in others.transactions
        for participant in transaction.participants
    }
    sentences: list[str] = []
    for participant in participants:
        if participant.problem:
            sentences.append(f"{participant}: it could not be asked: {participant.problem}")
        elif participant.owes != NOTHING:
            sentences.append(f"{participant}: it still owes {participant.owes}")
        elif others.problems:
            continue
        elif (
            participant.pending_transactions
            and (participant.topic, participant.subscription) not in names_in_open_transactions
        ):
            found = f"those of {participant.pending_transactions:,} transactions, and no open transaction with some"
            sentences.append(f"{participant}: expected no pending acknowledgements, found {found}")
        elif _is_held(participant) and not _list_holders(participant, others.transactions):
            expected = f"a max read position of {participant.position} or higher"
            found = f"{participant.max_read_position}, and no open transaction with messages behind it"
            sentences.append(f"{participant}: expected {expected}, found {found}")
    return sentences


def list_holds(participants: Sequence[TransactionParticipant], others: TransactionReport) -> list[str]:
    """Return which subscriptions still wait, and for which open transactions, as sentences."""
    sentences: list[str] = []
    for participant in participants:
        if not participant.waiting and not _is_held(participant):
            continue
        holders = _list_holders(participant, others.transactions)
        reason = f"messages of transaction {', '.join(holders)}" if holders else "a transaction that could not be read"
        waiting = (
            f"subscriptions {_join_names(participant.waiting)} wait" if participant.waiting else "consumers will wait"
        )
        sentences.append(f"{participant}: {waiting} at {participant.max_read_position} for {reason}")
    return sentences


def _join_names(names: Sequence[str]) -> str:
    others = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {others:,} more" if others > 0 else "")


def parse_position(text: str) -> tuple[int, int]:
    """Return ledger and entry of a position, such as 7:4."""
    ledger_id, _, entry = text.partition(":")
    return int(ledger_id), int(entry.partition(":")[0])


def _is_held(participant: TransactionParticipant) -> bool:
    """Return whether consumers of a topic may not read the first message of the ended transaction."""
    if participant.subscription is not None or not participant.position or not participant.max_read_position:
        return False
    return parse_position(participant.max_read_position) < parse_position(participant.position)


def _list_holders(participant: TransactionParticipant, others: Collection[OpenTransaction]) -> list[str]:
    """Return the open transactions with the first message behind the max read position of a topic."""
    readable = parse_position(participant.max_read_position or "-1:-1")
    starts = [
        (parse_position(other.position), transaction.id)
        for transaction in others
        for other in transaction.participants
        if other.topic == participant.topic and other.subscription is None and other.position is not None
    ]
    behind = [(start, transaction_id) for start, transaction_id in starts if start > readable]
    return [transaction_id for start, transaction_id in behind if start == min(behind)[0]]
