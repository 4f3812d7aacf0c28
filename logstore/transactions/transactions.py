"""What a transaction is: its id, its states, the moves between them, and its participants.

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

MOST_TIMEOUT_S: Final = 24 * 3_600.0
LEAST_TIMEOUT_S: Final = 0.001
MOST_COORDINATORS: Final = 4_096

_FORM: Final = re.compile(r"(?P<tc>0|[1-9][0-9]{0,3}):(?P<sequence>0|[1-9][0-9]{0,18})")
_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class TransactionId:
    """Of one coordinator the sequence increases, and no id is ever given out twice."""

    tc_id: int
    sequence: int

    @staticmethod
    def parse(text: str, *, field: str = "txn") -> "TransactionId":
        """Read `tc:sequence`.

        Raises:
            InvalidInput: Not two canonical decimals, or no coordinator can have that number.
        """
        found = _FORM.fullmatch(text)
        if not found or int(found["sequence"]) > _MAX or int(found["tc"]) >= MOST_COORDINATORS:
            expected = f"tc:sequence, as 3:17, tc up to {MOST_COORDINATORS - 1}"
            raise InvalidInput(field, expected=expected, found=text)
        return TransactionId(int(found["tc"]), int(found["sequence"]))

    def __str__(self) -> str:
        return f"{self.tc_id}:{self.sequence}"


class TransactionState(StrEnum):
    """Whether messages and acknowledgements of a transaction count follows from this alone."""

    OPEN = "OPEN"  # hidden
    COMMITTING = "COMMITTING"  # visible; participants are being told
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"  # skipped; participants are being told
    ABORTED = "ABORTED"

    @property
    def is_final(self) -> bool:
        """Whether every participant has been told."""
        return self in {TransactionState.COMMITTED, TransactionState.ABORTED}

    @property
    def commits(self) -> bool:
        """Whether it was decided to commit."""
        return self in {TransactionState.COMMITTING, TransactionState.COMMITTED}


DECIDED: Final = (TransactionState.COMMITTING.value, TransactionState.ABORTING.value)
"""Decided, and some participants are not told yet."""


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """A topic with messages of a transaction, or with a subscription's name one whose acknowledgements it holds."""

    topic_id: TopicId
    subscription: str = ""

    @staticmethod
    def parse(text: str) -> "Participant":
        """Read back `str(participant)`.

        Raises:
            InvalidInput: It is none.
        """
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
    """A participant that could not be told yet."""

    participant: str  # topic id, or topic id/subscription
    topic: str
    error: str


MOST_SHOWN: Final = 20  # participants
MOST_ERROR: Final = 300  # characters


def one_line(failures: Mapping[Participant, str]) -> str:
    """Why participants could not be told: the first 20 of them, each error cut at 300 characters."""
    return "; ".join(f"{one}: {error[:MOST_ERROR]}" for one, error in sorted(failures.items())[:MOST_SHOWN])


def check_timeout(timeout_s: float) -> None:
    """Refuse a timeout of zero, or above a day.

    Raises:
        InvalidInput: It is out of bounds.
    """
    if not LEAST_TIMEOUT_S <= timeout_s <= MOST_TIMEOUT_S:
        raise InvalidInput(
            "timeout", expected=f"{LEAST_TIMEOUT_S:g}s to {MOST_TIMEOUT_S:g}s", found=f"{timeout_s:.15g}s"
        )


def decided(txn: TransactionId, state: TransactionState, *, commit: bool, expired: bool) -> TransactionState:
    """The state once `end` was asked for; exactly one of commit and timeout wins, and the loser is told.

    Args:
        txn: Which.
        state: Under the lock of its row.
        commit: The verb.
        expired: Whether its deadline has passed, by the catalog's clock in the deciding transaction.

    Raises:
        TransactionEnded: It was decided otherwise, or its deadline has passed before it could commit.
    """
    wanted = TransactionState.COMMITTING if commit else TransactionState.ABORTING
    if state is TransactionState.OPEN and not (commit and expired):
        return wanted
    if state is not TransactionState.OPEN and state.commits == commit:
        return state
    verb = "commit" if commit else "abort"
    found = "OPEN and past its deadline" if state is TransactionState.OPEN else state.value
    raise TransactionEnded(str(txn), verb=verb, state=found)
