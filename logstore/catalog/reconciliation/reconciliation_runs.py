"""Runs of reconciliations in SQL, and the changes that an apply makes in the catalog."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, func, literal, select

from logstore.catalog import tables as t
from logstore.catalog.audit_log import AuditedLedgers, insert_audit_row
from logstore.catalog.deletion.intent_queries import INTENT_COLUMNS, intent_from_row
from logstore.catalog.deletion.run_rows import (
    SEVERAL_TOPICS,
    finish_run,
    insert_run_if_absent,
    match_held_runs,
    remove_runs,
    renew_or_claim_run,
    set_run_summary,
    set_unfinished_run_summary,
)
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import BIG, BulkStatement, build_bulk_parameter, dataclass_from_row, is_one_of
from logstore.catalog.identity.catalog_row import read_catalog_row
from logstore.catalog.log.ledger_rows import raise_last_segments
from logstore.catalog.log.topic_rows import share_lock_and_filter_active_topics
from logstore.catalog.reconciliation.cluster_journal import remove_journals
from logstore.catalog.reconciliation.findings_filing import file_findings, preview_filing
from logstore.catalog.reconciliation.rows_naming_ledgers import build_segment_sum_columns
from logstore.catalog.records.recorded_tables import enqueue_records
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import CopyKind, LedgerState
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.reconciliation import (
    CatalogTimeAndIds,
    FiledCopyRow,
    FindingsFilingRequest,
    FindingsFilingResult,
    FindingsToFile,
    ReconciliationRun,
    RunKind,
)
from logstore.positions import LedgerId
from logstore.reconciliation.findings import plan_run_id
from logstore.reconciliation.orphan_doubts_from_rows import SegmentSums, describe_lost_segments
from logstore.reconciliation.plausibility_guards import reason_to_keep_segment, takes_segments

_P, _R, _L, _S, _C = t.pending_deletion.c, t.run.c, t.ledger.c, t.segment.c, t.ledger_copy.c
_MAX_AUDITED_KEYS: Final = 10  # sample of the segments' keys in one audit row
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
        remove_runs(connection, select(_R.run_id).where(_R.run_id.in_(run_ids)))
        return run_ids

    @in_write_transaction("catalog.file_findings")
    def file_findings(self, connection: Connection, page: FindingsFilingRequest) -> FindingsFilingResult:
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
        return file_findings(connection, page, self._db.now_us(connection))

    @in_read_transaction
    def preview_filing(self, connection: Connection, findings: FindingsToFile) -> Mapping[int, str]:
        """Return why `file_findings` would keep findings now, by number of the finding. Take no lock.

        If the batch is already filed, return the reasons of the earlier `file_findings` call. Raise
        `PreconditionFailed` if the batch id belongs to another request.
        """
        return preview_filing(connection, findings, self._db.now_us(connection))

    @in_write_transaction("catalog.pass_over")
    def pass_over_segments(
        self, connection: Connection, segment_by_finding: Mapping[int, tuple[LedgerId, int]], *, cause: AuditCause
    ) -> Mapping[int, str]:
        # Lock order of an append: topics, then ledgers.
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
        _lock_topics_and_ledgers(connection, {ledger_id for ledger_id, _ in segment_by_finding.values()})
        ledgers = _read_ledgers_by_id(connection, {ledger_id for ledger_id, _ in segment_by_finding.values()})
        reason_by_kept_segment = _find_reasons_to_keep_segments(connection, segment_by_finding, ledgers, {})
        passed_segments = sorted(
            segment for number, segment in segment_by_finding.items() if number not in reason_by_kept_segment
        )
        if passed_segments:
            highest_number_by_ledger: dict[int, int] = {
                ledger_id: number
                for ledger_id, number in passed_segments
                if takes_segments(LedgerState(ledgers[ledger_id].state))
            }
            raise_last_segments(connection, highest_number_by_ledger)
            ids = sorted({ledger_id for ledger_id, _ in passed_segments})
            now_us = self._db.now_us(connection)
            # No trigger records `last_segment`, because the record of a new segment has it. Here, no segment is new.
            changed = select(literal("ledger"), _L.ledger_id, literal("")).where(
                is_one_of(connection, _L.ledger_id, ids)
            )
            enqueue_records(connection, changed, at_us=now_us)
            about: dict[str, Any] = {**_read_common_topic(connection, ids), "span": AuditedLedgers.from_ids(ids)}
            keys = [segment_key(ledger_id, number) for ledger_id, number in passed_segments[:_MAX_AUDITED_KEYS]]
            detail = {"segments": len(passed_segments), "kept": len(reason_by_kept_segment), "keys": keys}
            insert_audit_row(connection, "pass-over-segments", cause, at_us=now_us, detail=detail, **about)
        return reason_by_kept_segment

    @in_read_transaction
    def preview_pass_over_segments(
        self,
        connection: Connection,
        segment_by_finding: Mapping[int, tuple[LedgerId, int]],
        *,
        passed_over: Mapping[LedgerId, int],
    ) -> Mapping[int, str]:
        """Return the result that `pass_over_segments` would have now. Take no lock.

        `passed_over` has, by ledger, the highest segment number among the segments that earlier previews passed over.
        """
        ledgers = _read_ledgers_by_id(connection, {ledger_id for ledger_id, _ in segment_by_finding.values()})
        return _find_reasons_to_keep_segments(connection, segment_by_finding, ledgers, passed_over)

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


def _read_common_topic(connection: Connection, ids: Sequence[int]) -> dict[str, Any]:
    """Return id and name of the ledgers' topic. For several topics, return `SEVERAL_TOPICS` and no name."""
    of_ledgers = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    ledgers_with_topics = of_ledgers.join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
    query = (
        select(t.topic.c.topic_id, t.topic.c.name)
        .select_from(ledgers_with_topics)
        .where(is_one_of(connection, _L.ledger_id, ids))
    )
    topics = connection.execute(query.distinct().limit(2)).all()
    topic = topics[0] if len(topics) == 1 else None
    return {"topic_id": topic.topic_id if topic else SEVERAL_TOPICS, "topic": topic.name if topic else None}


