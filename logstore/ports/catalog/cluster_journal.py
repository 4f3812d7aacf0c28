"""Port of the journal of deletions in a Pulsar cluster: what an apply deletes, with all that an undo needs."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from logstore.pulsar.cluster_findings import RemovalPart


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledRemoval:
    """Finding that an apply removes for good, as it was right before. No undo puts it back."""

    number: int  # of the finding
    kind: str  # `FindingKind`
    path: str  # of a managed ledger, or key of an offload
    bucket: str  # "" for a managed ledger
    parts: list[RemovalPart]
    removed_us: int | None = None  # None: its removal is not confirmed


class ClusterJournal(Protocol):
    """Deletions of the applies of plans of a cluster. `run_id` is that of an apply."""

    def add(self, run_id: str, ledgers: Sequence[JournaledLedger]) -> None:
        """Store ledgers before their deletion. A ledger that is in the journal keeps its first row.

        Raises:
            UnknownObject: No run has this id.
        """

    def find_ledger_ids(self, run_id: str, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return those of the ids that are in the journal."""

    def settle(self, run_id: str, *, deleted_ids: Collection[int], existing_ids: Collection[int]) -> None:
        """Store the time of deletion, and forget ledgers that were never deleted. Idempotent: the first time stays.

        A ledger that an undo has put back stays in the journal.
        """

    def store_undo_results(self, run_id: str, ledgers: Sequence[JournaledLedger]) -> None:
        """Store `restoration` and `stored_data` of ledgers of the journal. Idempotent."""

    def list_ledgers(
        self, run_id: str, *, after: int, limit: int, ledger_ids: Collection[int] | None = None
    ) -> list[JournaledLedger]:
        """Return ledgers with ids above `after`, ascending, only those of `ledger_ids` if it is given.

        The journal leaves with the run.
        """

    def add_removals(self, run_id: str, removals: Sequence[JournaledRemoval]) -> None:
        """Store removals that no undo puts back, before they begin. A finding of the journal keeps its first row.

        Raises:
            UnknownObject: No run has this id.
        """

    def settle_removals(self, run_id: str, numbers: Collection[int]) -> None:
        """Store the time of removal. Idempotent: the first time stays."""

    def list_removals(
        self, run_id: str, *, after: int, limit: int, numbers: Collection[int] | None = None
    ) -> list[JournaledRemoval]:
        """Return removals with numbers above `after`, ascending, only those of `numbers` if it is given."""


_LEDGERS_PER_PAGE = 1_000


def iterate_journal(
    journal: ClusterJournal, run_id: str, *, ledger_ids: Collection[int] | None = None
) -> Iterator[JournaledLedger]:
    """Yield the ledgers of a journal, ascending. Memory holds one page."""
    after = -1
    while page := journal.list_ledgers(run_id, after=after, limit=_LEDGERS_PER_PAGE, ledger_ids=ledger_ids):
        yield from page
        after = page[-1].ledger_id


def iterate_removals(journal: ClusterJournal, run_id: str) -> Iterator[JournaledRemoval]:
    """Yield the removals of a journal that no undo puts back, ascending. Memory holds one page."""
    after = -1
    while page := journal.list_removals(run_id, after=after, limit=_LEDGERS_PER_PAGE):
        yield from page
        after = page[-1].number
