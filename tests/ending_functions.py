"""Functions over records, as an operator registers them."""

from dataclasses import replace
from typing import Final

from logstore.records.functions import LedgerRecord

_NAMES: Final = ("every", "even", "none", "broken_at_three", "changing", "leaving")
ENDING_FUNCTION_REFERENCES: Final = ",".join(f"{__name__}:{name}" for name in _NAMES)
"""What the setting `functions` says to have them."""

NOT_CALLABLE: Final = 3


def every(record: LedgerRecord) -> LedgerRecord | None:
    """End each."""
    del record
    return None


def even(record: LedgerRecord) -> LedgerRecord | None:
    """End those of even ids."""
    return record if record.ledger_id % 2 else None


def none(record: LedgerRecord) -> LedgerRecord | None:
    """End nothing."""
    return replace(record)


def broken_at_three(record: LedgerRecord) -> LedgerRecord | None:
    """End each, but for ledgers whose id ends in 3, which it cannot bear."""
    if record.ledger_id % 10 == 3:
        raise ValueError("planned: three")
    return None


def changing(record: LedgerRecord) -> LedgerRecord | None:
    """Answer another record."""
    return replace(record, size_bytes=record.size_bytes + 1, entries=0)


def leaving(record: LedgerRecord) -> LedgerRecord | None:
    """End the process that asks, as a script does."""
    raise SystemExit(f"planned: {record.ledger_id}")
