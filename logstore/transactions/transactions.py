"""Vocabulary of transactions: ids, states, transitions and participants.

Source: Pulsar's transaction coordinator (TxnID, TxnStatus); PIP-31.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logstore.errors import InvalidInput, TransactionEnded
from logstore.names import check_subscription
from logstore.positions import TopicId

MAX_TIMEOUT_S: Final = 24 * 3_600.0
MIN_TIMEOUT_S: Final = 0.001
MAX_COORDINATORS: Final = 4_096

_ID_FORM: Final = re.compile(r"(?P<tc>0|[1-9][0-9]{0,3}):(?P<sequence>0|[1-9][0-9]{0,18})")
_MAX_SEQUENCE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class TransactionId:
    """Id of a transaction. The sequence of a coordinator increases, and no id is issued twice."""

    tc_id: int
    sequence: int

    @staticmethod
    def parse(text: str, *, field: str = "txn") -> "TransactionId":
        """Parse `tc:sequence`: two canonical decimals.

        Raises:
            InvalidInput: The text is not that, or a number is out of range.
        """
        match = _ID_FORM.fullmatch(text)
        if not match or int(match["sequence"]) > _MAX_SEQUENCE or int(match["tc"]) >= MAX_COORDINATORS:
            expected = f"tc:sequence, as 3:17, tc up to {MAX_COORDINATORS - 1}"
            raise InvalidInput(field, expected=expected, found=text)
        return TransactionId(int(match["tc"]), int(match["sequence"]))

    def __str__(self) -> str:
        return f"{self.tc_id}:{self.sequence}"


class TransactionState(StrEnum):
    """State of a transaction. It alone decides whether messages and acknowledgements count."""

    OPEN = "OPEN"  # its messages are hidden
    COMMITTING = "COMMITTING"  # visible; the decision is being sent to participants
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"  # skipped; the decision is being sent to participants
    ABORTED = "ABORTED"

    @property
    def is_final(self) -> bool:
        return self in {TransactionState.COMMITTED, TransactionState.ABORTED}

    @property
    def is_commit(self) -> bool:
        return self in {TransactionState.COMMITTING, TransactionState.COMMITTED}


BROADCASTING_STATES: Final = (TransactionState.COMMITTING.value, TransactionState.ABORTING.value)
"""States of decided transactions of which some participants are still owed the decision."""


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """Topic with messages of a transaction, or subscription of which the transaction holds acknowledgements."""

    topic_id: TopicId
    subscription: str = ""  # empty for the topic's messages

    @staticmethod
    def parse(text: str) -> "Participant":
        topic_id, _, subscription = text.partition("/")
        if subscription:
            check_subscription(subscription)
        if not topic_id.isascii() or not topic_id.isdecimal() or len(topic_id) > 18 or text.endswith("/"):
            raise InvalidInput(
                "participant", expected="a topic's id, or topic id/subscription, as 7/billing", found=text
            )
        return Participant(TopicId(int(topic_id)), subscription)

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.subscription}" if self.subscription else str(self.topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """Participant to which the decision could not be sent yet."""

    participant: str  # topic id, or topic id/subscription
    topic: str
    error: str


MAX_REPORTED_PARTICIPANTS: Final = 20
MAX_ERROR_CHARACTERS: Final = 300


def summarize_failures(failures: Mapping[Participant, str]) -> str:
    """Return one line with the errors of the first `MAX_REPORTED_PARTICIPANTS` participants, each error truncated."""
    reported = sorted(failures.items())[:MAX_REPORTED_PARTICIPANTS]
    return "; ".join(f"{participant}: {error[:MAX_ERROR_CHARACTERS]}" for participant, error in reported)


def check_timeout(timeout_s: float) -> None:
    """Refuse a timeout below a millisecond or above a day."""
    if not MIN_TIMEOUT_S <= timeout_s <= MAX_TIMEOUT_S:
        raise InvalidInput("timeout", expected=f"{MIN_TIMEOUT_S:g}s to {MAX_TIMEOUT_S:g}s", found=f"{timeout_s:.15g}s")


def decide_state(txn: TransactionId, state: TransactionState, *, commit: bool, expired: bool) -> TransactionState:
    """Return the state after a request to end a transaction. Of commit and timeout exactly one wins.

    Args:
        txn: Transaction to end.
        state: Its state, read under the lock of its row.
        commit: Whether to commit or to abort.
        expired: Whether its deadline has passed, by the catalog's clock in the deciding SQL transaction.

    Raises:
        TransactionEnded: The opposite was decided before, or the deadline of a commit has passed.
    """
    requested = TransactionState.COMMITTING if commit else TransactionState.ABORTING
    if state is TransactionState.OPEN and not (commit and expired):
        return requested
    if state is not TransactionState.OPEN and state.is_commit == commit:
        return state
    verb = "commit" if commit else "abort"
    found = "OPEN and past its deadline" if state is TransactionState.OPEN else state.value
    raise TransactionEnded(str(txn), verb=verb, state=found)
