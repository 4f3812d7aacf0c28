"""Claims in SQL: who works on what, until when by the database's clock.

Work is taken by claiming. An intent is worked on while its own claim is live, or, if it has none, while the
claim of its batch is. Unfinished without a live claim is stalled, and whoever comes next takes it up. A batch that is
paused is held for as long as that lasts: its claim may lapse while every worker is away, an operator's word may not.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, insert, or_, select, update

from infra.catalog import tables as t
from infra.catalog.engine.many import any_of, ignoring_conflict
from logstore.deletion.intents import DeletionState
from logstore.errors import ClaimHeld
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import Claim, Detached
from logstore.positions import LedgerId, TopicId

UNCLAIMED = {"claim_workflow": None, "claim_run": None, "claim_until_us": None}

SEVERAL_TOPICS = TopicId(0)
"""Stands for the topic of a batch whose rows may be of any."""


def until_us(claim: Claim, now_us: int) -> int:
    """When the claim ends if it is not renewed."""
    return now_us + int(claim.ttl_s * 1_000_000)


def claimed_by(claim: Claim, now_us: int) -> dict[str, Any]:
    """The claim's columns."""
    return {
        "claim_workflow": claim.workflow_id,
        "claim_run": claim.run_id,
        "claim_until_us": until_us(claim, now_us),
    }


def held(now_us: int) -> ColumnElement[bool]:
    """Batches that are somebody's: claimed, or paused, and not finished."""
    r = t.run.c
    return and_(r.finished_us.is_(None), or_(func.coalesce(r.claim_until_us, 0) > now_us, r.paused_us.is_not(None)))


def stalled(now_us: int) -> ColumnElement[bool]:
    """Unfinished intents that no workflow works on."""
    p = t.pending_deletion.c
    batch_lives = exists().where(t.run.c.run_id == p.batch_id, held(now_us))
    own_dead = and_(p.claim_workflow.is_not(None), p.claim_until_us <= now_us)
    return and_(p.state == DeletionState.PENDING.value, or_(own_dead, and_(p.claim_workflow.is_(None), ~batch_lives)))


def adopt_stalled(
    connection: Connection,
    topic_id: TopicId,
    asked: Sequence[LedgerId] | None,
    *,
    batch_id: str,
    now_us: int,
    copy: CopyKind | None = None,
) -> int:
    """Move the topic's stalled intents (of the ledgers and the copy asked for, if any) into the batch."""
    where = [t.pending_deletion.c.topic_id == topic_id, stalled(now_us)]
    if asked is not None:
        where.append(t.pending_deletion.c.ledger_id.in_(any_of(connection.dialect.name, asked)))
    if copy is not None:
        where.append(t.pending_deletion.c.copy == copy.value)
    locked = select(t.pending_deletion.c.row_id).where(*where).with_for_update().subquery()
    if not connection.execute(select(func.count()).select_from(locked)).scalar_one():
        return 0
    return move(connection, *where, batch_id=batch_id)


def move(connection: Connection, *rows: ColumnElement[bool], batch_id: str) -> int:
    """Give intents to another batch, as nobody's else; returns how many.

    To be called with the rows locked by an earlier statement: on PostgreSQL one that waited for a lock looks at
    the row anew, but at runs as they were before it waited, and would take from another batch what that just took.
    """
    values = {"batch_id": batch_id, "claim_workflow": None, "claim_run": None, "claim_until_us": None}
    return connection.execute(update(t.pending_deletion).where(*rows).values(values)).rowcount


def open_run(
    connection: Connection, result: Detached, topic_id: TopicId, claim: Claim, now_us: int, *, request: str
) -> None:
    """Insert the batch's run, claimed, with what the detach did, so that a repeated call can answer the same."""
    summary: dict[str, Any] = {"ledgers": result.ledgers, "intents": result.intents, "finished": dict(result.finished)}
    summary["request"] = request
    connection.execute(
        insert(t.run).values(
            run_id=result.batch_id,
            kind="delete-ledgers",
            topic_id=topic_id,
            summary=summary,
            created_us=now_us,
            **claimed_by(claim, now_us),
        )
    )


def share_run(connection: Connection, batch_id: str, claim: Claim, now_us: int, *, request: str) -> None:
    """Insert the run of a batch that many topics share, or hold it further.

    Raises:
        ClaimHeld: The batch is finished, or another workflow's: what is filed for it now would be nobody's.
    """
    put = ignoring_conflict(connection, t.run).values(
        run_id=batch_id,
        kind="delete-ledgers",
        topic_id=SEVERAL_TOPICS,
        summary={"ledgers": 0, "intents": 0, "finished": {}, "request": request},
        created_us=now_us,
        **claimed_by(claim, now_us),
    )
    if connection.execute(put.returning(t.run.c.run_id)).first():
        return
    mine = (t.run.c.run_id == batch_id, t.run.c.claim_workflow == claim.workflow_id, t.run.c.finished_us.is_(None))
    opened = case((t.run.c.created_us > now_us, now_us), else_=t.run.c.created_us)  # whoever waited may be the older
    if not connection.execute(
        update(t.run).where(*mine).values(created_us=opened, **claimed_by(claim, now_us))
    ).rowcount:
        raise ClaimHeld(f"batch {batch_id}: expected to be held by {claim.workflow_id}, found another's or finished")


def holder(connection: Connection, run_id: str, now_us: int) -> str | None:
    """Which workflow holds the batch now, or None."""
    query = select(t.run.c.claim_workflow).where(t.run.c.run_id == run_id, held(now_us))
    return connection.execute(query).scalar_one_or_none()
