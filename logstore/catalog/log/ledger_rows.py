"""Sole writer of ledgers, lists, copies and segments.

Each change of a list raises the list version. Each removal of a copy raises the ledger's generation. Unless stated
otherwise, the caller holds the locks of the topic and of the list, taken in this order.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, func, insert, literal, select, update

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.engine.dialect_sql import (
    BIG,
    TEXT,
    BulkStatement,
    build_bulk_parameter,
    build_insert_if_absent,
    dataclass_from_row,
    is_one_of,
)
from logstore.catalog.records.tombstone_rows import insert_ledger_tombstones
from logstore.catalog.transactions.buffer_rows import remove_ledgers_from_buffers
from logstore.errors import IdsExhausted, UnknownObject
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerState, LedgerStatement
from logstore.ports.catalog.log import Ledger
from logstore.positions import LedgerId, TopicId

GROWING_COLUMNS: Final = ("entries", "size_bytes", "segments", "last_segment")
"""Columns of a ledger that grow with each segment."""

_LISTS = t.ledger_list.c


def format_canonical_json(keys: Mapping[str, str]) -> str:
    """Return the keys of a ledger owner as JSON. Equal keys have equal texts."""
    return json.dumps(dict(keys), sort_keys=True, separators=(",", ":"))


def select_list_id(topic_id: TopicId, component: Component, keys: Mapping[str, str]) -> Any:  # noqa: ANN401 - SQLAlchemy's select
    conditions = (
        _LISTS.topic_id == topic_id,
        _LISTS.component == component.value,
        _LISTS.owner == format_canonical_json(keys),
    )
    return select(_LISTS.list_id).where(*conditions)


def read_message_list_id(connection: Connection, topic_id: TopicId, *, lock: bool = False) -> int:
    query = select_list_id(topic_id, Component.MANAGED_LEDGER, {})
    list_id = connection.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    if list_id is None:
        raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
    return int(list_id)


def lock_component_list(
    connection: Connection, topic_id: TopicId, component: Component, keys: Mapping[str, str]
) -> int:
    """Lock the ledger list of a component. Return the list's id, or -1 if the list does not exist."""
    list_id = connection.execute(select_list_id(topic_id, component, keys).with_for_update()).scalar_one_or_none()
    return -1 if list_id is None else int(list_id)


def lock_ledger_lists(connection: Connection, *conditions: ColumnElement[bool]) -> list[int]:
    """Lock the lists that satisfy the conditions, in the order of ids, to prevent deadlocks. Return the ids."""
    locked = select(_LISTS.list_id).where(*conditions).order_by(_LISTS.list_id).with_for_update()
    return list(connection.execute(locked).scalars())


def ensure_ledger_list(connection: Connection, topic_id: TopicId, component: Component, keys: Mapping[str, str]) -> int:
    """Return the id of a ledger owner's list. Create the list if necessary.

    The caller holds a share lock of the topic, but no lock of the list. Concurrent callers get the same list, because
    the database has only one list with the same topic, component and keys.
    """
    query = select_list_id(topic_id, component, keys)
    list_id = connection.execute(query).scalar_one_or_none()
    if list_id is None:
        row = {"topic_id": topic_id, "component": component.value, "owner": format_canonical_json(keys), "version": 0}
        connection.execute(build_insert_if_absent(connection, t.ledger_list).values(row))
        list_id = connection.execute(query).scalar_one()
    return int(list_id)


def raise_list_version(connection: Connection, list_id: int) -> None:
    """Raise the list version, after a change of the list or of a cursor of the topic."""
    change = update(t.ledger_list).where(_LISTS.list_id == list_id)
    connection.execute(change.values(version=_LISTS.version + 1))


def remove_ledger_lists(connection: Connection, topic_id: TopicId) -> int:
    return connection.execute(delete(t.ledger_list).where(_LISTS.topic_id == topic_id)).rowcount


