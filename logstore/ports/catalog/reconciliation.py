"""Port of a reconciliation to the catalog."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from logstore.deletion.intents import Outcome
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.ports.catalog.claims import Cause, Claim, DetachedBatch
from logstore.positions import LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogState:
    """Clock, epoch and next ledger id of the catalog at one moment."""

    now_us: int
    epoch: int
    next_ledger_id: int  # no ledger of this catalog has this id or a higher one


class RunKind(StrEnum):
    """Kind of a run. Stored by name."""

    PLAN = "reconcile-orphans"
    APPLY = "apply-orphans"
    SNAPSHOTS = "build-transaction-snapshots"
    INDEXES = "build-delayed-index"
    SCRUB = "scrub-ledgers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationRun:
    """Row of a run."""

    run_id: str
    kind: RunKind
    created_us: int
    finished_us: int | None  # None: unfinished, or failed
    summary: Mapping[str, Any]  # the values that it began with, and the result of a finished run


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanCopy:
    """Copy in storage that no row of the catalog names."""

    number: int  # of the finding
    copy: CopyKind
    statement: LedgerStatement  # in storage, read just before
    context: Mapping[str, str] = field(default_factory=dict)  # offload context of a tiered copy
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsToFile:
    """Findings of one page for phase two."""

    batch_id: str
    orphans: Sequence[OrphanCopy]
    unreferenced: Mapping[int, LedgerId]  # by number of the finding
    stalled: Mapping[int, int]  # row id of the intent by number of the finding


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOfFindings(FindingsToFile):
    """Findings to file, with the claim and the cause of the apply."""

    claim: Claim  # on the batch, of the workflow that does phase two
    cause: Cause  # of the apply


@dataclass(frozen=True, slots=True, kw_only=True)
class FilingResult:
    """Result of filing a page of findings. A repeated call returns the same."""

    detached: DetachedBatch  # the batch of phase two
    kept: Mapping[int, str]  # reason why nothing was done, by number of the finding


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledCopy:
    """Row of a batch, as it is now."""

    row_id: int
    ledger_id: LedgerId
    copy: CopyKind
    uuid: str  # of a tiered copy
    outcome: Outcome | None  # None: unfinished
    error: str | None
    objects: int  # confirmed as deleted
    size_bytes: int


class Reconciliation(Protocol):
    """Runs of plans, scrubs and applies, and the writes by which an orphan becomes an intent."""

    def catalog_state(self) -> CatalogState:
        """Return the state of the catalog."""

    def count_ledgers(self, *, below: int) -> int:
        """Return the number of ledger rows with a lower id."""

    def open_run(self, run_id: str, kind: RunKind, *, claim: Claim, summary: Mapping[str, Any]) -> ReconciliationRun:
        """Insert a claimed run, or renew the claim on an unfinished one. Return the run.

        Raises:
            PreconditionFailed: The id is of another kind of run.
            ClaimHeld: Another workflow works on the run.
        """

    def close_run(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """Finish a run with its result. The first result stays.

        Raises:
            UnknownObject: No run has this id.
        """

    def run(self, run_id: str) -> ReconciliationRun:
        """Return one run.

        Raises:
            UnknownObject: No run has this id.
        """

    def runs(self, kind: RunKind, *, limit: int) -> list[ReconciliationRun]:
        """Return runs, finished or not, newest first."""

    def forget(self, *, older_than_s: float, limit: int) -> list[str]:
        """Remove old runs that no workflow works on, and return their ids.

        The newest finished plan stays. A plan with an unfinished apply stays as long as that. A caller that dies before
        it removes the output of the runs leaves files without a run. The next plan removes them.
        """

    def file(self, page: PageOfFindings) -> FilingResult:
        """File a page of findings for phase two in one transaction, and look at each again under its locks.

        1. An orphan is kept if a row explains it (`doubt_orphan`), if an intent for it is unfinished or a dead letter,
           if its id was never given out, or if its epoch is higher than the catalog's. Otherwise an intent of a new
           generation is filed.
        2. An unreferenced ledger is kept if it is referenced now, is CREATING, does not exist, has lost the rows by
           which it is filed, or may have lost the row that named it (`doubt_unreferenced`). Otherwise it is detached.
        3. A stalled deletion is kept if it is not stalled any more. Otherwise it moves to the batch.

        The audit log gets one row.

        Idempotency: keyed by `batch_id`. A repeated call returns the first result.

        Raises:
            PreconditionFailed: The batch id is of another request.
        """

    def preview_filing(self, findings: FindingsToFile) -> Mapping[int, str]:
        """Return the reasons by which `file` would keep findings now, by number. Takes no lock.

        Of a batch that is filed, return the reasons of that call.

        Raises:
            PreconditionFailed: The batch id is of another request.
        """

    def pass_over(self, segments: Mapping[int, tuple[LedgerId, int]], *, cause: Cause) -> Mapping[int, str]:
        """Make sure that no writer will ever register these segments, whose objects are about to be deleted.

        An open ledger takes only numbers above its highest, which is raised to the segment's number. A late writer is
        then refused, and uploads again under a higher number. A closed ledger takes no segments.

        A segment is kept if a row names it, or if its ledger is being created, has no primary copy, does not exist, or
        lacks rows of segments. A number of an open ledger is kept if it is more than `MAX_NUMBERS_ABOVE_LAST` above the
        highest, until the ledger is closed. The audit log gets one row, unless all are kept.

        Args:
            segments: Ledger and segment number by number of the finding.
            cause: Of the apply.

        Returns:
            Reasons to keep objects by number of the finding. The others may be deleted.

        Idempotency: a number is raised once.
        """

    def preview_pass_over(
        self, segments: Mapping[int, tuple[LedgerId, int]], *, passed_over: Mapping[LedgerId, int]
    ) -> Mapping[int, str]:
        """Return what `pass_over` would return now. Takes no lock.

        Args:
            segments: Ledger and segment number by number of the finding.
            passed_over: Highest segment of each ledger that earlier calls would have passed over.
        """

    def filed(self, batch_id: str, *, after: int, limit: int) -> list[FiledCopy]:
        """Return rows of a batch above the row id `after`, ascending. Rows that a sweep took over are in its batch."""
