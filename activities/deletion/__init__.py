"""Two-phase deletion, one side effect an activity. Source: PIP-186."""

from activities.deletion.ledger_deletion import LedgerDeletion
from activities.deletion.phase_two import delete_ledger_id
from activities.deletion.upkeep import DeletionUpkeep
from activities.deletion.values import (
    AdoptInput,
    Certificate,
    CertifyInput,
    ChunkInput,
    ChunkResult,
    DeadLetterInput,
    DetachInput,
    DetachResult,
    ForgetInput,
    ForgetResult,
    HoldBatchInput,
    IntentKey,
    OneInput,
    OneResult,
    PauseBatchInput,
    Range,
    RangesInput,
    RangesPage,
    Refusal,
)

__all__ = [
    "AdoptInput",
    "Certificate",
    "CertifyInput",
    "ChunkInput",
    "ChunkResult",
    "DeadLetterInput",
    "DeletionUpkeep",
    "DetachInput",
    "DetachResult",
    "ForgetInput",
    "ForgetResult",
    "HoldBatchInput",
    "IntentKey",
    "LedgerDeletion",
    "OneInput",
    "OneResult",
    "PauseBatchInput",
    "Range",
    "RangesInput",
    "RangesPage",
    "Refusal",
    "delete_ledger_id",
]