def _lock_topics_and_ledgers(connection: Connection, ids: set[LedgerId]) -> None:
    is_asked = is_one_of(connection, _L.ledger_id, ids)
    of_list = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    topics = select(t.ledger_list.c.topic_id).select_from(of_list).where(is_asked).distinct()
    share_lock_and_filter_active_topics(connection, connection.execute(topics).scalars())
    connection.execute(select(_L.ledger_id).where(is_asked).order_by(_L.ledger_id).with_for_update())


def _read_ledgers_by_id(connection: Connection, ids: set[LedgerId]) -> dict[int, Any]:
    copy = and_(_C.ledger_id == _L.ledger_id, _C.kind == CopyKind.LEDGER.value)
    columns = (_L.ledger_id, _L.state, _L.last_segment, _L.segments, _L.entries, _L.size_bytes)
    query = select(*columns, _C.kind.label("primary"), *build_segment_sum_columns())
    rows = connection.execute(
        query.select_from(t.ledger.outerjoin(t.ledger_copy, copy)).where(is_one_of(connection, _L.ledger_id, ids))
    )
    return {row.ledger_id: row for row in rows}


def _find_reasons_to_keep_segments(
    connection: Connection,
    segments: Mapping[int, tuple[LedgerId, int]],
    ledgers: Mapping[int, Any],
    passed_over: Mapping[LedgerId, int],
) -> dict[int, str]:
    """Return, by number of the finding, why a segment is kept. `passed_over` has the last segment number by ledger."""
    registered = _filter_registered_segments(connection, sorted(set(segments.values())))
    return {
        number: f"segment {segment[1]} of ledger {segment[0]}: {reason}"
        for number, segment in segments.items()
        if (
            reason := _find_reason_to_keep_segment(
                ledgers.get(segment[0]), segment, registered, passed_over.get(segment[0], -1)
            )
        )
    }


def _filter_registered_segments(
    connection: Connection, segments: Sequence[tuple[LedgerId, int]]
) -> set[tuple[int, int]]:
    rows = build_bulk_parameter(connection.dialect.name, "asked", {"ledger_id": BIG, "number": BIG})
    same = and_(_S.ledger_id == rows.source.c.ledger_id, _S.number == rows.source.c.number)
    query = BulkStatement(sql=select(_S.ledger_id, _S.number).join_from(t.segment, rows.source, same), rows=rows)
    return {(row.ledger_id, row.number) for row in query.execute(connection, segments)}


def _find_reason_to_keep_segment(
    ledger: Any,  # noqa: ANN401 - a row
    segment: tuple[int, int],
    registered: set[tuple[int, int]],
    passed_over: int,
) -> str | None:
    if ledger is None:
        return "the ledger has left the catalog"
    if segment in registered:
        return "a row names it"
    counted = SegmentSums(segments=ledger.segments, entries=ledger.entries, size_bytes=ledger.size_bytes)
    summed = SegmentSums(
        segments=ledger.summed_segments, entries=ledger.summed_entries, size_bytes=ledger.summed_size_bytes
    )
    if reason := describe_lost_segments(counted, summed):
        return f"{reason}; the object may be one of them"
    state, primary = LedgerState(ledger.state), ledger.primary is not None
    last_segment = max(ledger.last_segment, passed_over)
    return reason_to_keep_segment(state, last_segment=last_segment, has_primary_copy=primary, number=segment[1])
