"""Port of the journal of deletions in a Pulsar cluster: what an apply deletes, with all that an undo needs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledLedger:
    """Znode of a ledger, as it was right before its deletion."""

    ledger_id: int
    path: str  # below the root of the cluster's ledgers
    version: int
    czxid: int  # transaction that created the znode
    data: bytes
    deleted_us: int | None = None  # None: its deletion is not confirmed
    restoration: str | None = None  # result of the last undo, a `Restoration`; None: there was none
    stored_data: str | None = None  # what the last undo saw on bookies, a `StoredData`


class ClusterJournal(Protocol):
    """Deletions of the applies of plans of a cluster. `run_id` is that of an apply."""

    def add(self, run_id: str, ledgers: Sequence[JournaledLedger]) -> None:
        """Store ledgers before their deletion. A ledger that is in the journal keeps its first row.

        Raises:
            UnknownObject: No run has this id.
        """

    def find_ledger_ids(self, run_id: str, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return those of the ids that are in the journal."""

    def mark_deleted(self, run_id: str, ledger_ids: Collection[int]) -> None:
        """Store the time of deletion. Idempotent: the first time stays."""

    def store_undo_results(self, run_id: str, ledgers: Sequence[JournaledLedger]) -> None:
        """Store `restoration` and `stored_data` of ledgers of the journal. Idempotent."""

    def list_ledgers(
        self, run_id: str, *, after: int, limit: int, ledger_ids: Collection[int] | None = None
    ) -> list[JournaledLedger]:
        """Return ledgers with ids above `after`, ascending, only those of `ledger_ids` if it is given.

        The journal leaves with the run.
        """
