"""Sole writer of `pending_deletion`. Lock order: topic, list, ledger, fence, then intents in ascending order."""

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Update,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from logstore.catalog import tables as t
from logstore.catalog.deletion.intent_queries import INTENT_COLUMNS, lock_held_intents, select_intents_to_file
from logstore.catalog.deletion.run_rows import NO_CLAIM_COLUMNS, build_claim_columns, match_stalled_intents
from logstore.catalog.engine.dialect_sql import build_insert_if_absent, is_one_of
from logstore.catalog.log.ledger_rows import remove_copies, remove_ledgers, set_generation
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import AuditCause, Claim, IntentResult
from logstore.positions import LedgerId, TopicId

_P = t.pending_deletion.c
_PENDING = DeletionState.PENDING.value
_COUNTED = {"preserve_rowcount": True}


def replace_ledgers_by_intents(
    connection: Connection,
    to_delete: ColumnElement[bool],
    *,
    batch_id: str,
    now_us: int,
    cause: AuditCause | None = None,
    durable: bool = False,
) -> int:
    """Replace ledger rows by intents, one for each copy. Return the number of intents.

    The caller holds the lock of the ledgers' list. `to_delete` is a condition on rows of `ledger`. If `batch_id` is
    empty, a trim or a sweep takes over the intents. Without `cause`, the intents name no actor and no reason. With
    `durable`, each ledger leaves a tombstone.
    """
    filing = insert(t.pending_deletion).from_select(
        *select_intents_to_file(to_delete, batch_id, now_us, cause, durable=durable)
    )
    filed = connection.execute(filing, execution_options=_COUNTED).rowcount
    remove_ledgers(connection, to_delete & _has_intent(), tombstone_us=now_us if durable else None)
    return filed


def replace_copies_by_intents(
    connection: Connection,
    list_id: int,
    kind: CopyKind,
    to_delete: ColumnElement[bool],
    *,
    batch_id: str,
    now_us: int,
    cause: AuditCause | None = None,
) -> int:
    """Replace copies of `kind` in the list by intents. Return the number of intents.

    The ledgers stay, and their generation rises. `to_delete` is a condition on rows of `ledger` joined with
    `ledger_copy`.
    """
    of_kind = (t.ledger.c.list_id == list_id) & (t.ledger_copy.c.kind == kind.value)
    filing = insert(t.pending_deletion).from_select(
        *select_intents_to_file(of_kind & to_delete, batch_id, now_us, cause)
    )
    filed = connection.execute(filing, execution_options=_COUNTED).rowcount
    if filed:
        remove_copies(connection, list_id, kind, _has_intent(kind))
    return filed


def _has_intent(kind: CopyKind | None = None) -> ColumnElement[bool]:
    """Select ledgers that have an intent of their next generation. Callers remove only such ledgers or their copies."""
    of_kind = [] if kind is None else [_P.copy == kind.value]
    return exists().where(_P.ledger_id == t.ledger.c.ledger_id, _P.generation == t.ledger.c.generation + 1, *of_kind)


def file_next_generation_intent(
    connection: Connection, ended_row: Row[Any], context: Mapping[str, str], now_us: int
) -> None:
    """File a new intent for the copy of `ended_row`, with the next generation of the ledger.

    The caller has locked `ended_row` and the ledger's list.
    """
    of_ledger = select(t.ledger.c.generation).where(t.ledger.c.ledger_id == ended_row.ledger_id)
    filed = select(func.max(_P.generation)).where(_P.ledger_id == ended_row.ledger_id)
    listed = connection.execute(of_ledger).scalar_one_or_none() or 0
    generation = max(connection.execute(filed).scalar_one(), listed) + 1
    same = {name: ended_row._mapping[name] for name in _COPIED_COLUMNS}  # noqa: SLF001 - public by SQLAlchemy's documentation
    own = {"batch_id": "", "generation": generation, "context": dict(context), "created_us": now_us}
    insert_intents(connection, [same | own])
    set_generation(connection, ended_row.ledger_id, generation)


_COPIED_COLUMNS = (
    "ledger_id", "copy", "application", "component", "topic_id", "topic", "keys",
    "segments", "last_segment", "ledger_created_us", "size_bytes", "epoch", "actor", "reason", "durable",
)  # fmt: skip


