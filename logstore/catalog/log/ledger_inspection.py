"""Inspection of one ledger: all rows of the catalog about it, read in one transaction."""

from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select, true

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.deletion.intent_queries import INTENT_COLUMNS, intent_from_row, parse_owner_keys
from logstore.catalog.deletion.run_rows import SEVERAL_TOPICS, match_stalled_intents
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction
from logstore.catalog.engine.dialect_sql import (
    cast_to_text,
    dataclass_from_row,
    parse_offload_context,
    parse_offload_context_or_empty,
)
from logstore.catalog.log.ledger_rows import read_last_ledger_id
from logstore.catalog.records.tombstone_rows import find_tombstone
from logstore.deletion.intents import DeletionIntent
from logstore.errors import UnknownObject
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerState
from logstore.ports.catalog.inspection import (
    AuditEntry,
    InspectedCopy,
    InspectedIntent,
    InspectedLedger,
    LedgerHistory,
    LedgerReference,
    LedgerReferenceKind,
)
from logstore.positions import LedgerId, TopicId

_A = t.audit.c


class LedgerInspection(CatalogAdapter):
    @in_read_transaction
    def get_ledger_history(self, connection: Connection, ledger_id: LedgerId, *, max_decisions: int) -> LedgerHistory:
        """Return the catalog's rows about the ledger at one moment, with at most `max_decisions` rows of the audit log.

        Raise `UnknownObject` if the catalog never created a ledger with this id.
        """
        ceiling = read_catalog_row(connection).next_ledger_id
        if not 0 <= ledger_id < ceiling:
            expected = f"an id that was given to a ledger, below {ceiling}"
            raise UnknownObject("ledger", expected=expected, found=ledger_id)
        row = read_live_ledger(connection, ledger_id)
        filed = _read_intents(connection, ledger_id, now_us=self._db.now_us(connection))
        live = list(read_live_copies(connection, row)) if row else []
        topics = {intent.intent.topic_id for intent in filed} | ({row.topic_id} if row else set())
        # If the ledger's topic is unknown, the whole audit log is read, because no index finds rows by ledger.
        of_topics = _A.topic_id.in_(sorted({*topics, SEVERAL_TOPICS})) if topics else true()
        is_about_ledger = _match_rows_about_ledger(ledger_id, of_topics, filed, live=row is not None)
        return LedgerHistory(
            ledger_id=ledger_id,
            live=dataclass_from_row(InspectedLedger, row, state=LedgerState(row.state), listed=row.place is not None)
            if row
            else None,
            references=list(_read_references(connection, row)) if row else [],
            copies=[*live, *_find_detached_copies(filed, live)],
            intents=filed,
            decisions=list(
                islice(_iterate_rows_about_ledger(connection, ledger_id, filed, is_about_ledger), max_decisions)
            ),
            tombstone=find_tombstone(connection, ledger_id),
        )

    @in_read_transaction
    def list_audit_entries(
        self, connection: Connection, *, topic: str | None = None, ledger_id: LedgerId | None = None, limit: int
    ) -> list[AuditEntry]:
        """Return rows of the audit log about a topic or a ledger, newest first.

        `topic` is an encoded name, which selects the rows of all topics that ever had this name, also deleted topics.
        """
        of_topic = true() if topic is None else _A.topic == topic
        if ledger_id is None:
            return list(islice(_iterate_entries(connection, of_topic), limit))
        filed, live = (
            _read_intents(connection, ledger_id, now_us=0),
            read_live_ledger(connection, ledger_id) is not None,
        )
        is_about_ledger = and_(of_topic, _match_rows_about_ledger(ledger_id, of_topic, filed, live=live))
        return list(islice(_iterate_rows_about_ledger(connection, ledger_id, filed, is_about_ledger), limit))


def _read_intents(connection: Connection, ledger_id: LedgerId, *, now_us: int) -> list[InspectedIntent]:
    p = t.pending_deletion.c
    query = (
        select(*INTENT_COLUMNS)
        .add_columns(match_stalled_intents(now_us).label("stalled"))
        .where(p.ledger_id == ledger_id)
    )
    return [
        dataclass_from_row(InspectedIntent, row, intent=intent_from_row(row), stalled=bool(row.stalled))
        for row in connection.execute(query.order_by(p.row_id.desc()))
    ]