def insert_newborn_ledger(connection: Connection, owner: LedgerOwner, list_id: int, *, now_us: int) -> LedgerStatement:
    """Insert a CREATING ledger with the next id, and its primary copy. The caller need not lock the list."""
    allocated = connection.execute(
        update(t.catalog)
        .where(t.catalog.c.next_ledger_id < select(t.record_log.c.ledger_ceiling).scalar_subquery())
        .values(next_ledger_id=t.catalog.c.next_ledger_id + 1)
        .returning(t.catalog.c.next_ledger_id - 1, t.catalog.c.epoch)
    ).one_or_none()
    if allocated is None:
        read_catalog_row(connection)
        raise IdsExhausted("ledger ids: expected one below the ceiling, found none; flush the record log")
    statement = LedgerStatement(owner=owner, ledger_id=LedgerId(allocated[0]), created_us=now_us, epoch=allocated[1])
    _insert_newborn_ledgers(connection, list_id, [statement])
    return statement


def _insert_newborn_ledgers(connection: Connection, list_id: int, statements: Sequence[LedgerStatement]) -> None:
    defaults = dict.fromkeys((*GROWING_COLUMNS, "generation"), 0) | {"list_id": list_id, "last_segment": -1}
    rows = [
        {
            **defaults,
            "state": LedgerState.CREATING.value,
            "ledger_id": statement.ledger_id,
            "application": statement.owner.application,
            "epoch": statement.epoch,
            "created_us": statement.created_us,
        }
        for statement in statements
    ]
    connection.execute(insert(t.ledger), rows)
    connection.execute(
        insert(t.ledger_copy), [_copy_row(statement.ledger_id, CopyKind.LEDGER, {}) for statement in statements]
    )


def attach_newborn_ledger(
    connection: Connection, list_id: int, ledger_id: LedgerId, *, after: LedgerId | None, now_us: int
) -> None:
    """Add a newborn ledger at the end of the list and open it. If the ledger `after` is OPEN, close that ledger."""
    was_open = (t.ledger.c.ledger_id == after, t.ledger.c.state == LedgerState.OPEN.value)
    connection.execute(update(t.ledger).where(*was_open).values(state=LedgerState.CLOSED.value, closed_us=now_us))
    _add_to_list(connection, list_id, t.ledger.c.ledger_id == ledger_id, state=LedgerState.OPEN.value)


def publish_component_ledger(
    connection: Connection, row: Row[Any], *, size_bytes: int, sha256: str | None, now_us: int
) -> None:
    """Add a newborn component ledger to its list as CLOSED. Insert its only segment, which has one entry."""
    segment = {"ledger_id": row.ledger_id, "number": 0, "first_entry": 0, "entries": 1, "size_bytes": size_bytes}
    connection.execute(insert(t.segment).values(**segment, sha256=sha256, delayed=0))
    totals = {"entries": 1, "size_bytes": size_bytes, "segments": 1, "last_segment": 0}
    is_newborn = t.ledger.c.ledger_id == row.ledger_id
    _add_to_list(connection, row.list_id, is_newborn, state=LedgerState.CLOSED.value, closed_us=now_us, **totals)


def insert_stored_ledgers(connection: Connection, list_id: int, statements: Sequence[LedgerStatement]) -> None:
    """Insert message ledgers that only storage has, as OPEN and empty ledgers of the list."""
    if statements:
        _insert_newborn_ledgers(connection, list_id, statements)
        add_newborns_to_list(connection, list_id, [statement.ledger_id for statement in statements])


def add_newborns_to_list(connection: Connection, list_id: int, ledger_ids: Collection[LedgerId]) -> None:
    """Add newborn message ledgers to the list as OPEN. Use this only if storage shows that they were opened."""
    if ledger_ids:
        _add_to_list(
            connection, list_id, is_one_of(connection, t.ledger.c.ledger_id, ledger_ids), state=LedgerState.OPEN.value
        )


def close_followed_ledgers(connection: Connection, *, now_us: int) -> int:
    """Close each open ledger that is not the last in its list. Return the number of closed ledgers."""
    c, later = t.ledger.c, t.ledger.alias()
    has_successor = exists().where(later.c.list_id == c.list_id, later.c.place > c.place)
    change = update(t.ledger).where(c.state == LedgerState.OPEN.value, c.place.is_not(None), has_successor)
    return connection.execute(change.values(state=LedgerState.CLOSED.value, closed_us=now_us)).rowcount


