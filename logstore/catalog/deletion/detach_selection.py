"""Selection of ledgers to detach, from the rows of a locked ledger list."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, exists, func, select

from logstore.catalog import tables as t
from logstore.catalog.deletion.run_rows import match_stalled_intents
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.message_ledgers import filter_listed_ledgers
from logstore.catalog.offload.upload_ends import match_abandoned_uploads
from logstore.catalog.transactions.buffer_rows import match_unsettled_ledgers
from logstore.deletion.intent_queue_rules import MAX_IDS_PER_CALL, normalize_ids
from logstore.deletion.intents import Outcome
from logstore.deletion.retention import (
    LedgerFacts,
    RetentionPolicy,
    reason_to_keep,
    require_unneeded_ledgers,
    select_detachable_prefix,
    simulate_roll,
)
from logstore.errors import InvalidInput, UnknownObject
from logstore.log.ledgers import CopyKind, CopyState, LedgerState
from logstore.ports.catalog.log import Ledger
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListView:
    topic_id: TopicId
    topic: str
    list_id: int
    policy: RetentionPolicy
    durable_delete: bool | None  # the topic's setting
    last: LedgerId
    marks: dict[str, Position]  # mark-delete position by subscription
    now_us: int
    abandoned_us: int  # a newborn ledger that was created before this time is abandoned


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersToDetach:
    ids: Sequence[LedgerId]
    rows: ColumnElement[bool]
    finished: dict[str, int]  # number of earlier intents of requested ledgers, by outcome


def select_ledgers_to_detach(
    connection: Connection,
    view: TopicListView,
    requested_ids: Sequence[LedgerId] | None,
    *,
    force: bool,
    ledger_assumed_rolled: LedgerId | None = None,
) -> LedgersToDetach:
    """Return the ledgers to detach. Without `requested_ids`, these are the ledgers that retention does not keep."""
    if requested_ids is None:
        return _select_by_retention(connection, view, ledger_assumed_rolled)
    return _select_by_id(connection, view, requested_ids, force=force)


def _select_by_retention(
    connection: Connection, view: TopicListView, ledger_assumed_rolled: LedgerId | None
) -> LedgersToDetach:
    in_list, is_listed = t.ledger.c.list_id == view.list_id, t.ledger.c.place.is_not(None)
    total_bytes = connection.execute(select(func.sum(t.ledger.c.size_bytes)).where(in_list, is_listed)).scalar_one()
    facts = _read_ledger_facts(connection, in_list, view.now_us)
    prefix = select_detachable_prefix(
        (
            simulate_roll(ledger, view.now_us) if ledger.ledger_id == ledger_assumed_rolled else ledger
            for ledger in facts
        ),
        mark_delete_by_subscription=view.marks,
        policy=view.policy,
        total_bytes=int(total_bytes or 0),
        last=LedgerId(-1)
        if view.last == ledger_assumed_rolled
        else view.last,  # -1: the ledger after the roll has no id yet
        now_us=view.now_us,
    )
    ids = [ledger.ledger_id for ledger in prefix]
    end = ids[-1] if ids else -1
    return LedgersToDetach(ids=ids, rows=in_list & is_listed & (t.ledger.c.ledger_id <= end), finished={})


def _select_by_id(
    connection: Connection, view: TopicListView, requested_ids: Sequence[LedgerId], *, force: bool
) -> LedgersToDetach:
    ids = normalize_ids("ledger ids", requested_ids)
    rows = (t.ledger.c.list_id == view.list_id) & is_one_of(connection, t.ledger.c.ledger_id, ids)
    listed_ledgers = {ledger.ledger_id: ledger for ledger in _read_ledger_facts(connection, rows, view.now_us)}
    finished = _count_outcomes_of_earlier_detaches(
        connection, view, [ledger_id for ledger_id in ids if ledger_id not in listed_ledgers]
    )
    marks = {} if force else view.marks
    require_unneeded_ledgers(view.topic, listed_ledgers.values(), last=view.last, mark_delete_by_subscription=marks)
    return LedgersToDetach(ids=sorted(listed_ledgers), rows=rows & t.ledger.c.place.is_not(None), finished=finished)


def recheck_chosen_ledgers(
    connection: Connection, view: TopicListView, chosen: Sequence[Ledger]
) -> tuple[LedgersToDetach, dict[LedgerId, str]]:
    """Return the `chosen` ledgers that can still be detached, and the reason to keep each of the others."""
    ids = [ledger.ledger_id for ledger in chosen]
    if len(ids) > MAX_IDS_PER_CALL:
        raise InvalidInput("ledgers", expected=f"at most {MAX_IDS_PER_CALL}", found=len(ids))
    rows = (t.ledger.c.list_id == view.list_id) & is_one_of(connection, t.ledger.c.ledger_id, ids)
    now = {ledger.ledger_id: ledger for ledger in filter_listed_ledgers(connection, view.topic_id, ids)}
    reason_by_ledger = {
        ledger.ledger_id: _describe_change_since_read(ledger, now.get(ledger.ledger_id)) for ledger in chosen
    }
    for facts in _read_ledger_facts(connection, rows, view.now_us):
        reason = reason_by_ledger.get(facts.ledger_id) or reason_to_keep(
            facts, last=view.last, mark_delete_by_subscription=view.marks
        )
        reason_by_ledger[facts.ledger_id] = reason or ""
    detached_ids = sorted(ledger_id for ledger_id, reason in reason_by_ledger.items() if not reason)
    where = (t.ledger.c.list_id == view.list_id) & t.ledger.c.place.is_not(None)
    to_detach = LedgersToDetach(
        ids=detached_ids, rows=where & is_one_of(connection, t.ledger.c.ledger_id, detached_ids), finished={}
    )
    return to_detach, {ledger_id: reason for ledger_id, reason in reason_by_ledger.items() if reason}


def _describe_change_since_read(read: Ledger, now: Ledger | None) -> str:
    if now is None:
        return "it is in its list no more"
    return "" if now == read else "it has changed since it was looked at"


def _count_outcomes_of_earlier_detaches(
    connection: Connection, view: TopicListView, ids: list[LedgerId]
) -> dict[str, int]:
    """Return numbers of earlier intents by outcome. Stalled intents do not count. Unfinished intents are RETRYING."""
    p = t.pending_deletion.c
    is_requested = is_one_of(connection, p.ledger_id, ids)
    stalled = match_stalled_intents(view.now_us).label("stalled")
    query = select(p.ledger_id, p.outcome, stalled).where(p.topic_id == view.topic_id, is_requested)
    rows = connection.execute(query).all() if ids else []
    unknown = sorted(set(ids) - {row.ledger_id for row in rows})
    if unknown:
        raise UnknownObject("ledger", expected=f"a ledger of {view.topic}", found=unknown[0])
    outcomes = [row.outcome or Outcome.RETRYING.value for row in rows if not row.stalled]
    return {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}


def _read_ledger_facts(connection: Connection, rows: ColumnElement[bool], now_us: int) -> Iterator[LedgerFacts]:
    c = t.ledger_copy.c
    writing = exists().where(
        c.ledger_id == t.ledger.c.ledger_id,
        c.kind == CopyKind.OFFLOADED_LEDGER.value,
        c.state == CopyState.WRITING.value,
        ~match_abandoned_uploads(now_us),
    )
    columns = (t.ledger.c.ledger_id, t.ledger.c.state, t.ledger.c.entries, t.ledger.c.size_bytes, t.ledger.c.closed_us)
    transacting = match_unsettled_ledgers(t.ledger.c.ledger_id).label("transacting")
    query = select(*columns, writing.label("offloading"), transacting).where(rows, t.ledger.c.place.is_not(None))
    ordered = query.order_by(t.ledger.c.place)
    with connection.execute(ordered, execution_options={"yield_per": 1000}) as result:
        for row in result:
            yield LedgerFacts(
                ledger_id=LedgerId(row.ledger_id),
                state=LedgerState(row.state),
                entries=row.entries,
                size_bytes=row.size_bytes,
                closed_us=row.closed_us,
                is_offloading=bool(row.offloading),
                has_open_transaction=bool(row.transacting),
            )
