"""Record functions of an operator, which decide which records of closed ledgers are deleted.

A function that returns its record unchanged keeps the record. A function that returns `None` deletes the record. Any
other result is refused.

After a crash the function is called again, and must return the same result for the same record. A function that depends
on the time must use `LedgerRecord.now_us`. No lock is held during the call. A record that changes between call and
deletion stays.

Source: Aerospike's record functions, which may remove their record.
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
    size_bytes: int  # size of the primary copy, even after the removal of this copy
    created_us: int  # all times: microseconds since 1970 by the catalog's clock
    closed_us: int
    copies: frozenset[CopyKind]  # readable copies
    generation: int  # number of times that copies were removed
    now_us: int  # time at which the selection started; equal for all records and all repeated calls


_MAX_ERROR_CHARACTERS: Final = 1_000  # longest error text of a function; a workflow payload holds at most 2 MB

RecordFunction = Callable[[LedgerRecord], LedgerRecord | None]


class RecordFunctionRegistry(Protocol):
    def find_function(self, name: str) -> RecordFunction:
        """Return the function with this name. Raise `InvalidInput`, which lists all names, if there is none."""


def should_end_record(name: str, function: RecordFunction, record: LedgerRecord) -> bool:
    """Call the function and return whether the record should be deleted.

    Raise `FunctionFailed` if the function raised, or returned neither the record nor `None`.
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
