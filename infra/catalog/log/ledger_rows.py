"""Writes of ledgers, with their lists, copies and segments: nothing else inserts, updates or deletes these rows.

Whatever changes what a list holds raises the list's version here, and whatever takes a copy away raises its ledger's
generation. Unless a function says otherwise, its caller holds the lock of the list, behind that of its topic.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, func, insert, literal, select, update

from infra.catalog import tables as t
from infra.catalog.engine.dialects import (
    BIG,
    TEXT,
    Statement,
    among,
    bulk_parameter,
    dataclass_from_row,
    insert_if_absent,
)
from infra.catalog.identity.catalog_row import read_catalog_row
from infra.catalog.records.tombstone_rows import bury_ledgers
from infra.catalog.transactions.buffer_rows import forget_ledgers
from logstore.errors import IdsExhausted, UnknownObject
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerState, LedgerStatement
from logstore.ports.catalog import Ledger
from logstore.positions import LedgerId, TopicId

GROWING_COLUMNS: Final = ("entries", "size_bytes", "segments", "last_segment")
"""The columns of a ledger that grow with each segment."""

_LISTS = t.ledger_list.c


def canonical_json(keys: Mapping[str, str]) -> str:
    """Keys of a component as one text, equal for equal keys."""
    return json.dumps(dict(keys), sort_keys=True, separators=(",", ":"))


def list_query(topic_id: TopicId, component: Component, keys: Mapping[str, str]) -> Any:  # noqa: ANN401 - SQLAlchemy's select
    """The id of the list of one owner."""
    mine = (_LISTS.topic_id == topic_id, _LISTS.component == component.value, _LISTS.owner == canonical_json(keys))
    return select(_LISTS.list_id).where(*mine)


def data_list_id(connection: Connection, topic_id: TopicId, *, lock: bool = False) -> int:
    """Id of the topic's list of data ledgers, locked if asked.

    Raises:
        UnknownObject: No such topic.
    """
    query = list_query(topic_id, Component.MANAGED_LEDGER, {})
    found = connection.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    if found is None:
        raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
    return int(found)


def lock_component_list(
    connection: Connection, topic_id: TopicId, component: Component, keys: Mapping[str, str]
) -> int:
    """Lock a component's list and return its id; -1 when no ledger was ever created for it."""
    found = connection.execute(list_query(topic_id, component, keys).with_for_update()).scalar_one_or_none()
    return -1 if found is None else int(found)


def lock_lists(connection: Connection, *which: ColumnElement[bool]) -> list[int]:
    """Lock the lists that meet the conditions and return their ids, ascending: so no two of us deadlock."""
    locked = select(_LISTS.list_id).where(*which).order_by(_LISTS.list_id).with_for_update()
    return list(connection.execute(locked).scalars())


def ensure_list(connection: Connection, topic_id: TopicId, component: Component, keys: Mapping[str, str]) -> int:
    """Id of an owner's list, made if there is none, under a share lock of the topic's row; nothing is locked.

    Its unique key decides between racing creators.
    """
    query = list_query(topic_id, component, keys)
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        made = {"topic_id": topic_id, "component": component.value, "owner": canonical_json(keys), "version": 0}
        connection.execute(insert_if_absent(connection, t.ledger_list).values(made))
        found = connection.execute(query).scalar_one()
    return int(found)


def raise_version(connection: Connection, list_id: int) -> None:
    """Count a change of the list, or of the cursors that move over it."""
    changed = update(t.ledger_list).where(_LISTS.list_id == list_id)
    connection.execute(changed.values(version=_LISTS.version + 1))


def remove_lists(connection: Connection, topic_id: TopicId) -> int:
    """Remove the lists of a topic that is being deleted, all of them locked and empty, and return how many."""
    return connection.execute(delete(t.ledger_list).where(_LISTS.topic_id == topic_id)).rowcount


