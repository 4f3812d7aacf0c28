"""Rows of the catalog that name ledgers of which storage holds objects, read the same way by a plan and by an apply."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Text, cast, func, literal_column, select, union

from infra.catalog import tables as t
from infra.catalog.engine.dialects import as_text, parse_context, text_or_empty
from infra.catalog.log.components import REFERRING_COLUMN_BY_COMPONENT
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner
from logstore.positions import LedgerId, TopicId
from logstore.reconciliation.known_ledgers import CopyRow, KnownOwner, LedgerRows, SegmentSums

_MAX_LEDGERS_PER_QUERY: Final = 5_000
_L, _C, _P = t.ledger.c, t.ledger_copy.c, t.pending_deletion.c

ReadRows = Callable[[Select[Any]], Iterable[Mapping[str, Any]]]
"""Runs one query, and returns its rows by the names of their columns."""


def known_ledgers(read: ReadRows, ledger_ids: Collection[int]) -> dict[int, LedgerRows]:
    """Return what the catalog's rows say of each of the ledgers, of those without any row too.

    Copies are read before deletions: a copy that leaves in between is seen as the one or as the other.
    """
    found: dict[int, LedgerRows] = {}
    asked = sorted(set(ledger_ids))
    for at in range(0, len(asked), _MAX_LEDGERS_PER_QUERY):
        ids = asked[at : at + _MAX_LEDGERS_PER_QUERY]
        owners, copies, tables, deletions = (
            _by_ledger(read(query(ids))) for query in (_ledger_owners, _copy_states, _naming_tables, _deletions_of)
        )
        successors = _successors(read, [row for rows in owners.values() for row in rows])
        for ledger_id in ids:
            rows, deleted = owners[ledger_id], deletions[ledger_id]
            stated = [
                *(_owner(row, "the ledger's row") for row in rows),
                *(_owner(row, f"deletion {row['row_id']}") for row in deleted),
            ]
            found[ledger_id] = LedgerRows(
                has_row=bool(rows),
                component=rows[0]["component"] if rows else "",
                counted=_sums(rows[0], "") if rows else SegmentSums(),
                summed=_sums(rows[0], "summed_") if rows else SegmentSums(),
                successor=successors.get(ledger_id),
                copies=[_copy(row) for row in copies[ledger_id]],
                owners=[owner for owner in stated if owner],
                tables=[str(row["named_by"]) for row in tables[ledger_id]],
                is_primary_deleted=any(_is_over(row) for row in deleted),
            )
    return found


def _by_ledger(rows: Iterable[Mapping[str, Any]]) -> Mapping[int, Sequence[Mapping[str, Any]]]:
    found = defaultdict(list)
    for row in rows:
        found[int(row["ledger_id"])].append(row)
    return found


def _owner(row: Mapping[str, Any], name: str) -> KnownOwner | None:
    """None where a row was damaged, or list or topic have lost theirs: it states no owner then."""
    if not row["topic"]:
        return None
    try:
        owner = LedgerOwner(
            application=row["application"],
            component=Component(row["component"]),
            topic_id=TopicId(row["topic_id"]),
            topic=row["topic"],
            keys=json.loads(row["keys"]),
        )
        return KnownOwner(digest=owner.digest, topic=owner.topic, created_us=int(row["created_us"]), row=name)
    except (ValueError, AttributeError, TypeError):
        return None


def _sums(row: Mapping[str, Any], prefix: str) -> SegmentSums:
    names = ("segments", "entries", "size_bytes")
    return SegmentSums(**{name: int(row[f"{prefix}{name}"]) for name in names})


def _successors(read: ReadRows, ledgers: Sequence[Mapping[str, Any]]) -> dict[int, LedgerId]:
    """Return for ledgers of cursors and of transaction snapshots the newer ledger that the same row names by now.

    A cursor that is younger than the ledger is another one under the same name, and proves nothing.
    """
    cursors, snapshots = (
        [row for row in ledgers if row["component"] == component.value]
        for component in (Component.MANAGED_CURSOR, Component.TXN_SNAPSHOT)
    )
    newest: dict[tuple[int, str], tuple[int, int]] = {}
    for rows, query in ((cursors, _cursor_snapshots), (snapshots, _buffer_snapshots)):
        topic_ids = {int(row["topic_id"]) for row in rows}
        for named in read(query(topic_ids)) if topic_ids else ():
            newest[int(named["topic_id"]), str(named["cursor"])] = int(named["newest"]), int(named["since_us"])
    found: dict[int, LedgerId] = {}
    for row in (*cursors, *snapshots):
        named_ledger, since_us = newest.get((int(row["topic_id"]), _cursor_of(row)), (-1, 0))
        if named_ledger > int(row["ledger_id"]) and since_us <= int(row["created_us"]):
            found[int(row["ledger_id"])] = LedgerId(named_ledger)
    return found


def _cursor_of(row: Mapping[str, Any]) -> str:
    """Return the cursor that the list's keys name; empty if there is none, or the row was damaged."""
    try:
        return str(json.loads(row["keys"]).get("cursor", ""))
    except (ValueError, AttributeError, TypeError):
        return ""


