"""Two-phase deletion, one side effect an activity. Source: PIP-186."""

from activities.deletion.answers import delete_ledger_id
from activities.deletion.ledger_deletion import LedgerDeletion
from activities.deletion.values import (
    Certificate,
    CertifyInput,
    ChunkInput,
    ChunkResult,
    DeadLetterInput,
    DetachInput,
    DetachResult,
    IntentKey,
    OneInput,
    OneResult,
    Range,
    RangesInput,
    RangesPage,
)

__all__ = [
    "Certificate",
    "CertifyInput",
    "ChunkInput",
    "ChunkResult",
    "DeadLetterInput",
    "DetachInput",
    "DetachResult",
    "IntentKey",
    "LedgerDeletion",
    "OneInput",
    "OneResult",
    "Range",
    "RangesInput",
    "RangesPage",
    "delete_ledger_id",
]
