"""Values of workflows, imported past the sandbox."""

from workflows.values.deletion import (
    DeleteLedgerInput,
    DeleteLedgerProgress,
    DeleteLedgersInput,
    DeleteLedgersProgress,
    DeletionPolicy,
    ExplicitDetach,
)
from workflows.values.sweeping import SweepDeletionsInput, SweepDeletionsResult
from workflows.values.topics import DeleteTopicInput, DeleteTopicResult
from workflows.values.trimming import TrimTopicInput, TrimTopicResult

__all__ = [
    "DeleteLedgerInput",
    "DeleteLedgerProgress",
    "DeleteLedgersInput",
    "DeleteLedgersProgress",
    "DeleteTopicInput",
    "DeleteTopicResult",
    "DeletionPolicy",
    "ExplicitDetach",
    "SweepDeletionsInput",
    "SweepDeletionsResult",
    "TrimTopicInput",
    "TrimTopicResult",
]
