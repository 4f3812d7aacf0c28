"""What names a ledger that was not detached, read for people."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select

from infra.catalog import tables as t
from infra.catalog.deletion.intents import keys_of
from infra.catalog.log.ledger_rows import last_id
from infra.catalog.offload.contexts import as_text, context_in, context_or_none
from logstore.deletion.intents import DeletionIntent
from logstore.log.ledgers import Component, CopyKind, CopyState
from logstore.ports.catalog import KnownCopy, Reference, ReferenceKind
from logstore.positions import LedgerId, TopicId


def live_row(connection: Connection, ledger_id: LedgerId) -> Row[Any] | None:
    """The ledger's row with its list's owner and its topic's name, or None."""
    lists, topics = t.ledger_list, t.topic
    source = t.ledger.join(lists, lists.c.list_id == t.ledger.c.list_id).join(
        topics, topics.c.topic_id == lists.c.topic_id
    )
    columns = (t.ledger, lists.c.topic_id, lists.c.component, lists.c.owner, topics.c.name.label("topic"))
    return connection.execute(select(*columns).select_from(source).where(t.ledger.c.ledger_id == ledger_id)).first()


def live_copies(connection: Connection, row: Row[Any]) -> Iterator[KnownCopy]:
    """Its copies, each with the intent that a detach would file: what storage can be asked with."""
    c = t.ledger_copy.c
    query = select(c.kind, c.state, as_text(c.context)).where(c.ledger_id == row.ledger_id)
    for copy in connection.execute(query.order_by(c.kind)):
        yield KnownCopy(state=copy.state, intent=_intent(row, copy))


def _intent(row: Row[Any], copy: Row[Any]) -> DeletionIntent:
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
        keys=keys_of(row.owner),
        context=context_in(copy.context),
        damage=None if context_or_none(copy.context) is not None else f"context (found {copy.context[:80]!r})",
        segments=row.segments,
        last_segment=row.last_segment,
        ledger_created_us=row.created_us,
        size_bytes=row.size_bytes,
        epoch=row.epoch,
    )


def references(connection: Connection, row: Row[Any]) -> Iterator[Reference]:
    """All of them; a ledger that is in no list is named by none."""
    if row.place is None:
        return
    last = last_id(connection, row.list_id) == row.ledger_id
    where = {"component": row.component, "keys": keys_of(row.owner), "place": row.place, "last": last}
    yield Reference(kind=ReferenceKind.LIST, facts=where)
    yield from _cursors(connection, row)
    yield from _versions(connection, row)
    yield from _offloads(connection, row)


def _cursors(connection: Connection, row: Row[Any]) -> Iterator[Reference]:
    """Subscriptions that have not acknowledged all of it, and one whose state it holds; by name."""
    c = t.cursor.c
    inside = and_(c.mark_ledger == row.ledger_id, c.mark_entry < row.entries - 1)
    holds_data = row.component == Component.MANAGED_LEDGER.value and row.entries > 0
    needs = or_(c.mark_ledger < row.ledger_id, inside) if holds_data else c.snapshot_ledger == row.ledger_id
    query = select(c.name, c.mark_ledger, c.mark_entry).where(c.topic_id == row.topic_id, needs)
    kind = ReferenceKind.CURSOR if holds_data else ReferenceKind.CURSOR_SNAPSHOT
    for found in sorted(connection.execute(query).all()):
        facts = {"subscription": found.name, "mark_delete": f"{found.mark_ledger}:{found.mark_entry}"}
        yield Reference(kind=kind, facts=facts)


def _versions(connection: Connection, row: Row[Any]) -> Iterator[Reference]:
    v = t.schema_version.c
    query = select(v.version).where(v.topic_id == row.topic_id, v.ledger_id == row.ledger_id).order_by(v.version)
    for version in connection.execute(query).scalars():
        yield Reference(kind=ReferenceKind.SCHEMA, facts={"version": version})


def _offloads(connection: Connection, row: Row[Any]) -> Iterator[Reference]:
    c = t.ledger_copy.c
    writing = (c.kind == CopyKind.OFFLOADED_LEDGER.value, c.state == CopyState.WRITING.value)
    query = select(as_text(c.context)).where(c.ledger_id == row.ledger_id, *writing)
    for context in connection.execute(query).scalars():
        yield Reference(kind=ReferenceKind.OFFLOAD, facts={"uuid": context_in(context).get("uuid")})
