"""Ids, states and participants of transactions.

Source: Pulsar's transaction coordinator (TxnID, TxnStatus); PIP-31.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from logstore.errors import InvalidInput, TransactionEnded
from logstore.field_bounds import EncodedTopicName, FromOutside, bound_from_check
from logstore.positions import TopicId
from logstore.validated_names import check_subscription_name

MAX_TIMEOUT_S: Final = 24 * 3_600.0
MIN_TIMEOUT_S: Final = 0.001
MAX_COORDINATORS: Final = 4_096

_ID_FORM: Final = re.compile(r"(?P<tc>0|[1-9][0-9]{0,3}):(?P<sequence>0|[1-9][0-9]{0,18})")
_MAX_SEQUENCE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class TransactionId:
    """Id of a transaction. Each coordinator issues ascending sequence numbers, and no number twice."""

    tc_id: int
    sequence: int

    @staticmethod
    def parse(text: str, *, field: str = "txn") -> "TransactionId":
        match = _ID_FORM.fullmatch(text)
        if not match or int(match["sequence"]) > _MAX_SEQUENCE or int(match["tc"]) >= MAX_COORDINATORS:
            expected = f"tc:sequence, as 3:17, tc up to {MAX_COORDINATORS - 1}"
            raise InvalidInput(field, expected=expected, found=text)
        return TransactionId(int(match["tc"]), int(match["sequence"]))

    def __str__(self) -> str:
        return f"{self.tc_id}:{self.sequence}"


class TransactionEntryRange(NamedTuple):
    """Consecutive entries of a segment that belong to one transaction."""

    txn: TransactionId
    offset: int  # index of the first entry in the segment
    entries: int


TRANSACTION_ID: Final = bound_from_check(TransactionId.parse)
TransactionIdText = Annotated[str, FromOutside(TRANSACTION_ID)]  # as `str(TransactionId)`


class TransactionState(StrEnum):
    """State of a transaction. Only this state decides whether messages and acknowledgements take effect."""

    OPEN = "OPEN"  # readers stop before its messages
    COMMITTING = "COMMITTING"  # readers see its messages; participants are being told
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"  # readers skip its messages; participants are being told
    ABORTED = "ABORTED"

    @property
    def is_final(self) -> bool:
        return self in {TransactionState.COMMITTED, TransactionState.ABORTED}

    @property
    def is_commit(self) -> bool:
        return self in {TransactionState.COMMITTING, TransactionState.COMMITTED}


BROADCASTING_STATES: Final = (TransactionState.COMMITTING.value, TransactionState.ABORTING.value)
"""States of decided transactions that are still being broadcast."""


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """Topic with messages of a transaction, or subscription with acknowledgements in the transaction."""

    topic_id: TopicId
    subscription: str = ""  # empty for the topic's messages

    @staticmethod
    def parse(text: str) -> "Participant":
        topic_id, _, subscription = text.partition("/")
        if subscription:
            check_subscription_name(subscription)
        if not topic_id.isascii() or not topic_id.isdecimal() or len(topic_id) > 18 or text.endswith("/"):
            raise InvalidInput(
                "participant", expected="a topic's id, or topic id/subscription, as 7/billing", found=text
            )
        return Participant(TopicId(int(topic_id)), subscription)

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.subscription}" if self.subscription else str(self.topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedParticipant:
    """Participant of a decided transaction that has not been told yet."""

    participant: str  # topic id, or topic id/subscription
    topic: EncodedTopicName
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastState:
    """State of a decided transaction, and its participants that have not been told yet."""

    state: str = ""
    settled: int = 0  # participants
    owed: list[OwedParticipant] = field(default_factory=list)  # the first 20 participants that are owed
    owed_count: int = 0


MAX_REPORTED_PARTICIPANTS: Final = 20
MAX_ERROR_CHARACTERS: Final = 300


def summarize_failures(failures: Mapping[Participant, str]) -> str:
    """Return one line with the errors of at most `MAX_REPORTED_PARTICIPANTS` participants. Each error is truncated."""
    reported = sorted(failures.items())[:MAX_REPORTED_PARTICIPANTS]
    return "; ".join(f"{participant}: {error[:MAX_ERROR_CHARACTERS]}" for participant, error in reported)


def check_timeout(timeout_s: float) -> None:
    if not MIN_TIMEOUT_S <= timeout_s <= MAX_TIMEOUT_S:
        raise InvalidInput("timeout", expected=f"{MIN_TIMEOUT_S:g}s to {MAX_TIMEOUT_S:g}s", found=f"{timeout_s:.15g}s")


def decide_transaction_state(
    txn: TransactionId, state: TransactionState, *, commit: bool, expired: bool
) -> TransactionState:
    """Return the state after a request to end a transaction. A commit and a timeout cannot both succeed.

    The caller must have read `state` under the lock of the transaction's row. `expired` says whether the deadline has
    passed, by the catalog's clock. Raise `TransactionEnded` if the opposite was decided before, or if a commit comes
    after the deadline.
    """
    requested = TransactionState.COMMITTING if commit else TransactionState.ABORTING
    if state is TransactionState.OPEN and not (commit and expired):
        return requested
    if state is not TransactionState.OPEN and state.is_commit == commit:
        return state
    verb = "commit" if commit else "abort"
    found = "OPEN and past its deadline" if state is TransactionState.OPEN else state.value
    raise TransactionEnded(str(txn), verb=verb, state=found)