def insert_newborn(connection: Connection, owner: LedgerOwner, list_id: int, *, now_us: int) -> LedgerStatement:
    """Insert a ledger of the next id, CREATING, and its primary copy, or `IdsExhausted`; the list is not locked."""
    taken = connection.execute(
        update(t.catalog)
        .where(t.catalog.c.next_ledger_id < select(t.record_log.c.ledger_ceiling).scalar_subquery())
        .values(next_ledger_id=t.catalog.c.next_ledger_id + 1)
        .returning(t.catalog.c.next_ledger_id - 1, t.catalog.c.epoch)
    ).one_or_none()
    if taken is None:
        read_catalog_row(connection)
        raise IdsExhausted("ledger ids: expected one below the ceiling, found none; flush the record log")
    statement = LedgerStatement(owner=owner, ledger_id=LedgerId(taken[0]), created_us=now_us, epoch=taken[1])
    _insert(connection, list_id, [statement])
    return statement


def _insert(connection: Connection, list_id: int, born: Sequence[LedgerStatement]) -> None:
    of_all = dict.fromkeys((*GROWING_COLUMNS, "generation"), 0) | {"list_id": list_id, "last_segment": -1}
    rows = [
        {
            **of_all,
            "state": LedgerState.CREATING.value,
            "ledger_id": one.ledger_id,
            "application": one.owner.application,
            "epoch": one.epoch,
            "created_us": one.created_us,
        }
        for one in born
    ]
    connection.execute(insert(t.ledger), rows)
    connection.execute(insert(t.ledger_copy), [_copy(one.ledger_id, CopyKind.LEDGER, {}) for one in born])


def attach_newborn(
    connection: Connection, list_id: int, ledger_id: LedgerId, *, after: LedgerId | None, now_us: int
) -> None:
    """Put a newborn at the list's end, OPEN, and close its predecessor if that was open."""
    was_open = (t.ledger.c.ledger_id == after, t.ledger.c.state == LedgerState.OPEN.value)
    connection.execute(update(t.ledger).where(*was_open).values(state=LedgerState.CLOSED.value, closed_us=now_us))
    _list(connection, list_id, t.ledger.c.ledger_id == ledger_id, state=LedgerState.OPEN.value)


def publish_newborn(connection: Connection, row: Row[Any], *, size_bytes: int, sha256: str | None, now_us: int) -> None:
    """List a component's newborn, CLOSED, with its one segment of one entry."""
    only = {"ledger_id": row.ledger_id, "number": 0, "first_entry": 0, "entries": 1, "size_bytes": size_bytes}
    connection.execute(insert(t.segment).values(**only, sha256=sha256, delayed=0))
    grown = {"entries": 1, "size_bytes": size_bytes, "segments": 1, "last_segment": 0}
    born = t.ledger.c.ledger_id == row.ledger_id
    _list(connection, row.list_id, born, state=LedgerState.CLOSED.value, closed_us=now_us, **grown)


def insert_stored_ledgers(connection: Connection, list_id: int, statements: Sequence[LedgerStatement]) -> None:
    """Put data ledgers that only storage knew into a list, each in the place that its id gives it: OPEN and empty."""
    if statements:
        _insert(connection, list_id, statements)
        list_newborns(connection, list_id, [one.ledger_id for one in statements])


def list_newborns(connection: Connection, list_id: int, ledger_ids: Collection[LedgerId]) -> None:
    """Put newborn data ledgers of which storage says that they were opened into their list, OPEN."""
    if ledger_ids:
        _list(connection, list_id, among(connection, t.ledger.c.ledger_id, ledger_ids), state=LedgerState.OPEN.value)


def close_followed_ledgers(connection: Connection, *, now_us: int) -> int:
    """Close each open ledger that another one follows in its list, of all lists, and say how many."""
    c, later = t.ledger.c, t.ledger.alias()
    followed = exists().where(later.c.list_id == c.list_id, later.c.place > c.place)
    still_open = update(t.ledger).where(c.state == LedgerState.OPEN.value, c.place.is_not(None), followed)
    return connection.execute(still_open.values(state=LedgerState.CLOSED.value, closed_us=now_us)).rowcount


