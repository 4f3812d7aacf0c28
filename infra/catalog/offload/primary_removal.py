"""Phase one for primary copies alone: where a tiered copy stands, the ledger stays listed and its primary goes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, select

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.deletion.intent_rows import adopt_stalled, file_copy_intents
from infra.catalog.deletion.intents import filed_by
from infra.catalog.deletion.runs import done_before, open_run
from infra.catalog.engine.database import Database
from infra.catalog.engine.many import any_of
from infra.catalog.log.ledger_rows import data_list
from infra.catalog.log.topic_rows import topic_row
from infra.catalog.offload.contexts import as_text, context_in
from infra.catalog.offload.uploads import TIERED, statement_of
from logstore.log.ledgers import CopyKind, CopyState, LedgerState
from logstore.ports.catalog import Cause, Claim, Detached, Published, Topic
from logstore.positions import LedgerId, TopicId

_LIVE = CopyState.LIVE.value
_primary, _tiered = t.ledger_copy.alias("primary_copy"), t.ledger_copy.alias("tiered_copy")


def removable(
    connection: Connection, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
) -> list[Published]:
    """See `Offloads.removable`."""
    topic = topic_row(connection, topic_id)
    wanted = _removable(connection.dialect.name, data_list(connection, topic_id), ledger_ids)
    rows = connection.execute(_query(wanted & (t.ledger.c.ledger_id > after)).limit(limit)).all()
    return [_published(topic, row) for row in rows]


def remove_primaries(
    connection: Connection,
    database: Database,
    topic_id: TopicId,
    ledger_ids: Sequence[LedgerId] | None,
    *,
    proved: Mapping[LedgerId, str],
    batch_id: str,
    claim: Claim,
    cause: Cause,
) -> Detached:
    """See `Offloads.remove_primaries`."""
    request = _fingerprint(topic_id, ledger_ids)
    topic = topic_row(connection, topic_id, share=True)
    list_id = data_list(connection, topic_id, lock=True)
    done = done_before(connection, batch_id, request)
    if done:
        return done
    now = database.now_us(connection)
    stalled = adopt_stalled(connection, topic_id, ledger_ids, batch_id=batch_id, now_us=now, copy=CopyKind.LEDGER)
    ids = _proved_ids(connection, list_id, ledger_ids, proved)
    doomed = t.ledger.c.ledger_id.in_(any_of(connection.dialect.name, ids))
    filed = file_copy_intents(connection, list_id, CopyKind.LEDGER, doomed, batch_id=batch_id, now_us=now, cause=cause)
    result = Detached(batch_id=batch_id, ledgers=len(ids), intents=filed + stalled)
    if result.intents:
        open_run(connection, result, topic_id, claim, now, request=request)
    if ids:
        audit(
            connection,
            "remove-primaries",
            cause,
            at_us=now,
            topic_id=topic_id,
            topic=topic.name,
            run_id=batch_id,
            detail={},
            span=Span.of(ids),
        )
    return replace(result, filed=filed_by(connection, batch_id, now) if ids else ())


def _fingerprint(topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None) -> str:
    ids = "all" if ledger_ids is None else ",".join(str(ledger_id) for ledger_id in sorted(set(ledger_ids)))
    return hashlib.sha256(f"primaries/{topic_id}/{ids}".encode()).hexdigest()


def _removable(dialect: str, list_id: int, ledger_ids: Sequence[LedgerId] | None) -> ColumnElement[bool]:
    """Ledgers of the list of which both copies are LIVE; for `_query`."""
    c = _primary.c
    primary = exists().where(c.ledger_id == t.ledger.c.ledger_id, c.kind == CopyKind.LEDGER.value, c.state == _LIVE)
    found = (t.ledger.c.list_id == list_id) & t.ledger.c.place.is_not(None) & primary
    found &= t.ledger.c.state == LedgerState.CLOSED.value
    return found if ledger_ids is None else found & t.ledger.c.ledger_id.in_(any_of(dialect, ledger_ids))


def _query(wanted: ColumnElement[bool]) -> Select[Any]:
    """Ledgers with the context of their LIVE tiered copy, ascending."""
    c = _tiered.c
    live = (c.ledger_id == t.ledger.c.ledger_id) & (c.kind == TIERED.value) & (c.state == _LIVE)
    source = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id).join(_tiered, live)
    columns = (t.ledger, t.ledger_list.c.component, as_text(c.context, "tiered_context"))
    return select(*columns).select_from(source).where(wanted).order_by(t.ledger.c.ledger_id)


def _published(topic: Topic, row: Row[Any]) -> Published:
    context = context_in(row.tiered_context)
    return Published(statement=statement_of(topic, row), entries=row.entries, context=context)


def _proved_ids(
    connection: Connection, list_id: int, ledger_ids: Sequence[LedgerId] | None, proved: Mapping[LedgerId, str]
) -> list[LedgerId]:
    """What is proved and removable; the tiered copy is still the one that was proved."""
    dialect = connection.dialect.name
    wanted = _removable(dialect, list_id, ledger_ids) & t.ledger.c.ledger_id.in_(any_of(dialect, proved))
    found = {row.ledger_id: context_in(row.tiered_context).get("uuid") for row in connection.execute(_query(wanted))}
    return [LedgerId(ledger_id) for ledger_id, uuid in found.items() if uuid == proved[LedgerId(ledger_id)]]