def _add_to_list(connection: Connection, list_id: int, is_newborn: ColumnElement[bool], **columns: Any) -> None:  # noqa: ANN401
    """Add newborn ledgers to the list, and make their copies LIVE. The place of a ledger is its id."""
    copies = update(t.ledger_copy).where(t.ledger_copy.c.ledger_id.in_(select(t.ledger.c.ledger_id).where(is_newborn)))
    connection.execute(update(t.ledger).where(is_newborn).values(place=t.ledger.c.ledger_id, **columns))
    connection.execute(copies.values(state=CopyState.LIVE.value))
    raise_list_version(connection, list_id)


def insert_segments(
    connection: Connection, segments: Iterable[tuple[Any, ...]], grown_ledger_rows: Iterable[tuple[Any, ...]]
) -> None:
    """Insert segments and update the ledgers. The caller holds locks of topics and ledgers, but not of lists.

    `segments` are rows of the table `segment`. A row of `grown_ledger_rows` has a ledger's id and new values of
    `GROWING_COLUMNS`.
    """
    segment_insert, ledger_update = _compile_segment_insert(connection.dialect.name)
    segment_insert.execute(connection, segments)
    ledger_update.execute(connection, grown_ledger_rows)


@cache
def _compile_segment_insert(dialect: str) -> tuple[BulkStatement, BulkStatement]:
    added = build_bulk_parameter(dialect, "added", dict.fromkeys(t.segment.c.keys(), BIG) | {"sha256": TEXT})
    rows = select(*(added.source.c[name] for name in added.columns))
    inserted = insert(t.segment).from_select(added.columns, rows)
    grown = build_bulk_parameter(dialect, "grown", dict.fromkeys(("ledger_id", *GROWING_COLUMNS), BIG))
    grew = update(t.ledger).where(t.ledger.c.ledger_id == grown.source.c.ledger_id)
    values = {name: grown.source.c[name] for name in GROWING_COLUMNS}
    return BulkStatement(sql=inserted, rows=added), BulkStatement(sql=grew.values(values), rows=grown)


def raise_last_segments(connection: Connection, number_by_ledger: Mapping[int, int]) -> None:
    """Raise `last_segment` of ledgers, so that later segments get higher numbers.

    A lower number changes nothing. The caller has locked the ledgers.
    """
    numbers = build_bulk_parameter(connection.dialect.name, "passed", {"ledger_id": BIG, "number": BIG})
    is_above = (t.ledger.c.ledger_id == numbers.source.c.ledger_id, t.ledger.c.last_segment < numbers.source.c.number)
    change = update(t.ledger).where(*is_above).values(last_segment=numbers.source.c.number)
    BulkStatement(sql=change, rows=numbers).execute(connection, number_by_ledger.items())


def insert_writing_copy(
    connection: Connection, list_id: int, ledger_id: LedgerId, kind: CopyKind, context: Mapping[str, str]
) -> None:
    """Insert a WRITING copy of a listed ledger. The ledger must have no copy of this kind."""
    connection.execute(insert(t.ledger_copy).values(_copy_row(ledger_id, kind, context)))
    raise_list_version(connection, list_id)


def _copy_row(ledger_id: int, kind: CopyKind, context: Mapping[str, str]) -> dict[str, Any]:
    return {"ledger_id": ledger_id, "kind": kind.value, "state": CopyState.WRITING.value, "context": dict(context)}


def publish_copy(
    connection: Connection, list_id: int, ledger_id: LedgerId, kind: CopyKind, context: Mapping[str, str]
) -> None:
    set_copy_context(connection, ledger_id, kind, context, state=CopyState.LIVE.value)
    raise_list_version(connection, list_id)


def set_copy_context(
    connection: Connection, ledger_id: LedgerId, kind: CopyKind, context: Mapping[str, str], **columns: str
) -> None:
    """Set the context of a copy. The caller raises the list version."""
    copy = update(t.ledger_copy).where(t.ledger_copy.c.ledger_id == ledger_id, t.ledger_copy.c.kind == kind.value)
    connection.execute(copy.values(context=dict(context), **columns))