def _find_detached_copies(intents: Iterable[InspectedIntent], live: Iterable[InspectedCopy]) -> Iterator[InspectedCopy]:
    """Yield copies that have intents but no row. If a copy has several intents, only the newest is used."""
    known_copies = {(copy.intent.copy, copy.intent.context.get("uuid")) for copy in live}
    for intent in intents:
        key = (intent.intent.copy, intent.intent.context.get("uuid"))
        if key not in known_copies:
            known_copies.add(key)
            yield InspectedCopy(state=intent.intent.state.value, intent=intent.intent)


def _match_rows_about_ledger(
    ledger_id: LedgerId, of_topics: ColumnElement[bool], intents: list[InspectedIntent], *, live: bool
) -> ColumnElement[bool]:
    """Select audit rows of the ledger or its batches. If not `live`, also select rows whose range has the ledger."""
    is_in_range = and_(of_topics, _A.first_ledger <= ledger_id, _A.last_ledger >= ledger_id)
    if live:
        is_in_range = and_(is_in_range, _A.first_ledger == _A.last_ledger)
    return or_(is_in_range, _A.run_id.in_(sorted(_batch_ids(intents))))


def _batch_ids(intents: list[InspectedIntent]) -> set[str]:
    return {intent.intent.batch_id for intent in intents} - {""}


def _iterate_rows_about_ledger(
    connection: Connection, ledger_id: LedgerId, intents: list[InspectedIntent], condition: ColumnElement[bool]
) -> Iterator[AuditEntry]:
    batch_ids = _batch_ids(intents)
    return (
        entry for entry in _iterate_entries(connection, condition) if not _is_unrelated(entry, ledger_id, batch_ids)
    )


def _is_unrelated(entry: AuditEntry, ledger_id: LedgerId, batch_ids: Container[str | None]) -> bool:
    """Return whether an audit row with a range of ledgers is not about this ledger.

    If the sample in the row is complete, the sample decides. Otherwise a row of one topic is about the ledger. A row of
    several topics is about the ledger only if the row's batch is in `batch_ids`.
    """
    sample, count = entry.detail.get("sample"), entry.detail.get("ledgers")
    if isinstance(sample, list) and count == len(sample):
        return ledger_id not in sample
    return isinstance(sample, list) and entry.topic is None and entry.run_id not in batch_ids


def _iterate_entries(connection: Connection, where: ColumnElement[bool]) -> Iterator[AuditEntry]:
    newest = select(t.audit).where(where).order_by(_A.audit_id.desc())
    with connection.execute(newest, execution_options={"yield_per": 100}) as result:
        yield from (dataclass_from_row(AuditEntry, row) for row in result)


def read_live_ledger(connection: Connection, ledger_id: LedgerId) -> Row[Any] | None:
    """Return the ledger's row with ledger owner and topic name, or `None` if the ledger has no row."""
    lists, topics = t.ledger_list, t.topic
    source = t.ledger.join(lists, lists.c.list_id == t.ledger.c.list_id).join(
        topics, topics.c.topic_id == lists.c.topic_id
    )
    columns = (t.ledger, lists.c.topic_id, lists.c.component, lists.c.owner, topics.c.name.label("topic"))
    return connection.execute(select(*columns).select_from(source).where(t.ledger.c.ledger_id == ledger_id)).first()


def read_live_copies(connection: Connection, row: Row[Any]) -> Iterator[InspectedCopy]:
    """Yield the ledger's copies, each with the intent that a detach would file."""
    c = t.ledger_copy.c
    query = select(c.kind, c.state, cast_to_text(c.context)).where(c.ledger_id == row.ledger_id)
    for copy in connection.execute(query.order_by(c.kind)):
        yield InspectedCopy(state=copy.state, intent=_build_intent_of_detach(row, copy))