def _list(connection: Connection, list_id: int, born: ColumnElement[bool], **columns: Any) -> None:  # noqa: ANN401
    """Places are ids, because these grow along a list."""
    live = update(t.ledger_copy).where(t.ledger_copy.c.ledger_id.in_(select(t.ledger.c.ledger_id).where(born)))
    connection.execute(update(t.ledger).where(born).values(place=t.ledger.c.ledger_id, **columns))
    connection.execute(live.values(state=CopyState.LIVE.value))
    raise_version(connection, list_id)


def insert_segments(
    connection: Connection, segments: Iterable[tuple[Any, ...]], grown: Iterable[tuple[Any, ...]]
) -> None:
    """Insert segments, and let their ledgers grow; the caller holds the locks of topics and ledgers, and of no list.

    Args:
        connection: In a writing transaction.
        segments: Rows of `segment`.
        grown: Of each ledger its id, and what it holds from now on of what `GROWING_COLUMNS`.
    """
    inserted, grew = _registering(connection.dialect.name)
    inserted.execute(connection, segments)
    grew.execute(connection, grown)


@cache
def _registering(dialect: str) -> tuple[Statement, Statement]:
    added = bulk_parameter(dialect, "added", dict.fromkeys(t.segment.c.keys(), BIG) | {"sha256": TEXT})
    rows = select(*(added.source.c[name] for name in added.columns))
    inserted = insert(t.segment).from_select(added.columns, rows)
    grown = bulk_parameter(dialect, "grown", dict.fromkeys(("ledger_id", *GROWING_COLUMNS), BIG))
    grew = update(t.ledger).where(t.ledger.c.ledger_id == grown.source.c.ledger_id)
    values = {name: grown.source.c[name] for name in GROWING_COLUMNS}
    return Statement(sql=inserted, rows=added), Statement(sql=grew.values(values), rows=grown)


def raise_last_segments(connection: Connection, highest: Mapping[int, int]) -> None:
    """Raise the number that the next segment of each of these ledgers must be above; the caller holds their locks.

    Args:
        connection: In a writing transaction.
        highest: Ledger id → number; one that is not higher than the ledger's own changes nothing.
    """
    passed = bulk_parameter(connection.dialect.name, "passed", {"ledger_id": BIG, "number": BIG})
    above = (t.ledger.c.ledger_id == passed.source.c.ledger_id, t.ledger.c.last_segment < passed.source.c.number)
    raised = update(t.ledger).where(*above).values(last_segment=passed.source.c.number)
    Statement(sql=raised, rows=passed).execute(connection, highest.items())


def begin_copy(
    connection: Connection, list_id: int, ledger_id: LedgerId, kind: CopyKind, context: Mapping[str, str]
) -> None:
    """Insert a copy of a listed ledger, WRITING; there is none of its kind."""
    connection.execute(insert(t.ledger_copy).values(_copy(ledger_id, kind, context)))
    raise_version(connection, list_id)


def _copy(ledger_id: int, kind: CopyKind, context: Mapping[str, str]) -> dict[str, Any]:
    return {"ledger_id": ledger_id, "kind": kind.value, "state": CopyState.WRITING.value, "context": dict(context)}


def publish_copy(
    connection: Connection, list_id: int, ledger_id: LedgerId, kind: CopyKind, context: Mapping[str, str]
) -> None:
    """WRITING → LIVE, with what its context says from now on."""
    set_copy_context(connection, ledger_id, kind, context, state=CopyState.LIVE.value)
    raise_version(connection, list_id)


def set_copy_context(
    connection: Connection, ledger_id: LedgerId, kind: CopyKind, context: Mapping[str, str], **more: str
) -> None:
    """Set the context of a copy that is about to leave its list, which counts the change."""
    this = update(t.ledger_copy).where(t.ledger_copy.c.ledger_id == ledger_id, t.ledger_copy.c.kind == kind.value)
    connection.execute(this.values(context=dict(context), **more))


