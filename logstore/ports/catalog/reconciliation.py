"""What a reconciliation asks of the catalog, and what it may change there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from logstore.deletion.intents import Outcome
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.ports.catalog.claims import Cause, Claim, DetachedBatch
from logstore.positions import LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The catalog as a whole, at one moment."""

    now_us: int  # its own clock
    epoch: int
    next_ledger_id: int  # no ledger of this catalog has this id or a higher one


class RunKind(StrEnum):
    """Stored by name."""

    PLAN = "reconcile-orphans"
    APPLY = "apply-orphans"
    SNAPSHOTS = "build-transaction-snapshots"
    INDEXES = "build-delayed-index"
    SCRUB = "scrub-ledgers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationRun:
    """A plan or an apply, as its row tells."""

    run_id: str
    kind: RunKind
    created_us: int
    finished_us: int | None  # None: at work, or it failed
    summary: Mapping[str, Any]  # what it began with; once it is finished, what it came to


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanCopy:
    """A copy in storage for which the catalog has nothing, as a finding of a plan names it."""

    number: int  # of the finding
    copy: CopyKind
    statement: LedgerStatement  # as storage itself says, read just before
    context: Mapping[str, str] = field(default_factory=dict)  # where a tiered copy stands, with its uuid
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsToFile:
    """Findings of one page that phase two is to end."""

    batch_id: str  # of the batch of phase two
    orphans: Sequence[OrphanCopy]
    unreferenced: Mapping[int, LedgerId]  # finding's number → ledger
    stalled: Mapping[int, int]  # finding's number → `row_id`


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOfFindings(FindingsToFile):
    """Findings to file, with the claim and the cause of the apply."""

    claim: Claim  # of the workflow that does phase two, on the batch
    cause: Cause  # the actor of the apply, and the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Filing:
    """What became of a page of findings in the catalog; the same when the call is repeated."""

    detached: DetachedBatch  # the batch of phase two
    kept: Mapping[int, str]  # finding's number -> why nothing was done


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledCopy:
    """A row of a batch, as it stands now."""

    row_id: int
    ledger_id: LedgerId
    copy: CopyKind
    uuid: str  # of a tiered copy
    outcome: Outcome | None  # None: unfinished
    error: str | None
    objects: int  # confirmed as deleted
    size_bytes: int


class Reconciliation(Protocol):
    """Runs of plans and applies, and the few writes by which an orphan becomes an intent."""

    def standing(self) -> Standing:
        """The catalog as a whole; reads only."""

    def count_ledgers(self, *, below: int) -> int:
        """How many ledger rows have an id below that; reads only."""

    def open_run(self, run_id: str, kind: RunKind, *, claim: Claim, summary: Mapping[str, Any]) -> ReconciliationRun:
        """Begin a run, claimed; of one that was begun before, its row, held further.

        Raises:
            PreconditionFailed: The id is another kind's run.
            ClaimHeld: Another workflow is at work on it.
        """

    def close_run(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """Finish a run with what it came to; of one that is finished, the first summary stays.

        Raises:
            UnknownObject: No such run.
        """

    def run(self, run_id: str) -> ReconciliationRun:
        """One run.

        Raises:
            UnknownObject: No plan and no apply has this id.
        """

    def runs(self, kind: RunKind, *, limit: int) -> list[ReconciliationRun]:
        """Newest first, finished or not."""

    def forget(self, *, older_than_s: float, limit: int) -> list[str]:
        """Remove runs that were begun before that long and that no workflow works on; their ids.

        The newest finished plan stays, and so does one whose apply is unfinished, until that may be forgotten itself.
        Who dies before the output of these runs is removed leaves files that are of no run: a plan removes those too.
        """

    def file(self, page: PageOfFindings) -> Filing:
        """File a page of findings for phase two in one transaction, each looked at again under its locks.

        An orphan: kept if a ledger's row names this very copy (for a tiered one: its uuid), if an intent for it is
        unfinished or a dead letter, if its id was never given out, or if its epoch is higher than the catalog's; an
        intent that had ended is not opened again, another generation is filed. An unreferenced ledger: kept if it is
        referenced now, is CREATING, is gone, has lost the rows by which it is filed, or may have lost the row that
        named it (`doubt_unreferenced`); otherwise it leaves the catalog, as phase one detaches. A stalled deletion:
        kept if it is not stalled any more. One row in the audit
        log.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did.

        Raises:
            PreconditionFailed: The batch id is of another request.
        """

    def preview_filing(self, findings: FindingsToFile) -> Mapping[int, str]:
        """Return why `file` would do nothing about findings now, by number; reads only, and takes no lock.

        Of a batch that is filed: why nothing was done.

        Raises:
            PreconditionFailed: The batch id is of another request.
        """

    def pass_over(self, segments: Mapping[int, tuple[LedgerId, int]], *, cause: Cause) -> Mapping[int, str]:
        """Make sure that no writer will ever register these segments, whose objects are about to be deleted.

        An open ledger takes only numbers above its highest: that is raised to the segment's, under the ledger's lock.
        Kept is every segment of a ledger that lacks rows of segments: the object may be one of those that lost theirs.
        So a writer that wakes late is refused, uploads again under a later number, and nothing points at what is gone.
        A closed ledger takes none, and keeps its numbers. Kept is a segment that a row names, one of a ledger that is
        being created, has no primary copy or is gone, and a number of an open ledger that is more than 64 above its
        highest; it goes once the ledger is closed. One row in the audit log, unless all are kept.

        Args:
            segments: Finding's number → ledger and segment number.
            cause: Who applies, and why.

        Returns:
            Finding's number → why the object must be kept; those that are not named may be deleted.

        Idempotency: what is raised is not raised again.
        """

    def preview_pass_over(
        self, segments: Mapping[int, tuple[LedgerId, int]], *, passed_over: Mapping[LedgerId, int]
    ) -> Mapping[int, str]:
        """Return what `pass_over` would answer now; reads only, and takes no lock.

        Args:
            segments: Finding's number → ledger and segment number.
            passed_over: The highest segment of each ledger that earlier calls would have passed over.
        """

    def filed(self, batch_id: str, *, after: int, limit: int) -> list[FiledCopy]:
        """Rows of a batch with a higher `row_id` than `after`, ascending; those that a sweep took over are its own."""