def insert_intents(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> set[tuple[int, str, int]]:
    """File intents. Return ledger, copy and generation of each new intent. Existing intents are skipped."""
    unworked = {"state": _PENDING, "attempts": 0, "objects_deleted": 0, "bytes_deleted": 0}
    filing = build_insert_if_absent(connection, t.pending_deletion).returning(_P.ledger_id, _P.copy, _P.generation)
    filed = connection.execute(filing, [{**row, **unworked} for row in rows]) if rows else ()
    return {(row.ledger_id, row.copy, row.generation) for row in filed}


def set_intent_context(connection: Connection, row_id: int, context: Mapping[str, str]) -> None:
    connection.execute(update(t.pending_deletion).where(_P.row_id == row_id).values(context=dict(context)))


def reopen_newborn_intent(connection: Connection, ledger_id: LedgerId) -> None:
    """Reopen the intent of a newborn ledger. Objects may have been stored after phase two searched storage.

    The claim is removed, so that a running attempt cannot end the intent. The attempt may have found no objects.
    """
    _reopen_and_unclaim_intents(connection, _P.ledger_id == ledger_id, _P.segments == 0)


def reopen_intents_of_late_uploads(connection: Connection, ledger_ids: Collection[LedgerId], *, epoch: int) -> None:
    """Reopen intents of ledgers whose primary copy was deleted while a writer uploaded to it.

    Claims are removed, so that running attempts cannot end the intents.
    """
    is_requested = is_one_of(connection, _P.ledger_id, ledger_ids)
    c = t.ledger_copy.c
    has_no_primary = ~exists().where(c.ledger_id == _P.ledger_id, c.kind == CopyKind.LEDGER.value)
    is_current_epoch = select(t.catalog.c.epoch).scalar_subquery() == epoch
    _reopen_and_unclaim_intents(
        connection, is_requested, _P.copy == CopyKind.LEDGER.value, has_no_primary, is_current_epoch
    )


def _reopen_and_unclaim_intents(connection: Connection, *late: ColumnElement[bool]) -> None:
    """Make intents pending and unclaimed. Dead letters stay unchanged.

    For a finished intent, `openings` rises, because the next `delete-ledger` of the intent needs another workflow id.
    """
    is_reopenable = _P.state.in_((DeletionState.DELETED.value, DeletionState.PENDING.value))
    openings = _P.openings + case((_P.state == DeletionState.DELETED.value, 1), else_=0)
    reopened: dict[str, Any] = {
        "state": _PENDING,
        "outcome": None,
        "batch_id": "",
        "finished_us": None,
        **NO_CLAIM_COLUMNS,
    }
    connection.execute(update(t.pending_deletion).where(*late, is_reopenable).values(**reopened, openings=openings))


def take_over_stalled_intents(
    connection: Connection,
    topic_id: TopicId,
    ledger_ids: Sequence[LedgerId] | None,
    *,
    batch_id: str,
    now_us: int,
    copy: CopyKind | None = None,
) -> int:
    where = [_P.topic_id == topic_id, match_stalled_intents(now_us)]
    where += [] if ledger_ids is None else [is_one_of(connection, _P.ledger_id, ledger_ids)]
    where += [] if copy is None else [_P.copy == copy.value]
    locked = select(_P.row_id).where(*where).with_for_update().subquery()
    if not connection.execute(select(func.count()).select_from(locked)).scalar_one():
        return 0
    return move_intents_to_batch(connection, *where, batch_id=batch_id)


def move_intents_to_batch(
    connection: Connection, *rows: ColumnElement[bool], batch_id: str, added_openings: int = 0
) -> int:
    """Move intents to another batch and clear their claims. Return the number of intents.

    An earlier statement must have locked the rows. Otherwise this update could move rows that another batch has just
    taken over. After a wait for a row's lock, PostgreSQL reads the row again, but does not read the table `run` again.
    """
    new_values = {"batch_id": batch_id, "openings": _P.openings + added_openings, **NO_CLAIM_COLUMNS}
    return connection.execute(update(t.pending_deletion).where(*rows).values(new_values)).rowcount


def claim_intent(connection: Connection, row_id: int, claim: Claim, *, attempts: int, now_us: int) -> Row[Any]:
    """Claim a locked row and set its number of attempts. Return the `INTENT_COLUMNS` of the row."""
    values: dict[str, Any] = build_claim_columns(claim, now_us) | {"attempts": attempts}
    return connection.execute(
        _CLAIM_UPDATE, {"row": row_id} | {f"new_{name}": value for name, value in values.items()}
    ).one()


def _build_intent_update(*names: str, **more: Any) -> Update:  # noqa: ANN401 - what columns may have
    """Build an update of one row. Call this at import, because the update takes longer to build than to run."""
    parameters: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    return update(t.pending_deletion).where(_P.row_id == bindparam("row")).values(**parameters, **more)


_CLAIM_UPDATE = _build_intent_update("attempts", *NO_CLAIM_COLUMNS).returning(*INTENT_COLUMNS)


def renew_claim_and_count_stuck_attempts(
    connection: Connection, row_id: int, claim: Claim, *, error: str | None, keys_left: int | None, now_us: int
) -> int | None:
    """Renew the claim of a row. Store the error and the number of remaining keys of the last attempt.

    Return the number of consecutive attempts that left `keys_left` keys. Return `None` if the claim is lost or the
    intent has ended.
    """
    changes = build_claim_columns(claim, now_us) | ({} if error is None else {"last_error": error})
    if keys_left is not None:
        again = case((_P.keys_left == keys_left, _P.keys_left_attempts + 1), else_=1)
        changes |= {"keys_left": keys_left, "keys_left_attempts": again}
    mine = (_P.row_id == row_id, _P.state == _PENDING, _P.claim_workflow == claim.workflow_id)
    renewal = update(t.pending_deletion).where(*mine).values(changes).returning(_P.keys_left_attempts)
    return connection.execute(renewal).scalar_one_or_none()


def end_intents(
    connection: Connection, ended: Sequence[IntentResult], holder: str, *, now_us: int
) -> dict[int, Row[Any]]:
    """End the PENDING rows that `holder` holds. Return these rows by row id, with the values before the change."""
    rows = lock_held_intents(connection, (result.row_id for result in ended), holder)
    results = [result for result in sorted(ended, key=attrgetter("row_id")) if result.row_id in rows]
    if results:
        values = [
            {
                "row": result.row_id,
                "new_finished_us": now_us,
                "new_state": result.outcome.state.value,
                "new_outcome": result.outcome.value,
                "new_objects_deleted": result.objects,
                "new_bytes_deleted": result.size_bytes,
                "new_last_error": result.error,
            }
            for result in results
        ]
        connection.execute(_END_UPDATE, values)
    return rows


_END_UPDATE = _build_intent_update(
    *("state", "outcome", "objects_deleted", "bytes_deleted", "last_error", "finished_us"),
    attempts=case((_P.attempts == 0, 1), else_=_P.attempts),  # an attempt by a batch is only counted here
    **NO_CLAIM_COLUMNS,
)


def hand_over_intents(
    connection: Connection,
    workflow_id_by_row: Mapping[int, str],
    batch_id: str,
    error_by_row: Mapping[int, str],
    *,
    until_us: int,
) -> frozenset[int]:
    rows = lock_held_intents(connection, workflow_id_by_row, batch_id, only_unclaimed=True)
    statement = (
        update(t.pending_deletion)
        .where(_P.row_id == bindparam("row"))
        .values(
            claim_workflow=bindparam("workflow"),
            claim_until_us=until_us,
            attempts=_P.attempts + 1,
            last_error=bindparam("error"),
        )
    )
    if rows:
        parameters = [
            {"row": row, "workflow": workflow_id_by_row[row], "error": error_by_row.get(row)} for row in sorted(rows)
        ]
        connection.execute(statement, parameters)
    return frozenset(rows)


def redrive_dead_letters(connection: Connection, rows: ColumnElement[bool], *, batch_id: str) -> int:
    """Turn locked dead letters into pending intents of a batch, with 0 attempts. Return the number of intents."""
    return connection.execute(update(t.pending_deletion).where(rows).values(batch_id=batch_id, **_REDRIVEN)).rowcount


_REDRIVEN = {
    "state": _PENDING,
    "outcome": None,
    "attempts": 0,
    "keys_left": None,
    "keys_left_attempts": 0,
    "finished_us": None,
    **NO_CLAIM_COLUMNS,
}


def remove_deleted_intents(connection: Connection, page: Select[Any]) -> int:
    """Remove the intents whose row ids `page` selects, if they are still DELETED. Return the number of removed rows."""
    ids = _P.row_id.in_(select(page.subquery()))
    return connection.execute(delete(t.pending_deletion).where(ids, _P.state == DeletionState.DELETED.value)).rowcount