def _copy(row: Mapping[str, Any]) -> CopyRow:
    context = parse_context(row["context"])
    uuid = None if context is None else context.get("uuid", "")
    return CopyRow(kind=row["kind"], uuid=uuid, is_live=row["state"] == CopyState.LIVE.value)


def _is_over(row: Mapping[str, Any]) -> bool:
    return bool(row["copy"] == CopyKind.LEDGER.value and row["state"] == DeletionState.DELETED.value)


def _ledger_owners(ledger_ids: Collection[int]) -> Select[Any]:
    """Rows of these ledgers with what their lists and topics say of the owner; `keys` is one JSON object.

    Where list or topic has no row, its texts are empty and its numbers 0.
    """
    lists, zero = t.ledger_list.c, literal_column("0", t.Big)
    source = t.ledger.outerjoin(t.ledger_list, lists.list_id == _L.list_id)
    source = source.outerjoin(t.topic, t.topic.c.topic_id == lists.topic_id)
    columns = (
        _L.ledger_id,
        text_or_empty(_L.application, "application"),
        text_or_empty(lists.component, "component"),
        cast(func.coalesce(lists.topic_id, zero), t.Big).label("topic_id"),
        text_or_empty(t.topic.c.name, "topic"),
        text_or_empty(lists.owner, "keys"),
        _L.created_us,
        _L.segments,
        _L.entries,
        _L.size_bytes,
        *segment_sums(),
    )
    return select(*columns).select_from(source).where(_L.ledger_id.in_(ledger_ids))


def segment_sums() -> list[ColumnElement[int]]:
    """Return as `summed_segments`, `summed_entries` and `summed_size_bytes` what a ledger's rows in `segment` hold."""
    of_ledger, zero = t.segment.c.ledger_id == _L.ledger_id, literal_column("0", t.Big)
    return [
        func.coalesce(select(total).where(of_ledger).scalar_subquery(), zero).label(f"summed_{name}")
        for name, total in segment_totals().items()
    ]


def segment_totals() -> dict[str, ColumnElement[int]]:
    """Return aggregates over rows of `segment`, by the column of `ledger` that counts the same."""
    c = t.segment.c
    totals = {"segments": func.count(), "entries": func.sum(c.entries), "size_bytes": func.sum(c.size_bytes)}
    return {name: cast(total, t.Big) for name, total in totals.items()}


def _cursor_snapshots(topic_ids: Collection[int]) -> Select[Any]:
    """Cursors of these topics whose state is in a ledger, with that ledger and the time of the cursor's creation."""
    c = t.cursor.c
    columns = (c.topic_id, c.name.label("cursor"), c.snapshot_ledger.label("newest"), c.created_us.label("since_us"))
    return select(*columns).where(c.topic_id.in_(topic_ids), c.snapshot_ledger.is_not(None))


def _buffer_snapshots(topic_ids: Collection[int]) -> Select[Any]:
    """Ledgers that hold the transaction snapshots of these topics; in the columns of cursors."""
    c, zero = t.transaction_snapshot.c, literal_column("0", t.Big)
    columns = (c.topic_id, literal_column("''", Text).label("cursor"), c.ledger_id.label("newest"))
    return select(*columns, zero.label("since_us")).where(c.topic_id.in_(topic_ids), c.ledger_id.is_not(None))


def _copy_states(ledger_ids: Collection[int]) -> Select[Any]:
    """Copies of these ledgers with state and context."""
    columns = (_C.ledger_id, _C.kind, _C.state, as_text(_C.context))
    return select(*columns).where(_C.ledger_id.in_(ledger_ids))


def _deletions_of(ledger_ids: Collection[int]) -> Select[Any]:
    """Deletions of these ledgers, finished ones too, with the owner that each states; by row id."""
    columns = (_P.row_id, _P.ledger_id, _P.copy, _P.state, _P.application, _P.component, _P.topic_id, _P.topic)
    owner = (_P["keys"], _P.ledger_created_us.label("created_us"))
    return select(*columns, *owner).where(_P.ledger_id.in_(ledger_ids)).order_by(_P.row_id)


def _naming_tables(ledger_ids: Collection[int]) -> Select[Any]:
    """These ledgers by the tables, other than `ledger` and `ledger_copy`, of which a row goes only with the ledger."""
    keys = (
        t.segment.c.ledger_id,
        *REFERRING_COLUMN_BY_COMPONENT.values(),
        t.buffer_range.c.ledger_id,
        t.buffer_hidden.c.ledger_id,
    )
    each = (
        select(key.label("ledger_id"), literal_column(f"'{key.table.name}'", Text).label("named_by")).where(
            key.in_(ledger_ids)
        )
        for key in keys
    )
    named = union(*each).subquery()
    return select(named.c.ledger_id, named.c.named_by).order_by(named.c.ledger_id, named.c.named_by)
