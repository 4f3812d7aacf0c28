"""Upkeep of the deletion queue in SQL: take over abandoned work, remove old rows, redrive dead letters.

`move_abandoned_work_to_batch` and `remove_finished_rows` first read in a read-only transaction, because most calls find
nothing and must be cheap.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, func, literal_column, or_, select

from logstore.catalog import tables as t
from logstore.catalog.audit_log import AuditedLedgers, insert_audit_row
from logstore.catalog.deletion.intent_queries import count_filed_intents, parse_intent_state
from logstore.catalog.deletion.intent_rows import (
    move_intents_to_batch,
    redrive_dead_letters,
    remove_deleted_intents,
    replace_copies_by_intents,
    replace_ledgers_by_intents,
)
from logstore.catalog.deletion.run_rows import (
    DELETION_RUN_KIND,
    SEVERAL_TOPICS,
    find_earlier_detach,
    fingerprint_request,
    insert_batch_run,
    match_held_runs,
    match_stalled_intents,
    remove_runs,
)
from logstore.catalog.engine.database import CatalogAdapter, Database, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.ledger_rows import lock_ledger_lists, match_abandoned_newborns
from logstore.catalog.log.topics import share_lock_and_filter_active_topics
from logstore.catalog.offload.upload_ends import TIERED, match_abandoned_uploads
from logstore.deletion.intent_queue_rules import normalize_ids, require_dead_letters
from logstore.deletion.intents import DeletionState
from logstore.failpoints import effect
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch, RemovedRowCounts, SweepBacklogCounts

_P, _R, _L = t.pending_deletion.c, t.run.c, t.ledger.c
_REQUEST = "sweep"  # distinguishes batches of a sweep from batches of a detach


class PhaseTwoQueueUpkeep(CatalogAdapter):
    """Upkeep of the queue of phase two.

    A schedule calls `move_abandoned_work_to_batch` and `remove_finished_rows` every minute. If there is no work, each
    of these calls is one small read.
    """

    def __init__(self, database: Database, *, registration_timeout_s: float) -> None:
        super().__init__(database)
        self._newborn_us = int(registration_timeout_s * 1_000_000)

    def move_abandoned_work_to_batch(self, *, batch_id: str, claim: Claim, limit: int) -> DetachedBatch:
        """Move up to `limit` stalled intents into a new batch. Add intents for abandoned ledgers and uploads.

        In this batch, intents replace up to `limit` newborn ledgers that are older than the registration timeout. They
        also replace unfinished tiered copies whose upload deadline has passed, of up to `limit` topics. The ledgers of
        these copies stay.

        `claim` is for the workflow that does phase two. If two calls run at once, each row goes to exactly one batch.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result. A call without results is not
        recorded, so a repeated call may find something.
        """

        def find_earlier_detach_or_idle(connection: Connection) -> DetachedBatch | None:
            now = self._db.now_us(connection)
            earlier_detach = find_earlier_detach(connection, batch_id, _REQUEST)
            queries = (
                _select_stalled_intents(now),
                _select_abandoned_newborns(now - self._newborn_us),
                _select_abandoned_uploads(now),
            )
            is_idle = not any(_has_rows(connection, query) for query in queries)
            return earlier_detach or (DetachedBatch(batch_id=batch_id, ledgers=0, intents=0) if is_idle else None)

        result = self._db.read(find_earlier_detach_or_idle)
        if result is None:
            with effect("catalog.adopt"):
                result = self._db.write(
                    lambda connection: self._take_over_stalled_work(connection, batch_id, claim, limit)
                )
        return result

    def _take_over_stalled_work(self, connection: Connection, batch_id: str, claim: Claim, limit: int) -> DetachedBatch:
        now = self._db.now_us(connection)
        earlier_detach = find_earlier_detach(connection, batch_id, _REQUEST)
        if earlier_detach:
            return earlier_detach
        newborn_intents, dead_upload_intents = self._file_abandoned_ledgers_and_uploads(
            connection, batch_id, limit, now
        )
        # The intents that were just filed count as stalled until the run of this batch exists.
        earlier = _select_stalled_intents(now).where(_P.batch_id != batch_id)
        page = earlier.order_by(_P.row_id).limit(limit).with_for_update(skip_locked=True)
        is_locked = is_one_of(connection, _P.row_id, list(connection.execute(page).scalars()))
        taken_over_intents = move_intents_to_batch(connection, is_locked, match_stalled_intents(now), batch_id=batch_id)
        result = DetachedBatch(
            batch_id=batch_id,
            ledgers=newborn_intents,
            intents=newborn_intents + dead_upload_intents + taken_over_intents,
        )
        if result.intents:
            insert_batch_run(connection, result, SEVERAL_TOPICS, claim, now, request=_REQUEST)
        return replace(
            result,
            filed_counts=count_filed_intents(connection, batch_id, now)
            if newborn_intents or dead_upload_intents
            else (),
        )

    def _file_abandoned_ledgers_and_uploads(
        self, connection: Connection, batch_id: str, limit: int, now_us: int
    ) -> tuple[int, int]:
        """File intents for abandoned newborn ledgers and for abandoned uploads. Return the two numbers of intents.

        All topics are locked before the first list.
        """
        page = _select_abandoned_newborns(now_us - self._newborn_us).order_by(_L.ledger_id).limit(limit)
        newborn_rows = connection.execute(page).all()
        upload_rows = connection.execute(_select_abandoned_uploads(now_us).limit(limit)).all()
        rows = [*newborn_rows, *upload_rows]
        if not rows:
            return 0, 0
        share_lock_and_filter_active_topics(connection, [row.topic_id for row in rows])
        lock_ledger_lists(connection, is_one_of(connection, t.ledger_list.c.list_id, [row.list_id for row in rows]))
        to_delete = is_one_of(connection, _L.ledger_id, [row.ledger_id for row in newborn_rows])
        unattached = _L.state == LedgerState.CREATING.value
        newborn = replace_ledgers_by_intents(connection, to_delete & unattached, batch_id=batch_id, now_us=now_us)
        copies = 0
        for list_id in sorted({row.list_id for row in upload_rows}):
            is_dead = match_abandoned_uploads(now_us)
            copies += replace_copies_by_intents(connection, list_id, TIERED, is_dead, batch_id=batch_id, now_us=now_us)
        return newborn, copies

    @in_read_transaction
    def count_sweep_backlog(self, connection: Connection, *, older_than_s: float) -> SweepBacklogCounts:
        """Count the rows that `move_abandoned_work_to_batch` or `remove_finished_rows` would move or remove now."""
        now = self._db.now_us(connection)
        before = now - int(older_than_s * 1_000_000)
        return SweepBacklogCounts(
            stalled=_count_rows(connection, _select_stalled_intents(now)),
            newborn=_count_rows(connection, _select_abandoned_newborns(now - self._newborn_us)),
            uploads=_count_rows(connection, _select_abandoned_uploads(now)),
            rows=_count_rows(connection, _select_old_deleted_intents(now, before)),
            runs=_count_rows(connection, _select_old_empty_runs(before)),
        )

    def remove_finished_rows(self, *, older_than_s: float, limit: int, cause: AuditCause) -> RemovedRowCounts:
        """Remove up to `limit` rows that were DELETED over `older_than_s` ago, and up to `limit` empty batches.

        Dead letters stay. Rows of a batch whose workflow is running also stay, because the batch certificate counts
        these rows. Later queries about a removed row return UNKNOWN. A call that removes rows writes an audit row.

        Idempotency: a repeated call continues with the next rows.
        """

        def has_nothing_old(connection: Connection) -> bool:
            now = self._db.now_us(connection)
            before = now - int(older_than_s * 1_000_000)
            return not _has_rows(connection, _select_old_deleted_intents(now, before)) and not _has_rows(
                connection, _select_old_empty_runs(before)
            )

        if self._db.read(has_nothing_old):
            return RemovedRowCounts()
        with effect("catalog.forget"):
            return self._db.write(
                lambda connection: self._remove_old_intents_and_runs(connection, older_than_s, limit, cause)
            )

    def _remove_old_intents_and_runs(
        self, connection: Connection, older_than_s: float, limit: int, cause: AuditCause
    ) -> RemovedRowCounts:
        now = self._db.now_us(connection)
        before = now - int(older_than_s * 1_000_000)
        rows = remove_deleted_intents(
            connection, _select_old_deleted_intents(now, before).order_by(_P.finished_us).limit(limit)
        )
        runs = remove_runs(connection, _select_old_empty_runs(before).limit(limit))
        if rows or runs:
            detail = {"rows": rows, "runs": runs, "before_us": before}
            insert_audit_row(connection, "forget", cause, at_us=now, topic_id=SEVERAL_TOPICS, topic=None, detail=detail)
        return RemovedRowCounts(rows=rows, runs=runs)

    @in_read_transaction
    def count_redrivable_dead_letters(self, connection: Connection, row_ids: Sequence[int] | None) -> int:
        """Count the rows that `redrive_dead_letters` would redrive now. Raise the errors of `redrive_dead_letters`."""
        count = select(func.count()).where(_match_dead_letters_to_redrive(connection, row_ids, lock=False))
        return int(connection.execute(count).scalar_one())

    @in_write_transaction("catalog.redrive")
    def redrive_dead_letters(
        self, connection: Connection, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        """Turn dead letters into pending intents of a new batch, in one transaction. `None` selects all dead letters.

        Either all given ids are redriven or none. Attempts are counted from zero again. The last error stays until
        another attempt fails. A row in an unknown state counts as a dead letter. The call writes an audit row. If the
        caller dies before it starts the batch's workflow, a sweep takes over the rows.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result. A call without results is not
        recorded.

        Raises:
            InvalidInput: `row_ids` is empty, or has more than 10,000 ids.
            UnknownObject: Some rows do not exist, and all other given rows are dead letters.
            PreconditionFailed: A row is pending or deleted. The message names up to ten wrong rows with their states.
        """
        request = fingerprint_request("redrive", row_ids)
        earlier_detach = find_earlier_detach(connection, batch_id, request)
        return earlier_detach or self._redrive_dead_letters(
            connection, row_ids, batch_id, claim=claim, cause=cause, request=request
        )

    def _redrive_dead_letters(
        self,
        connection: Connection,
        row_ids: Sequence[int] | None,
        batch_id: str,
        *,
        claim: Claim,
        cause: AuditCause,
        request: str,
    ) -> DetachedBatch:
        now = self._db.now_us(connection)
        rows = redrive_dead_letters(
            connection, _match_dead_letters_to_redrive(connection, row_ids, lock=True), batch_id=batch_id
        )
        result = DetachedBatch(batch_id=batch_id, ledgers=0, intents=rows)
        if result.intents:
            insert_batch_run(connection, result, SEVERAL_TOPICS, claim, now, request=request)
            span = AuditedLedgers.from_query(connection, _P.ledger_id, _P.batch_id == batch_id)
            about: dict[str, Any] = {"topic_id": SEVERAL_TOPICS, "topic": None, "run_id": batch_id, "span": span}
            insert_audit_row(connection, "redrive", cause, at_us=now, detail={"rows": rows}, **about)
        return result


def _select_stalled_intents(now_us: int) -> Select[Any]:
    return select(_P.row_id).where(match_stalled_intents(now_us))


def _select_abandoned_newborns(before_us: int) -> Select[Any]:
    of_topic = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    source = of_topic.join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
    columns = (_L.ledger_id, t.ledger_list.c.list_id, t.topic.c.topic_id)
    return select(*columns).select_from(source).where(match_abandoned_newborns(before_us))


def _select_abandoned_uploads(now_us: int) -> Select[Any]:
    """Select list and topic of abandoned uploads. The partial index is used only if the state is a literal."""
    c = t.ledger_copy.c
    source = t.ledger_copy.join(t.ledger, _L.ledger_id == c.ledger_id)
    source = source.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    source = source.join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
    writing = c.state == literal_column("'WRITING'")
    columns = (t.ledger_list.c.list_id, t.topic.c.topic_id)
    return select(*columns).select_from(source).where(writing, match_abandoned_uploads(now_us))


def _select_old_deleted_intents(now_us: int, before_us: int) -> Select[Any]:
    at_work = exists().where(_R.run_id == _P.batch_id, match_held_runs(now_us))
    return select(_P.row_id).where(_P.state == DeletionState.DELETED.value, _P.finished_us < before_us, ~at_work)


def _select_old_empty_runs(before_us: int) -> Select[Any]:
    vanished = _R.finished_us.is_(None) & (func.coalesce(_R.claim_until_us, 0) < before_us)
    over = or_(_R.finished_us < before_us, vanished)
    rows = exists().where(_P.batch_id == _R.run_id)
    return select(_R.run_id).where(_R.kind == DELETION_RUN_KIND, over, ~rows)


def _has_rows(connection: Connection, query: Select[Any]) -> bool:
    return connection.execute(query.limit(1)).first() is not None


def _count_rows(connection: Connection, query: Select[Any]) -> int:
    return connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()


def _match_dead_letters_to_redrive(
    connection: Connection, row_ids: Sequence[int] | None, *, lock: bool
) -> ColumnElement[bool]:
    if row_ids is None:
        return _P.state == DeletionState.DEAD_LETTERED.value  # rows in unknown states must be requested by id
    ids = normalize_ids("deletion ids", row_ids)
    rows = is_one_of(connection, _P.row_id, ids)
    query = select(_P.row_id, _P.state).where(rows).order_by(_P.row_id)
    letters = connection.execute(query.with_for_update() if lock else query).all()
    require_dead_letters(ids, {row.row_id: (parse_intent_state(row.state), row.state) for row in letters})
    return rows
