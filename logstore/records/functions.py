"""Functions of an operator's own over records: each is asked of every record of a selection, and None ends the record.

A function gets the record of a closed ledger and answers that same record, which stays as it is, or None. Nothing of a
ledger's record may be changed: what it holds is what storage holds, and lists, copies and cursors are changed by
commands of their own. So any other answer is refused, by name.

It must answer alike for the same record: after a crash it is asked again. For what depends on the time, a record says
when its selection began. No lock is held meanwhile: a record that has changed since the function saw it stays.

Source: Aerospike's record functions (a function that removes the record ends it, under the policy of its call), here
without changes of bins.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Protocol

from logstore.errors import FunctionFailed
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """What a function sees of a closed ledger of messages."""

    topic: str  # its name, encoded
    ledger_id: LedgerId
    entries: int
    size_bytes: int  # of its primary copy, whether or not that is still there
    created_us: int  # by the catalog's clock, microseconds since 1970, as all times here
    closed_us: int
    copies: frozenset[CopyKind]  # those that can be read
    generation: int  # how often a copy of it was taken away
    now_us: int  # when the selection began: one time for all of its records, and for every repetition


_TOLD: Final = 1_000  # characters of what a function raised: an answer to Temporal holds 2 MB

RecordFunction = Callable[[LedgerRecord], LedgerRecord | None]


class RecordFunctions(Protocol):
    """The functions that an operator has registered, by name."""

    def named(self, name: str) -> RecordFunction:
        """The function of that name.

        Raises:
            InvalidInput: None has it; names those that there are.
        """


def ends(name: str, function: RecordFunction, record: LedgerRecord) -> bool:
    """Whether the function ends the record.

    Raises:
        FunctionFailed: It raised, or answered neither the record nor None.
    """
    whose = f"function {name}: ledger {record.ledger_id} of {record.topic}"
    try:
        answer: object = function(record)
        if answer is None or answer == record:
            return answer is None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - one that calls `sys.exit` would otherwise be asked without end
        told = f"{type(error).__name__}: {error}"
        fit = told[:_TOLD].encode(errors="backslashreplace").decode()  # no lone surrogate travels
        raise FunctionFailed(f"{whose}: {fit}") from (error if fit == told else None)
    if not isinstance(answer, LedgerRecord):
        found = f"a {type(answer).__name__}"
    else:
        found = "another " + ", ".join(
            one.name for one in fields(record) if getattr(answer, one.name) != getattr(record, one.name)
        )
    raise FunctionFailed(f"{whose}: expected the record as it is, or None, found {found}: nothing of it may be changed")