def insert_missing_copies(connection: Connection, topic_id: TopicId) -> None:
    """Give each ledger of a topic that has lost the rows of all of its copies its primary one, in every list.

    So storage is asked, and the ledger's row can go.
    """
    lists = select(_LISTS.list_id).where(_LISTS.topic_id == topic_id)
    bare = t.ledger.c.list_id.in_(lists), ~exists().where(t.ledger_copy.c.ledger_id == t.ledger.c.ledger_id)
    columns = {"kind": literal(CopyKind.LEDGER.value), "state": literal(CopyState.WRITING.value)}
    context = literal({}, t.ledger_copy.c.context.type)
    rows = select(t.ledger.c.ledger_id, *columns.values(), context).where(*bare)
    connection.execute(insert(t.ledger_copy).from_select(["ledger_id", *columns, "context"], rows))


def remove_ledgers(connection: Connection, gone: ColumnElement[bool], *, buried_us: int | None = None) -> None:
    """Remove ledgers with their copies and segments, set-wise; the lists of those that were listed are changed by it.

    Args:
        connection: In a writing transaction that holds the locks of their lists.
        gone: Which rows of `ledger`: those that have intents in their place, or that a rebuild leaves out.
        buried_us: The time of the tombstones that they leave; None: they leave none.
    """
    if buried_us is not None:
        bury_ledgers(connection, gone, now_us=buried_us)
    listed = select(t.ledger.c.list_id).where(gone, t.ledger.c.place.is_not(None))
    changed = update(t.ledger_list).where(_LISTS.list_id.in_(listed))
    connection.execute(changed.values(version=_LISTS.version + 1))
    ids = select(t.ledger.c.ledger_id).where(gone)
    connection.execute(delete(t.segment).where(t.segment.c.ledger_id.in_(ids)))
    forget_ledgers(connection, ids)
    connection.execute(delete(t.ledger_copy).where(t.ledger_copy.c.ledger_id.in_(ids)))
    connection.execute(delete(t.ledger).where(gone))


def remove_copies(connection: Connection, list_id: int, kind: CopyKind, gone: ColumnElement[bool]) -> None:
    """Remove one copy of listed ledgers, which stay; their generation rises, so that a later intent has another one."""
    mine = (t.ledger.c.list_id == list_id) & gone
    ids = select(t.ledger.c.ledger_id).where(mine)
    copies = (t.ledger_copy.c.kind == kind.value, t.ledger_copy.c.ledger_id.in_(ids))
    connection.execute(delete(t.ledger_copy).where(*copies))
    connection.execute(update(t.ledger).where(mine).values(generation=t.ledger.c.generation + 1))
    raise_version(connection, list_id)


def set_generation(connection: Connection, ledger_id: LedgerId, generation: int) -> None:
    """Let later intents of the ledger, if there still is one, have generations above this one."""
    connection.execute(update(t.ledger).where(t.ledger.c.ledger_id == ledger_id).values(generation=generation))


def last_ledger_id(connection: Connection, list_id: int) -> int | None:
    """Id of the list's last ledger, or None when the list is empty."""
    query = select(func.max(t.ledger.c.place)).where(t.ledger.c.list_id == list_id)  # places are ids
    return connection.execute(query).scalar_one_or_none()


def is_abandoned_newborn(before_us: int) -> ColumnElement[bool]:
    """Ledgers, of any component, whose creator gave up or died before listing them, if born before that time."""
    c = t.ledger.c
    return c.place.is_(None) & (c.state == LedgerState.CREATING.value) & (c.created_us < before_us)


def to_ledger(
    row: Row[Any],
    topic_id: TopicId,
    *,
    component: Component = Component.MANAGED_LEDGER,
    **more: Any,  # noqa: ANN401
) -> Ledger:
    """A row of `ledger` as a value, with what `more` says of its copies and keys."""
    return dataclass_from_row(Ledger, row, topic_id=topic_id, component=component, state=LedgerState(row.state), **more)
