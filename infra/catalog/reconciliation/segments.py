"""Segments that no row names are passed over, so that no writer registers them when their objects are gone."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, and_, select

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.deletion.runs import SEVERAL_TOPICS
from infra.catalog.engine.many import BIG, Statement, among, rows_of
from infra.catalog.log.ledger_rows import pass_over
from infra.catalog.log.topic_rows import hold_topics
from logstore.log.ledgers import CopyKind, LedgerState, segment_key
from logstore.ports.catalog import Cause
from logstore.positions import LedgerId
from logstore.reconciliation.rules import reason_to_keep_segment, takes_segments

_L, _S, _C = t.ledger.c, t.segment.c, t.ledger_copy.c
_MOST_KEYS: Final = 10  # in a row of the audit log: a sample

Segments = Mapping[int, tuple[LedgerId, int]]


def pass_segments_over(connection: Connection, segments: Segments, cause: Cause, now_us: int) -> dict[int, str]:
    """See `Reconciliation.pass_over`. Locks: topics, ledgers, as an append has them."""
    ledgers = _locked(connection, {ledger_id for ledger_id, _ in segments.values()})
    named = _rows(connection, sorted(set(segments.values())))
    kept = {
        number: f"segment {at[1]} of ledger {at[0]}: {why}"
        for number, at in segments.items()
        if (why := _reason_to_stay(ledgers.get(at[0]), at, named))
    }
    passed = sorted(at for number, at in segments.items() if number not in kept)
    if passed:
        pass_over(
            connection,
            {ledger_id: at for ledger_id, at in passed if takes_segments(LedgerState(ledgers[ledger_id].state))},
        )
        ids = sorted({ledger_id for ledger_id, _ in passed})
        about: dict[str, Any] = {**_topic(connection, ids), "span": Span.of(ids)}
        keys = [segment_key(ledger_id, at) for ledger_id, at in passed[:_MOST_KEYS]]
        detail = {"segments": len(passed), "kept": len(kept), "keys": keys}
        audit(connection, "pass-over-segments", cause, at_us=now_us, detail=detail, **about)
    return kept


def _topic(connection: Connection, ids: Sequence[int]) -> dict[str, Any]:
    """Whose the ledgers are; none is named where they are several topics'."""
    of_ledgers = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    named = of_ledgers.join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
    query = select(t.topic.c.topic_id, t.topic.c.name).select_from(named).where(among(connection, _L.ledger_id, ids))
    found = connection.execute(query.distinct().limit(2)).all()
    one = found[0] if len(found) == 1 else None
    return {"topic_id": one.topic_id if one else SEVERAL_TOPICS, "topic": one.name if one else None}


def _locked(connection: Connection, ids: set[LedgerId]) -> dict[int, Any]:
    """Ledgers that have rows, with whether they have their primary copy."""
    mine = among(connection, _L.ledger_id, ids)
    of_list = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    topics = select(t.ledger_list.c.topic_id).select_from(of_list).where(mine).distinct()
    hold_topics(connection, connection.execute(topics).scalars())
    connection.execute(select(_L.ledger_id).where(mine).order_by(_L.ledger_id).with_for_update())
    copy = and_(_C.ledger_id == _L.ledger_id, _C.kind == CopyKind.LEDGER.value)
    query = select(_L.ledger_id, _L.state, _L.last_segment, _C.kind.label("primary"))
    rows = connection.execute(query.select_from(t.ledger.outerjoin(t.ledger_copy, copy)).where(mine))
    return {row.ledger_id: row for row in rows}


def _rows(connection: Connection, asked: Sequence[tuple[LedgerId, int]]) -> set[tuple[int, int]]:
    """Those of the segments that have rows."""
    rows = rows_of(connection.dialect.name, "asked", {"ledger_id": BIG, "number": BIG})
    same = and_(_S.ledger_id == rows.source.c.ledger_id, _S.number == rows.source.c.number)
    query = Statement(sql=select(_S.ledger_id, _S.number).join_from(t.segment, rows.source, same), rows=rows)
    return {(row.ledger_id, row.number) for row in query.execute(connection, asked)}


def _reason_to_stay(ledger: Any, at: tuple[int, int], named: set[tuple[int, int]]) -> str | None:  # noqa: ANN401 - a row
    if ledger is None:
        return "the ledger has left the catalog"
    if at in named:
        return "a row names it"
    state, primary = LedgerState(ledger.state), ledger.primary is not None
    return reason_to_keep_segment(state, last_segment=ledger.last_segment, primary=primary, number=at[1])