def _build_intent_of_detach(row: Row[Any], copy: Row[Any]) -> DeletionIntent:
    return DeletionIntent(
        row_id=0,
        batch_id="",
        ledger_id=LedgerId(row.ledger_id),
        copy=CopyKind(copy.kind),
        generation=row.generation + 1,
        application=row.application,
        component=row.component,
        topic_id=TopicId(row.topic_id),
        topic=row.topic,
        keys=parse_owner_keys(row.owner),
        context=parse_offload_context_or_empty(copy.context),
        damage=None if parse_offload_context(copy.context) is not None else f"context (found {copy.context[:80]!r})",
        segments=row.segments,
        last_segment=row.last_segment,
        ledger_created_us=row.created_us,
        size_bytes=row.size_bytes,
        epoch=row.epoch,
    )


def _read_references(connection: Connection, row: Row[Any]) -> Iterator[LedgerReference]:
    """Yield the references to the ledger. An unlisted ledger has no references."""
    if row.place is None:
        return
    last = read_last_ledger_id(connection, row.list_id) == row.ledger_id
    where = {"component": row.component, "keys": parse_owner_keys(row.owner), "place": row.place, "last": last}
    yield LedgerReference(kind=LedgerReferenceKind.LIST, facts=where)
    yield from _read_cursor_references(connection, row)
    v, c = t.schema_version.c, t.ledger_copy.c
    versions = select(v.version).where(v.topic_id == row.topic_id, v.ledger_id == row.ledger_id).order_by(v.version)
    for version in connection.execute(versions).scalars():
        yield LedgerReference(kind=LedgerReferenceKind.SCHEMA, facts={"version": version})
    s = t.transaction_snapshot.c
    buffers = select(s.read_ledger, s.read_entry).where(s.topic_id == row.topic_id, s.ledger_id == row.ledger_id)
    for at, entry in connection.execute(buffers):
        yield LedgerReference(kind=LedgerReferenceKind.TXN_SNAPSHOT, facts={"read_to": f"{at}:{entry}"})
    b = t.delayed_bucket.c
    ends = (b.first_ledger, b.first_entry, b.last_ledger, b.last_entry)
    buckets = select(b.messages, *ends).where(b.topic_id == row.topic_id, b.ledger_id == row.ledger_id)
    for messages, *at in connection.execute(buckets):
        facts = {"from": f"{at[0]}:{at[1]}", "to": f"{at[2]}:{at[3]}", "messages": messages}
        yield LedgerReference(kind=LedgerReferenceKind.DELAYED_INDEX, facts=facts)
    writing = (c.kind == CopyKind.OFFLOADED_LEDGER.value, c.state == CopyState.WRITING.value)
    offloads = select(cast_to_text(c.context)).where(c.ledger_id == row.ledger_id, *writing)
    for context in connection.execute(offloads).scalars():
        yield LedgerReference(
            kind=LedgerReferenceKind.OFFLOAD, facts={"uuid": parse_offload_context_or_empty(context).get("uuid")}
        )


def _read_cursor_references(connection: Connection, row: Row[Any]) -> Iterator[LedgerReference]:
    """Yield the references of subscriptions to the ledger, sorted by the name of the subscription.

    A subscription refers to a message ledger until all entries of the ledger are acknowledged. It also refers to the
    ledger of its cursor snapshot.
    """
    c = t.cursor.c
    inside = and_(c.mark_ledger == row.ledger_id, c.mark_entry < row.entries - 1)
    holds_data = row.component == Component.MANAGED_LEDGER.value and row.entries > 0
    needs = or_(c.mark_ledger < row.ledger_id, inside) if holds_data else c.snapshot_ledger == row.ledger_id
    query = select(c.name, c.mark_ledger, c.mark_entry).where(c.topic_id == row.topic_id, needs)
    kind = LedgerReferenceKind.CURSOR if holds_data else LedgerReferenceKind.CURSOR_SNAPSHOT
    for cursor in sorted(connection.execute(query).all()):
        facts = {"subscription": cursor.name, "mark_delete": f"{cursor.mark_ledger}:{cursor.mark_entry}"}
        yield LedgerReference(kind=kind, facts=facts)
