"""The function that workers of the soak are asked for by `records end`; see the setting `functions`."""

from logstore.records.functions import LedgerRecord

OFFERED_NAME_PART = "spare-offered-"
"""Part of the names of topics that it ends ledgers of."""


def every_other(record: LedgerRecord) -> LedgerRecord | None:
    """Ledgers with an even id end, of topics that are offered."""
    return None if OFFERED_NAME_PART in record.topic and record.ledger_id % 2 == 0 else record
