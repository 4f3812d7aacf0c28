"""Plans and applies in the catalog, and what an apply changes there."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, and_, func, select

from infra.catalog import tables as t
from infra.catalog.deletion.intents import INTENT, to_intent
from infra.catalog.deletion.runs import begin_run, finish_run, forget_runs, held, renew_run, set_summary
from infra.catalog.engine.database import OnDatabase, reads, writes
from infra.catalog.reconciliation.filing import file_page
from infra.catalog.reconciliation.segments import pass_segments_over
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.catalog import Cause, Claim
from logstore.ports.catalog.reconciliation import (
    FiledCopy,
    Filing,
    PageOfFindings,
    ReconciliationRun,
    RunKind,
    Standing,
)
from logstore.positions import LedgerId
from logstore.reconciliation.findings import plan_run_id

_P, _R, _L = t.pending_deletion.c, t.run.c, t.ledger.c
_OURS = _R.kind.in_([kind.value for kind in RunKind])


class SqlReconciliation(OnDatabase):
    """The `Reconciliation` port."""

    @reads
    def standing(self, connection: Connection) -> Standing:
        """See `Reconciliation.standing`."""
        row = connection.execute(select(t.catalog.c.epoch, t.catalog.c.next_ledger_id)).one()
        now = self._db.now_us(connection)
        return Standing(now_us=now, epoch=row.epoch, next_ledger_id=row.next_ledger_id)

    def count_ledgers(self, *, below: int) -> int:
        """See `Reconciliation.count_ledgers`."""
        query = select(func.count()).where(_L.ledger_id < below)
        return self._db.read(lambda connection: connection.execute(query).scalar_one())

    @writes("catalog.open_run")
    def open_run(
        self, connection: Connection, run_id: str, kind: RunKind, *, claim: Claim, summary: Mapping[str, Any]
    ) -> ReconciliationRun:
        """See `Reconciliation.open_run`."""
        now = self._db.now_us(connection)
        begun = begin_run(connection, run_id, kind.value, summary, claim=claim, now_us=now)
        row = connection.execute(select(t.run).where(_R.run_id == run_id).with_for_update()).one()
        if row.kind != kind.value:
            raise PreconditionFailed(f"run {run_id}: expected one of {kind.value}, found one of {row.kind}")
        if not begun and row.finished_us is None:
            renew_run(connection, run_id, claim, now)
        return _run(row)

    @writes("catalog.close_run")
    def close_run(self, connection: Connection, run_id: str, summary: Mapping[str, Any]) -> None:
        """See `Reconciliation.close_run`."""
        _known(connection, run_id)
        if finish_run(connection, run_id, self._db.now_us(connection)) is not None:
            set_summary(connection, run_id, summary)

    def run(self, run_id: str) -> ReconciliationRun:
        """See `Reconciliation.run`."""
        return self._db.read(lambda connection: _run(_known(connection, run_id)))

    def runs(self, kind: RunKind, *, limit: int) -> list[ReconciliationRun]:
        """See `Reconciliation.runs`."""
        query = select(t.run).where(_R.kind == kind.value).order_by(_R.created_us.desc(), _R.run_id.desc()).limit(limit)
        return self._db.read(lambda connection: [_run(row) for row in connection.execute(query)])

    @writes("catalog.forget_runs")
    def forget(self, connection: Connection, *, older_than_s: float, limit: int) -> list[str]:
        """See `Reconciliation.forget`."""
        now = self._db.now_us(connection)
        finished = select(_R.run_id).where(_R.kind == RunKind.PLAN.value, _R.finished_us.is_not(None))
        newest = connection.execute(finished.order_by(_R.created_us.desc(), _R.run_id.desc()).limit(1)).scalar()
        old = and_(_R.created_us < now - int(older_than_s * 1_000_000), ~held(now))
        at_work = select(_R.run_id).where(_R.kind == RunKind.APPLY.value, _R.finished_us.is_(None), ~old)
        needed = {newest or "", *map(plan_run_id, connection.execute(at_work).scalars())}
        page = select(_R.run_id).where(_OURS, old, _R.run_id.not_in(needed)).order_by(_R.created_us, _R.run_id)
        gone = list(connection.execute(page.limit(limit).with_for_update()).scalars())
        forget_runs(connection, select(_R.run_id).where(_R.run_id.in_(gone)))
        return gone

    @writes("catalog.file_findings")
    def file(self, connection: Connection, page: PageOfFindings) -> Filing:
        """See `Reconciliation.file`."""
        return file_page(connection, page, self._db.now_us(connection))

    @writes("catalog.pass_over")
    def pass_over(
        self, connection: Connection, segments: Mapping[int, tuple[LedgerId, int]], *, cause: Cause
    ) -> Mapping[int, str]:
        """See `Reconciliation.pass_over`."""
        work = partial(pass_segments_over, segments=segments, cause=cause)
        return work(connection, now_us=self._db.now_us(connection))

    def filed(self, batch_id: str, *, after: int, limit: int) -> list[FiledCopy]:
        """See `Reconciliation.filed`."""
        query = select(*INTENT).where(_P.batch_id == batch_id, _P.row_id > after).order_by(_P.row_id).limit(limit)
        return self._db.read(lambda connection: [_filed(row) for row in connection.execute(query)])


def _known(connection: Connection, run_id: str) -> Row[Any]:
    row = connection.execute(select(t.run).where(_R.run_id == run_id, _OURS)).first()
    if row is None:
        raise UnknownObject("run id", expected="that of a plan or an apply, as `orphans list` shows it", found=run_id)
    return row


def _run(row: Row[Any]) -> ReconciliationRun:
    return ReconciliationRun(
        run_id=row.run_id,
        kind=RunKind(row.kind),
        created_us=row.created_us,
        finished_us=row.finished_us,
        summary=row.summary,
    )


def _filed(row: Row[Any]) -> FiledCopy:
    intent = to_intent(row)
    return FiledCopy(
        row_id=intent.row_id,
        ledger_id=intent.ledger_id,
        copy=intent.copy,
        uuid=intent.context.get("uuid", ""),
        outcome=intent.outcome,
        error=intent.last_error,
        objects=row.objects_deleted,
        size_bytes=row.bytes_deleted,
    )
