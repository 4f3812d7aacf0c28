"""How rows of phase two end or move on: decided under their locks, told row by row to whoever asked."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, case, func, or_, select, update

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.deletion.claims import UNCLAIMED
from infra.catalog.deletion.intents import outcome_of
from infra.catalog.engine.many import any_of
from logstore.deletion.intents import DeletionState, Outcome
from logstore.ports.catalog import Cause, Ended, Tally
from logstore.positions import TopicId

_P, _A = t.pending_deletion.c, t.audit.c
_PENDING = DeletionState.PENDING.value
_NAMES = (
    "row_id", "ledger_id", "copy", "generation", "topic_id", "topic", "batch_id", "claim_workflow", "actor", "reason",
)  # fmt: skip
_LOCKED = [_P[name] for name in _NAMES]


def end_rows(connection: Connection, ended: Sequence[Ended], holder: str, *, now_us: int) -> frozenset[int]:
    """Record how rows ended that are still PENDING and the holder's; which of them this call ended.

    A row that a workflow of its own ended leaves an audit row in the same transaction, for the one of its batch says
    no more than that it was retrying.
    """
    still_its = or_(_P.claim_workflow == holder, _P.batch_id == holder)
    rows = _locked(connection, [one.row_id for one in ended], still_its)
    mine = [one for one in sorted(ended, key=attrgetter("row_id")) if one.row_id in rows]
    if mine:
        statement = (
            update(t.pending_deletion).where(_P.row_id == bindparam("row")).values(finished_us=now_us, **_ENDING)
        )
        connection.execute(statement, [_ending(one) for one in mine])
    for one in mine:
        if rows[one.row_id].claim_workflow == holder:
            _audit_alone(connection, rows[one.row_id], one, at_us=now_us)
    return frozenset(rows)


_ENDING: Mapping[str, Any] = {
    "state": bindparam("new_state"),
    "outcome": bindparam("new_outcome"),
    "objects_deleted": bindparam("new_objects"),
    "bytes_deleted": bindparam("new_bytes"),
    "last_error": bindparam("new_error"),
    "attempts": case((_P.attempts == 0, 1), else_=_P.attempts),  # a batch's only try
    **UNCLAIMED,
}


def _ending(item: Ended) -> dict[str, object]:
    return {
        "row": item.row_id,
        "new_state": item.outcome.state.value,
        "new_outcome": item.outcome.value,
        "new_objects": item.objects,
        "new_bytes": item.size_bytes,
        "new_error": item.error,
    }


def move_rows(
    connection: Connection, row_ids: Mapping[int, str], batch_id: str, errors: Mapping[int, str], *, until_us: int
) -> frozenset[int]:
    """Move claims of PENDING rows of the batch to the workflows named; which of them this call moved."""
    free = and_(_P.batch_id == batch_id, _P.claim_workflow.is_(None))
    rows = _locked(connection, list(row_ids), free)
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
        found = [{"row": row, "workflow": row_ids[row], "error": errors.get(row)} for row in sorted(rows)]
        connection.execute(statement, found)
    return frozenset(rows)


def _locked(connection: Connection, row_ids: Sequence[int], whose: ColumnElement[bool]) -> dict[int, Row[Any]]:
    """Rows that are still PENDING and so, locked in one order, so that two who end the same ones cannot deadlock."""
    asked = _P.row_id.in_(any_of(connection.dialect.name, row_ids))
    query = select(*_LOCKED).where(asked, _P.state == _PENDING, whose).order_by(_P.row_id)
    rows: Sequence[Any] = connection.execute(query.with_for_update()).all()
    return {row.row_id: row for row in rows}


def _audit_alone(connection: Connection, row: Row[Any], one: Ended, *, at_us: int) -> None:
    actor, reason = _decided(connection, row)
    detail = {
        "ledger": row.ledger_id,
        "copy": row.copy,
        "generation": row.generation,
        "outcome": one.outcome.value,
        "objects": one.objects,
        "size_bytes": one.size_bytes,
        "error": one.error,
    }
    audit(
        connection,
        "delete-ledger",
        Cause(actor=actor, reason=reason, workflow_id=row.claim_workflow),
        at_us=at_us,
        topic_id=TopicId(row.topic_id),
        topic=row.topic,
        run_id=row.batch_id or None,
        detail=detail,
    )


def _decided(connection: Connection, row: Row[Any]) -> tuple[str, str]:
    """The actor and the reason of the ledger's detach: of the row, or of its batch where an older build filed it.

    A range of ids in the audit log is no witness: a batch's may cover ledgers of which it had none.
    """
    if row.actor:
        return row.actor, row.reason
    of_batch = select(_A.actor, _A.reason).where(_A.run_id == row.batch_id).order_by(_A.audit_id).limit(1)
    found = connection.execute(of_batch).first()
    return (found.actor, found.reason) if found else ("sexton", "")


def tally_of(connection: Connection, *counted: ColumnElement[bool]) -> Tally:
    """Count intents by outcome."""
    sums = (func.count(), func.sum(_P.objects_deleted), func.sum(_P.bytes_deleted))
    query = select(_P.state, _P.outcome, *sums).where(*counted).group_by(_P.state, _P.outcome)
    rows = [(outcome_of(*row[:2]) or Outcome.RETRYING, *row[2:]) for row in connection.execute(query).all()]
    names = sorted({row[0].value for row in rows})
    return Tally(
        outcomes={name: sum(row[1] for row in rows if row[0] == name) for name in names},
        objects=int(sum(row[2] for row in rows)),
        size_bytes=int(sum(row[3] for row in rows)),
    )


def audit_batch(
    connection: Connection, batch_id: str, topic_id: TopicId, cause: Cause, outcome: Tally, *, at_us: int
) -> None:
    """Write down how a batch ended, and which ledgers it was about."""
    names = select(func.min(_P.topic), func.max(_P.topic)).where(_P.batch_id == batch_id)
    topic, other = connection.execute(names).one()
    audit(
        connection,
        "delete-ledgers",
        cause,
        at_us=at_us,
        topic_id=topic_id,
        topic=topic if topic == other else None,  # a batch may be of several topics
        run_id=batch_id,
        detail={"outcomes": dict(outcome.outcomes), "objects": outcome.objects, "size_bytes": outcome.size_bytes},
        span=Span.selected(connection, _P.ledger_id, _P.batch_id == batch_id),
    )
