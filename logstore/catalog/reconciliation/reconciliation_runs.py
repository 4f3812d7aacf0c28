"""Runs of reconciliations in SQL, and the changes that an apply makes in the catalog."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Row, and_, func, select

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.deletion.intent_queries import INTENT_COLUMNS, intent_from_row
from logstore.catalog.deletion.run_rows import (
    finish_run,
    insert_run_if_absent,
    match_held_runs,
    remove_runs,
    renew_or_claim_run,
    set_run_summary,
    set_unfinished_run_summary,
)
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import dataclass_from_row
from logstore.catalog.reconciliation import apply_decisions
from logstore.catalog.reconciliation.cluster_journal import remove_journals
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch
from logstore.ports.catalog.reconciliation import (
    CatalogTimeAndIds,
    FiledCopyRow,
    FindingsFilingRequest,
    FindingsToFile,
    ReconciliationRun,
    RunKind,
    SingleObjectAnswers,
)
from logstore.positions import LedgerId
from logstore.reconciliation.findings import FateOfFinding, plan_run_id

_P, _R, _L = t.pending_deletion.c, t.run.c, t.ledger.c
_IS_RECONCILIATION_RUN = _R.kind.in_([kind.value for kind in RunKind])


class ReconciliationRuns(CatalogAdapter):
    """Runs of plans, scrubs and applies, and the writes that turn orphans into intents."""

    @in_read_transaction
    def read_catalog_time_and_ids(self, connection: Connection) -> CatalogTimeAndIds:
        row = read_catalog_row(connection)
        now = self._db.now_us(connection)
        return CatalogTimeAndIds(now_us=now, epoch=row.epoch, next_ledger_id=row.next_ledger_id)

    def count_ledgers(self, *, below: int) -> int:
        query = select(func.count()).where(_L.ledger_id < below)
        return self._db.read(lambda connection: connection.execute(query).scalar_one())

    @in_write_transaction("catalog.open_run")
    def open_run(
        self, connection: Connection, run_id: str, kind: RunKind, *, claim: Claim, summary: Mapping[str, Any]
    ) -> ReconciliationRun:
        """Insert a run with a claim, or renew the claim on an unfinished run. Return the run.

        Raises:
            PreconditionFailed: The id belongs to a run of another kind.
            ClaimHeld: Another workflow has claimed the run.
        """
        now = self._db.now_us(connection)
        was_inserted = insert_run_if_absent(connection, run_id, kind.value, summary, claim=claim, now_us=now)
        row = connection.execute(select(t.run).where(_R.run_id == run_id).with_for_update()).one()
        if row.kind != kind.value:
            raise PreconditionFailed(f"run {run_id}: expected one of {kind.value}, found one of {row.kind}")
        if not was_inserted and row.finished_us is None:
            renew_or_claim_run(connection, run_id, claim, now)
        return _run_from_row(row)

    @in_write_transaction("catalog.close_run")
    def close_run(self, connection: Connection, run_id: str, summary: Mapping[str, Any]) -> None:
        """Finish a run and store `summary`. A finished run does not change. Raise `UnknownObject` for an unknown id."""
        _require_run(connection, run_id)
        if finish_run(connection, run_id, self._db.now_us(connection)) is not None:
            set_run_summary(connection, run_id, summary)

    @in_write_transaction("catalog.store_run_summary")
    def store_summary(self, connection: Connection, run_id: str, summary: Mapping[str, Any]) -> None:
        """Replace the summary of an unfinished run. A finished run does not change.

        Raise `UnknownObject` for an unknown id.
        """
        _require_run(connection, run_id)
        set_unfinished_run_summary(connection, run_id, summary)

    def get_run(self, run_id: str) -> ReconciliationRun:
        """Return one run. Raise `UnknownObject` if no run has this id."""
        return self._db.read(lambda connection: _run_from_row(_require_run(connection, run_id)))

    def list_runs(self, kind: RunKind, *, limit: int) -> list[ReconciliationRun]:
        """Return runs, finished or not, newest first."""
        query = select(t.run).where(_R.kind == kind.value).order_by(_R.created_us.desc(), _R.run_id.desc()).limit(limit)
        return self._db.read(lambda connection: [_run_from_row(row) for row in connection.execute(query)])

    @in_write_transaction("catalog.forget_runs")
    def remove_old_runs(self, connection: Connection, *, older_than_s: float, limit: int) -> list[str]:
        """Remove old runs on which no workflow works. Return the ids of the removed runs.

        The age of a run counts from its end. If it has not finished, its age counts from the end of its last claim.
        The newest finished plan of the own store stays, and that of a Pulsar cluster. A plan with an unfinished apply
        also stays. The caller then removes the output of the removed runs. If the caller dies first, the next plan
        removes the remaining files.
        """
        now = self._db.now_us(connection)
        newest_plans = [_read_newest_finished(connection, kind) for kind in (RunKind.PLAN, RunKind.CLUSTER_PLAN)]
        last_work_us = func.coalesce(_R.finished_us, _R.claim_until_us, _R.created_us)
        old = and_(last_work_us < now - int(older_than_s * 1_000_000), ~match_held_runs(now))
        unfinished_applies = select(_R.run_id).where(_R.kind == RunKind.APPLY.value, _R.finished_us.is_(None), ~old)
        needed_run_ids = {*newest_plans, *map(plan_run_id, connection.execute(unfinished_applies).scalars())}
        page = (
            select(_R.run_id)
            .where(_IS_RECONCILIATION_RUN, old, _R.run_id.not_in(needed_run_ids))
            .order_by(_R.created_us, _R.run_id)
        )
        run_ids = list(connection.execute(page.limit(limit).with_for_update()).scalars())
        remove_journals(connection, run_ids)
        apply_decisions.remove_fates(connection, run_ids)
        remove_runs(connection, select(_R.run_id).where(_R.run_id.in_(run_ids)))
        return run_ids

    @in_write_transaction("catalog.file_findings")
    def file_findings(self, connection: Connection, page: FindingsFilingRequest) -> DetachedBatch:
        """File a page of findings for phase two in one transaction. Check each finding again under locks.

        1. An orphan is kept if a row explains it (`doubt_orphan`), or if its intent is unfinished or a dead letter. An
           orphan is also kept if its id was never given out, or if its epoch is higher than the catalog's epoch. For
           any other orphan an intent of a new generation is filed.
        2. An unreferenced ledger is kept if it is referenced now, is CREATING, or does not exist. The ledger is also
           kept if rows that filing needs are lost, or if the row that named the ledger may be lost
           (`doubt_removal_of_unreferenced`). Any other unreferenced ledger is detached.
        3. A finding of a stalled deletion is kept if the deletion is no longer stalled. Otherwise the intent moves to
           the batch.

        The same transaction stores a decision about each of the findings (`read_fates`). The audit log gets one row.

        Idempotency: keyed by `batch_id`. A repeated call returns the first result, even if storage answers differently.

        Raises:
            UnknownObject: No apply has the run id.
            PreconditionFailed: The batch id belongs to another request.
        """
        return apply_decisions.file_findings(connection, page, self._db.now_us(connection))

    @in_read_transaction
    def find_filed_batch(self, connection: Connection, batch_id: str) -> DetachedBatch | None:
        """Return the result of an earlier `file_findings` with this batch id, or `None`."""
        return apply_decisions.find_filed_batch(connection, batch_id)

    @in_read_transaction
    def preview_filing(self, connection: Connection, findings: FindingsToFile) -> Mapping[int, str]:
        """Return why `file_findings` would keep findings now, by number of the finding. Take no lock."""
        return apply_decisions.preview_filing(connection, findings, self._db.now_us(connection))

    @in_write_transaction("catalog.decide_objects")
    def decide_single_objects(
        self, connection: Connection, run_id: str, page: int, answers: SingleObjectAnswers, *, cause: AuditCause
    ) -> Mapping[int, FateOfFinding | None]:
        """Decide which single objects of a page to delete, and store the decisions. Pass over the segments to delete.

        No writer will ever register a segment that is passed over. Its object is about to be deleted.

        An open ledger accepts only segment numbers above its highest number. The call raises this highest number to the
        number of the segment. So a late writer of the segment is refused, and uploads again with a higher number. A
        closed ledger accepts no segments.

        A segment is kept in these cases:

        - A row names the segment.
        - The segment's ledger is being created, has no primary copy, does not exist, or has lost rows of segments.
        - The ledger is open, and the segment's number is more than `MAX_NUMBERS_ABOVE_LAST` above the ledger's highest
          number.

        The audit log gets one row, unless all segments are kept.

        Idempotency: keyed by run, page and finding. All calls return the decisions of the first call, even if storage
        answers differently. Nothing is passed over again.

        Returns:
            Decisions and fates as in `read_fates`, of the single objects alone.

        Raises:
            UnknownObject: No apply has the run id.
        """
        return apply_decisions.decide_single_objects(
            connection, run_id, page, answers, cause=cause, now_us=self._db.now_us(connection)
        )

    @in_read_transaction
    def preview_pass_over_segments(
        self,
        connection: Connection,
        segment_by_finding: Mapping[int, tuple[LedgerId, int]],
        *,
        passed_over: Mapping[LedgerId, int],
    ) -> Mapping[int, str]:
        """Return the reasons to keep segments that `decide_single_objects` would find now. Take no lock.

        `passed_over` has, by ledger, the highest segment number among the segments that earlier previews passed over.
        """
        return apply_decisions.preview_pass_over_segments(connection, segment_by_finding, passed_over)

    @in_write_transaction("catalog.store_fates")
    def store_fates(self, connection: Connection, run_id: str, page: int, fates: Collection[FateOfFinding]) -> None:
        """Store fates of findings that an apply decided to remove. A finding that is kept stays kept."""
        apply_decisions.update_fates(connection, run_id, page, fates)

    @in_read_transaction
    def read_fates(self, connection: Connection, run_id: str, page: int) -> Mapping[int, FateOfFinding | None]:
        """Return the findings of a page about which an apply has decided, ascending by number.

        `None`: the apply decided to remove the finding, and its fate is not stored yet.
        """
        return apply_decisions.read_fates(connection, run_id, page)

    def list_filed_copies(self, batch_id: str, *, after: int, limit: int) -> list[FiledCopyRow]:
        """Return the rows of a batch with row ids above `after`, ascending. Leave out rows that a sweep moved away."""
        query = (
            select(*INTENT_COLUMNS).where(_P.batch_id == batch_id, _P.row_id > after).order_by(_P.row_id).limit(limit)
        )
        return self._db.read(lambda connection: [_filed_copy_from_row(row) for row in connection.execute(query)])


def _read_newest_finished(connection: Connection, kind: RunKind) -> str:
    """Return the run id, or "" if no run of this kind has finished."""
    finished = select(_R.run_id).where(_R.kind == kind.value, _R.finished_us.is_not(None))
    return connection.execute(finished.order_by(_R.created_us.desc(), _R.run_id.desc()).limit(1)).scalar() or ""


def _require_run(connection: Connection, run_id: str) -> Row[Any]:
    row = connection.execute(select(t.run).where(_R.run_id == run_id, _IS_RECONCILIATION_RUN)).first()
    if row is None:
        raise UnknownObject("run id", expected="that of a plan or an apply, as `orphans list` shows it", found=run_id)
    return row


def _run_from_row(row: Row[Any]) -> ReconciliationRun:
    return dataclass_from_row(ReconciliationRun, row, kind=RunKind(row.kind))


def _filed_copy_from_row(row: Row[Any]) -> FiledCopyRow:
    intent = intent_from_row(row)
    return FiledCopyRow(
        row_id=intent.row_id,
        ledger_id=intent.ledger_id,
        copy=intent.copy,
        uuid=intent.context.get("uuid", ""),
        outcome=intent.outcome,
        error=intent.last_error,
        objects=row.objects_deleted,
        size_bytes=row.bytes_deleted,
    )