def insert_missing_copies(connection: Connection, topic_id: TopicId) -> None:
    """Insert a primary copy for each ledger without a copy, so that phase two searches for objects of the ledger."""
    lists = select(_LISTS.list_id).where(_LISTS.topic_id == topic_id)
    has_no_copy = t.ledger.c.list_id.in_(lists), ~exists().where(t.ledger_copy.c.ledger_id == t.ledger.c.ledger_id)
    columns = {"kind": literal(CopyKind.LEDGER.value), "state": literal(CopyState.WRITING.value)}
    context = literal({}, t.ledger_copy.c.context.type)
    rows = select(t.ledger.c.ledger_id, *columns.values(), context).where(*has_no_copy)
    connection.execute(insert(t.ledger_copy).from_select(["ledger_id", *columns, "context"], rows))


def remove_ledgers(connection: Connection, condition: ColumnElement[bool], *, tombstone_us: int | None = None) -> None:
    """Remove ledgers with their copies and segments, and raise the list versions. The caller has locked the lists.

    The caller has filed intents for the ledgers, or leaves the ledgers out of a rebuilt catalog. With `tombstone_us`,
    each ledger leaves a tombstone of that time.
    """
    if tombstone_us is not None:
        insert_ledger_tombstones(connection, condition, now_us=tombstone_us)
    listed = select(t.ledger.c.list_id).where(condition, t.ledger.c.place.is_not(None))
    change = update(t.ledger_list).where(_LISTS.list_id.in_(listed))
    connection.execute(change.values(version=_LISTS.version + 1))
    ids = select(t.ledger.c.ledger_id).where(condition)
    connection.execute(delete(t.segment).where(t.segment.c.ledger_id.in_(ids)))
    remove_ledgers_from_buffers(connection, ids)
    connection.execute(delete(t.ledger_copy).where(t.ledger_copy.c.ledger_id.in_(ids)))
    connection.execute(delete(t.ledger).where(condition))


def remove_copies(connection: Connection, list_id: int, kind: CopyKind, condition: ColumnElement[bool]) -> None:
    """Remove the copies of one kind from ledgers that satisfy `condition`. Raise the generation of these ledgers."""
    is_in_list = (t.ledger.c.list_id == list_id) & condition
    ids = select(t.ledger.c.ledger_id).where(is_in_list)
    copies = (t.ledger_copy.c.kind == kind.value, t.ledger_copy.c.ledger_id.in_(ids))
    connection.execute(delete(t.ledger_copy).where(*copies))
    connection.execute(update(t.ledger).where(is_in_list).values(generation=t.ledger.c.generation + 1))
    raise_list_version(connection, list_id)


def set_generation(connection: Connection, ledger_id: LedgerId, generation: int) -> None:
    """Set the generation of the ledger, if the ledger exists. Later intents get higher generations."""
    connection.execute(update(t.ledger).where(t.ledger.c.ledger_id == ledger_id).values(generation=generation))


def read_last_ledger_id(connection: Connection, list_id: int) -> int | None:
    query = select(func.max(t.ledger.c.place)).where(t.ledger.c.list_id == list_id)  # places are ids
    return connection.execute(query).scalar_one_or_none()


def read_live_copies_by_ledger(
    connection: Connection, ledger_rows: Collection[Row[Any]]
) -> dict[LedgerId, tuple[CopyKind, ...]]:
    """Return the kinds of the LIVE copies of each ledger, ascending."""
    kinds_by_ledger: dict[LedgerId, list[CopyKind]] = {row.ledger_id: [] for row in ledger_rows}
    c = t.ledger_copy.c
    is_live = (is_one_of(connection, c.ledger_id, kinds_by_ledger), c.state == CopyState.LIVE.value)
    for row in connection.execute(select(c.ledger_id, c.kind).where(*is_live).order_by(c.kind)):
        kinds_by_ledger[row.ledger_id].append(CopyKind(row.kind))
    return {ledger_id: tuple(kinds) for ledger_id, kinds in kinds_by_ledger.items()}


def match_abandoned_newborns(before_us: int) -> ColumnElement[bool]:
    c = t.ledger.c
    return c.place.is_(None) & (c.state == LedgerState.CREATING.value) & (c.created_us < before_us)


def ledger_from_row(
    row: Row[Any],
    topic_id: TopicId,
    *,
    component: Component = Component.MANAGED_LEDGER,
    **more: Any,  # noqa: ANN401
) -> Ledger:
    return dataclass_from_row(Ledger, row, topic_id=topic_id, component=component, state=LedgerState(row.state), **more)
