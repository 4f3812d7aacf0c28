"""Record functions: functions of an operator that decide about records of closed ledgers.

A function gets a record. If it returns the record unchanged, the record stays. If it returns `None`, the record is
deleted. Any other result is refused, because other commands change lists, copies and cursors.

For the same record a function must always return the same result, because it is called again after a crash. A function
that depends on the time uses `now_us`. No lock is held during the call. If a record changes after the call, the record
stays.

Source: Aerospike's record functions (a function that removes the record ends it, under the policy of its call).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Protocol

from logstore.errors import FunctionFailed
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """Input of a record function: the record of a closed message ledger."""

    topic: str  # encoded name
    ledger_id: LedgerId
    entries: int
    size_bytes: int  # of the primary copy, even after its removal
    created_us: int  # all times: microseconds since 1970 by the catalog's clock
    closed_us: int
    copies: frozenset[CopyKind]  # readable copies
    generation: int  # number of times that copies were removed
    now_us: int  # start of the selection, equal for all records and all repeated calls


_MAX_ERROR_CHARACTERS: Final = 1_000  # characters of a function's error; a Temporal payload holds 2 MB

RecordFunction = Callable[[LedgerRecord], LedgerRecord | None]


class RecordFunctionRegistry(Protocol):
    """Functions that an operator has registered, by name."""

    def find_function(self, name: str) -> RecordFunction:
        """Return the function with the name.

        Raises:
            InvalidInput: No function has the name. The error lists all names.
        """


def should_end_record(name: str, function: RecordFunction, record: LedgerRecord) -> bool:
    """Call the function and return whether the record should be deleted.

    Raises:
        FunctionFailed: The function raised, or returned neither the record nor `None`.
    """
    subject = f"function {name}: ledger {record.ledger_id} of {record.topic}"
    try:
        result: object = function(record)
        if result is None or result == record:
            return result is None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a function that calls `sys.exit` would be retried for ever
        text = f"{type(error).__name__}: {error}"
        # Temporal refuses lone surrogates.
        safe_text = text[:_MAX_ERROR_CHARACTERS].encode(errors="backslashreplace").decode()
        raise FunctionFailed(f"{subject}: {safe_text}") from (error if safe_text == text else None)
    if not isinstance(result, LedgerRecord):
        found = f"a {type(result).__name__}"
    else:
        changed = (field.name for field in fields(record) if getattr(result, field.name) != getattr(record, field.name))
        found = "another " + ", ".join(changed)
    raise FunctionFailed(
        f"{subject}: expected the record as it is, or None, found {found}: nothing of it may be changed"
    )
