"""Values of workflows, imported past the sandbox."""

from workflows.values.deletion import (
    MOST_OBJECTS_PER_S,
    DeleteLedgerInput,
    DeleteLedgerProgress,
    DeleteLedgersInput,
    DeleteLedgersProgress,
    DeletionPolicy,
    ExplicitDetach,
    SetRate,
)
from workflows.values.offload import (
    OffloadAsk,
    OffloadLedgerInput,
    OffloadLedgerProgress,
    OffloadLedgerResult,
    OffloadOutcome,
    OffloadPolicy,
    OffloadTopicInput,
    OffloadTopicResult,
)
from workflows.values.sweeping import SweepDeletionsInput, SweepDeletionsResult
from workflows.values.topics import DeleteTopicInput, DeleteTopicResult
from workflows.values.trimming import TrimTopicInput, TrimTopicResult, TrimTopicsInput, TrimTopicsResult

__all__ = [
    "MOST_OBJECTS_PER_S",
    "DeleteLedgerInput",
    "DeleteLedgerProgress",
    "DeleteLedgersInput",
    "DeleteLedgersProgress",
    "DeleteTopicInput",
    "DeleteTopicResult",
    "DeletionPolicy",
    "ExplicitDetach",
    "OffloadAsk",
    "OffloadLedgerInput",
    "OffloadLedgerProgress",
    "OffloadLedgerResult",
    "OffloadOutcome",
    "OffloadPolicy",
    "OffloadTopicInput",
    "OffloadTopicResult",
    "SetRate",
    "SweepDeletionsInput",
    "SweepDeletionsResult",
    "TrimTopicInput",
    "TrimTopicResult",
    "TrimTopicsInput",
    "TrimTopicsResult",
]
