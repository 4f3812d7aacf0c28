"""Sole writer of the table `run`. A workflow claims a run until a certain time by the database's clock.

The claim of a batch also covers the intents that have no claim of their own. An unfinished intent that no live claim
covers is stalled, and another batch takes it over. A paused batch is treated as claimed.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import TEXT, build_bulk_parameter, build_insert_if_absent
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import ClaimHeld, InvalidInput, PreconditionFailed, SextonError, UnknownObject
from logstore.ports.catalog.deletion import Claim, DetachedBatch
from logstore.positions import TopicId

_R = t.run.c
V = TypeVar("V")

NO_CLAIM_COLUMNS = {"claim_workflow": None, "claim_run": None, "claim_until_us": None}

SEVERAL_TOPICS = TopicId(0)
"""Topic id in the row of a run that is about several topics or about no topic."""

DELETION_RUN_KIND: Final = "delete-ledgers"
"""Value of the column `kind` in the runs of batches of phase two."""

EMPTY_SUMMARY: Final[dict[str, Any]] = {"ledgers": 0, "intents": 0, "finished": {}}


def compute_claim_end_us(claim: Claim, now_us: int) -> int:
    return now_us + int(claim.ttl_s * 1_000_000)


def build_claim_columns(claim: Claim, now_us: int) -> dict[str, Any]:
    return {
        "claim_workflow": claim.workflow_id,
        "claim_run": claim.run_id,
        "claim_until_us": compute_claim_end_us(claim, now_us),
    }


def match_held_runs(now_us: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Select unfinished runs that have a live claim or are paused."""
    live = or_(func.coalesce(_R.claim_until_us, 0) > now_us, _R.paused_us.is_not(None))
    return and_(_R.finished_us.is_(None), live)


def match_stalled_intents(now_us: int | ColumnElement[int]) -> ColumnElement[bool]:
    p = t.pending_deletion.c
    batch_lives = exists().where(_R.run_id == p.batch_id, match_held_runs(now_us))
    own_dead = and_(p.claim_workflow.is_not(None), p.claim_until_us <= now_us)
    return and_(p.state == DeletionState.PENDING.value, or_(own_dead, and_(p.claim_workflow.is_(None), ~batch_lives)))


def insert_batch_run(
    connection: Connection, result: DetachedBatch, topic_id: TopicId, claim: Claim, now_us: int, *, request: str
) -> None:
    """Insert the claimed run of a batch. The run stores `result`, which a repeated detach returns."""
    summary: dict[str, Any] = {"ledgers": result.ledgers, "intents": result.intents, "finished": dict(result.finished)}
    summary["request"] = request
    values = {"run_id": result.batch_id, "kind": DELETION_RUN_KIND, "topic_id": topic_id, "summary": summary}
    connection.execute(insert(t.run).values(values | {"created_us": now_us} | build_claim_columns(claim, now_us)))


def insert_run_if_absent(
    connection: Connection, run_id: str, kind: str, summary: Mapping[str, Any], *, claim: Claim, now_us: int
) -> bool:
    """If no run has the id `run_id`, insert a claimed run with the topic id `SEVERAL_TOPICS`.

    Return whether the run was inserted. A concurrent call with the same id waits for this transaction.
    """
    values = {"run_id": run_id, "kind": kind, "topic_id": SEVERAL_TOPICS, "summary": dict(summary)}
    put = build_insert_if_absent(connection, t.run).values(
        values | {"created_us": now_us} | build_claim_columns(claim, now_us)
    )
    return connection.execute(put.returning(_R.run_id)).first() is not None


def set_run_summary(connection: Connection, run_id: str, summary: Mapping[str, Any]) -> None:
    connection.execute(update(t.run).where(_R.run_id == run_id).values(summary=dict(summary)))


def set_unfinished_run_summary(connection: Connection, run_id: str, summary: Mapping[str, Any]) -> None:
    unfinished = (_R.run_id == run_id, _R.finished_us.is_(None))
    connection.execute(update(t.run).where(*unfinished).values(summary=dict(summary)))


def open_or_renew_shared_run(connection: Connection, batch_id: str, claim: Claim, now_us: int, *, request: str) -> None:
    if insert_run_if_absent(
        connection, batch_id, DELETION_RUN_KIND, EMPTY_SUMMARY | {"request": request}, claim=claim, now_us=now_us
    ):
        return
    mine = (_R.run_id == batch_id, _R.claim_workflow == claim.workflow_id, _R.finished_us.is_(None))
    opened = case((_R.created_us > now_us, now_us), else_=_R.created_us)  # this call may have the earlier time
    if not connection.execute(
        update(t.run).where(*mine).values(created_us=opened, **build_claim_columns(claim, now_us))
    ).rowcount:
        raise ClaimHeld(f"batch {batch_id}: expected to be held by {claim.workflow_id}, found another's or finished")


def find_run_holder(connection: Connection, run_id: str, now_us: int) -> str | None:
    return connection.execute(_HOLDER, {"run": run_id, "now": now_us}).scalar_one_or_none()


_HOLDER = select(_R.claim_workflow).where(_R.run_id == bindparam("run"), match_held_runs(bindparam("now", type_=t.Big)))


def find_earlier_detach(connection: Connection, batch_id: str, request: str) -> DetachedBatch | None:
    summary = find_earlier_summary(connection, batch_id, request)
    return None if summary is None else DetachedBatch(batch_id=batch_id, **summary)


