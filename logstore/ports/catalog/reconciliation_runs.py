"""Port of the catalog for reconciliation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from logstore.deletion.intents import Outcome
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.ports.catalog.claims_and_deletion_results import AuditCause, Claim, DetachedBatch
from logstore.positions import LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTimeAndIds:
    now_us: int
    epoch: int
    next_ledger_id: int  # higher than every ledger id of this catalog


class RunKind(StrEnum):
    """Kind of a reconciliation run. The catalog stores the value."""

    PLAN = "reconcile-orphans"
    APPLY = "apply-orphans"
    SNAPSHOTS = "build-transaction-snapshots"
    INDEXES = "build-delayed-index"
    SCRUB = "scrub-ledgers"
    CLUSTER_PLAN = "plan-pulsar"
    ABORT = "abort-transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationRun:
    run_id: str
    kind: RunKind
    created_us: int
    finished_us: int | None  # None: unfinished, or failed
    summary: Mapping[str, Any]  # arguments of the run, and the result of a finished run


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanCopy:
    """Copy in storage that no row of the catalog names."""

    number: int  # number of the finding
    copy: CopyKind
    statement: LedgerStatement  # statement in storage, read right before the call
    context: Mapping[str, str] = field(default_factory=dict)  # offload context of a tiered copy
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsToFile:
    batch_id: str
    orphans: Sequence[OrphanCopy]
    unreferenced: Mapping[int, LedgerId]  # ledger by number of the finding
    stalled: Mapping[int, int]  # row id of the intent, by number of the finding


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsFilingRequest(FindingsToFile):
    claim: Claim  # claim on the batch, of the workflow that does phase two
    cause: AuditCause  # actor, reason and workflow of the apply


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsFilingResult:
    detached: DetachedBatch  # batch of phase two
    kept: Mapping[int, str]  # reason why a finding was not filed, by its number


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledCopyRow:
    row_id: int
    ledger_id: LedgerId
    copy: CopyKind
    uuid: str  # uuid of the tiered copy
    outcome: Outcome | None  # None: unfinished
    error: str | None
    objects: int  # number of objects whose deletion storage confirmed
    size_bytes: int


class ReconciliationRuns(Protocol):
    """Runs of plans, scrubs and applies, and the writes that turn orphans into intents."""

    def read_catalog_time_and_ids(self) -> CatalogTimeAndIds: ...

    def count_ledgers(self, *, below: int) -> int: ...

    def open_run(self, run_id: str, kind: RunKind, *, claim: Claim, summary: Mapping[str, Any]) -> ReconciliationRun:
        """Insert a run with a claim, or renew the claim on an unfinished run. Return the run.

        Raises:
            PreconditionFailed: The id belongs to a run of another kind.
            ClaimHeld: Another workflow has claimed the run.
        """

    def close_run(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """Finish a run and store `summary`. A finished run does not change. Raise `UnknownObject` for an unknown id."""

    def store_summary(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """Replace the summary of an unfinished run. A finished run does not change.

        Raise `UnknownObject` for an unknown id.
        """

    def get_run(self, run_id: str) -> ReconciliationRun:
        """Return one run. Raise `UnknownObject` if no run has this id."""

    def list_runs(self, kind: RunKind, *, limit: int) -> list[ReconciliationRun]:
        """Return runs, finished or not, newest first."""

    def remove_old_runs(self, *, older_than_s: float, limit: int) -> list[str]:
        """Remove old runs on which no workflow works. Return the ids of the removed runs.

        The age of a run counts from its end. If it has not finished, its age counts from the end of its last claim.
        The newest finished plan of the own store stays, and that of a Pulsar cluster. A plan with an unfinished apply
        also stays. The caller then removes the output of the removed runs. If the caller dies first, the next plan
        removes the remaining files.
        """

    def file_findings(self, page: FindingsFilingRequest) -> FindingsFilingResult:
        """File a page of findings for phase two in one transaction. Check each finding again under locks.

        1. An orphan is kept if a row explains it (`doubt_orphan`), or if its intent is unfinished or a dead letter. An
           orphan is also kept if its id was never given out, or if its epoch is higher than the catalog's epoch. For
           any other orphan an intent of a new generation is filed.
        2. An unreferenced ledger is kept if it is referenced now, is CREATING, or does not exist. The ledger is also
           kept if rows that filing needs are lost, or if the row that named the ledger may be lost
           (`doubt_removal_of_unreferenced`). Any other unreferenced ledger is detached.
        3. A finding of a stalled deletion is kept if the deletion is no longer stalled. Otherwise the intent moves to
           the batch.

        The audit log gets one row.

        Idempotency: keyed by `batch_id`. A repeated call returns the first result.

        Raises:
            PreconditionFailed: The batch id belongs to another request.
        """

    def preview_filing(self, findings: FindingsToFile) -> Mapping[int, str]:
        """Return why `file_findings` would keep findings now, by number of the finding. Take no lock.

        If the batch is already filed, return the reasons of the earlier `file_findings` call. Raise
        `PreconditionFailed` if the batch id belongs to another request.
        """

    def pass_over_segments(
        self, segment_by_finding: Mapping[int, tuple[LedgerId, int]], *, cause: AuditCause
    ) -> Mapping[int, str]:
        """Ensure that no writer will ever register the given segments. Their objects are about to be deleted.

        An open ledger accepts only segment numbers above its highest number. The call raises this highest number to the
        number of the segment. So a late writer of the segment is refused, and uploads again with a higher number. A
        closed ledger accepts no segments.

        A segment is kept in these cases:

        - A row names the segment.
        - The segment's ledger is being created, has no primary copy, does not exist, or has lost rows of segments.
        - The ledger is open, and the segment's number is more than `MAX_NUMBERS_ABOVE_LAST` above the ledger's highest
          number.

        The audit log gets one row, unless all segments are kept. The values of `segment_by_finding` are ledger and
        segment number.

        Idempotency: a repeated call does not raise a number again.

        Returns:
            Reasons to keep segments, by number of the finding. The objects of all other segments may be deleted.
        """

    def preview_pass_over_segments(
        self, segment_by_finding: Mapping[int, tuple[LedgerId, int]], *, passed_over: Mapping[LedgerId, int]
    ) -> Mapping[int, str]:
        """Return the result that `pass_over_segments` would have now. Take no lock.

        `passed_over` has, by ledger, the highest segment number among the segments that earlier previews passed over.
        """

    def list_filed_copies(self, batch_id: str, *, after: int, limit: int) -> list[FiledCopyRow]:
        """Return the rows of a batch with row ids above `after`, ascending. Leave out rows that a sweep moved away."""