def find_earlier_summary(connection: Connection, batch_id: str, request: str) -> dict[str, Any] | None:
    if not batch_id:
        raise InvalidInput("batch_id", expected="a name never used before", found=batch_id)
    stored = connection.execute(select(_R.summary).where(_R.run_id == batch_id)).scalar_one_or_none()
    if stored is None:
        return None
    summary = dict(stored)
    if summary.pop("request", None) != request:
        raise PreconditionFailed(f"batch {batch_id}: expected a name never used before, found one of another request")
    return summary


def fingerprint_request(request: str, ids: Sequence[int] | None, *, text_if_no_ids: str = "all") -> str:
    """Return a digest of a request. The order of `ids` has no effect. Without `ids`, use `text_if_no_ids`."""
    id_list = text_if_no_ids if ids is None else ",".join(str(number) for number in sorted(set(ids)))
    return hashlib.sha256(f"{request}/{id_list}".encode()).hexdigest()


def lock_then_find_earlier_detach(
    connection: Connection, batch_id: str, request: str, lock: Callable[[], V]
) -> V | DetachedBatch:
    """Call `lock`. Return the `DetachedBatch` of an earlier detach with this batch id, or else the result of `lock`.

    The earlier `DetachedBatch` is returned even if the topic no longer exists.
    """
    try:
        locked = lock()
    except UnknownObject:
        if earlier_detach := find_earlier_detach(connection, batch_id, request):
            return earlier_detach
        raise
    return find_earlier_detach(connection, batch_id, request) or locked


def renew_or_claim_run(connection: Connection, batch_id: str, claim: Claim, now_us: int) -> None:
    free = or_(_R.claim_workflow == claim.workflow_id, ~match_held_runs(now_us))
    unfinished = (_R.run_id == batch_id, _R.finished_us.is_(None), _R.claim_workflow.is_not(None))
    until, same_run = compute_claim_end_us(claim, now_us), _R.claim_run == claim.run_id
    longest = case((and_(same_run, _R.claim_until_us > until), _R.claim_until_us), else_=until)
    renewed = (
        update(t.run).where(*unfinished, free).values(build_claim_columns(claim, now_us) | {"claim_until_us": longest})
    )
    if not connection.execute(renewed).rowcount:
        raise _renewal_error(connection, batch_id, claim)


def _renewal_error(connection: Connection, batch_id: str, claim: Claim) -> SextonError:
    row = connection.execute(select(t.run).where(_R.run_id == batch_id)).first()
    if row is None:
        return UnknownObject("batch", expected="a batch that was detached", found=batch_id)
    found = "that it is finished" if row.finished_us is not None else row.claim_workflow or "that it was released"
    return ClaimHeld(f"batch {batch_id}: expected to be held by {claim.workflow_id}, found {found}")


def finish_run(connection: Connection, batch_id: str, now_us: int) -> TopicId | None:
    """Finish a batch. Return the batch's topic, or `None` if the batch does not exist or was finished before."""
    first = update(t.run).where(_R.run_id == batch_id, _R.finished_us.is_(None))
    row = connection.execute(first.values(finished_us=now_us, **NO_CLAIM_COLUMNS).returning(_R.topic_id)).first()
    return None if row is None else TopicId(row.topic_id)


def pause_run(connection: Connection, batch_id: str, now_us: int) -> None:
    released = (_R.run_id == batch_id, _R.claim_workflow.is_(None), _R.finished_us.is_(None))
    if connection.execute(select(_R.run_id).where(*released).with_for_update()).first():
        raise PreconditionFailed(f"batch {batch_id}: expected it claimed by its workflow, found it released")
    _update_unfinished_run(connection, batch_id, {"paused_us": func.coalesce(_R.paused_us, now_us)})


def resume_run(connection: Connection, batch_id: str) -> None:
    _update_unfinished_run(connection, batch_id, {"paused_us": None})


def release_paused_run(connection: Connection, batch_id: str, now_us: int) -> bool:
    paused = (_R.run_id == batch_id, _R.paused_us.is_not(None), _R.finished_us.is_(None))
    lapsed = {
        **NO_CLAIM_COLUMNS,
        "claim_until_us": now_us,
    }  # without this time, `remove_finished_rows` would count the batch as old
    return connection.execute(update(t.run).where(*paused).values(paused_us=None, **lapsed)).rowcount > 0


def remove_runs(connection: Connection, page: Select[Any]) -> int:
    return connection.execute(delete(t.run).where(_R.run_id.in_(select(page.subquery())))).rowcount


def mark_paused_intents(connection: Connection, intents: Sequence[DeletionIntent]) -> list[DeletionIntent]:
    batch_ids = {
        intent.batch_id for intent in intents if intent.state is DeletionState.PENDING and intent.handed_to is None
    }
    batch_parameter = build_bulk_parameter(connection.dialect.name, "asked", {"batch": TEXT})
    query = select(_R.run_id, _R.paused_us, _R.finished_us).where(_R.run_id.in_(select(batch_parameter.source.c.batch)))
    runs = connection.execute(query, batch_parameter.to_parameters([[batch_id] for batch_id in sorted(batch_ids)]))
    paused = {run.run_id for run in runs if run.paused_us is not None and run.finished_us is None}
    return [replace(intent, paused=intent.batch_id in paused and intent.handed_to is None) for intent in intents]


def _update_unfinished_run(connection: Connection, batch_id: str, values: Mapping[str, Any]) -> None:
    row = connection.execute(select(_R.finished_us).where(_R.run_id == batch_id).with_for_update()).first()
    if row is None:
        raise UnknownObject("batch", expected="a batch that was detached", found=batch_id)
    if row.finished_us is not None:
        raise PreconditionFailed(f"batch {batch_id}: expected it unfinished, found that it is finished")
    connection.execute(update(t.run).where(_R.run_id == batch_id).values(values))
