"""Rows of the catalog that name given ledgers. Plans and applies compare these rows with objects in storage."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Text, cast, func, literal_column, select, union

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import cast_to_text, cast_to_text_or_empty, parse_offload_context
from logstore.catalog.log.component_ledgers import REFERRING_COLUMN_BY_COMPONENT
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner
from logstore.positions import LedgerId, TopicId
from logstore.reconciliation.orphan_doubts_from_rows import CopyRow, LedgerRows, OwnerInRow, SegmentSums

_MAX_LEDGERS_PER_QUERY: Final = 5_000
_L, _C, _P = t.ledger.c, t.ledger_copy.c, t.pending_deletion.c

ReadRows = Callable[[Select[Any]], Iterable[Mapping[str, Any]]]
"""Function that runs a query and returns rows by column name."""


def read_rows_naming_ledgers(read: ReadRows, ledger_ids: Collection[int]) -> dict[int, LedgerRows]:
    """Return rows by ledger. Copies are read before intents, so that a copy that is detached meanwhile is found."""
    rows_by_ledger: dict[int, LedgerRows] = {}
    all_ids = sorted(set(ledger_ids))
    for start in range(0, len(all_ids), _MAX_LEDGERS_PER_QUERY):
        ids = all_ids[start : start + _MAX_LEDGERS_PER_QUERY]
        owners, copies, tables, deletions = (
            _group_by_ledger(read(select_rows(ids)))
            for select_rows in (
                _select_ledger_owners_and_sums,
                _select_copy_states,
                _select_tables_naming_ledgers,
                _select_deletions,
            )
        )
        successors = _find_newer_snapshot_ledgers(read, [row for rows in owners.values() for row in rows])
        for ledger_id in ids:
            rows, deletion_rows = owners[ledger_id], deletions[ledger_id]
            stated_owners = [
                *(_owner_from_row(row, "the ledger's row") for row in rows),
                *(_owner_from_row(row, f"deletion {row['row_id']}") for row in deletion_rows),
            ]
            rows_by_ledger[ledger_id] = LedgerRows(
                has_row=bool(rows),
                component=rows[0]["component"] if rows else "",
                counted=_segment_sums_from_row(rows[0], "") if rows else SegmentSums(),
                summed=_segment_sums_from_row(rows[0], "summed_") if rows else SegmentSums(),
                successor=successors.get(ledger_id),
                copies=[_copy_from_row(row) for row in copies[ledger_id]],
                owners=[owner for owner in stated_owners if owner],
                tables=[str(row["named_by"]) for row in tables[ledger_id]],
                is_primary_deleted=any(_is_ended_primary_deletion(row) for row in deletion_rows),
            )
    return rows_by_ledger


def _group_by_ledger(rows: Iterable[Mapping[str, Any]]) -> Mapping[int, Sequence[Mapping[str, Any]]]:
    rows_by_ledger = defaultdict(list)
    for row in rows:
        rows_by_ledger[int(row["ledger_id"])].append(row)
    return rows_by_ledger


def _owner_from_row(row: Mapping[str, Any], row_description: str) -> OwnerInRow | None:
    """Return the ledger owner that a row states. Return `None` for a damaged row, and for a lost list or topic."""
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
        return OwnerInRow(
            digest=owner.digest, topic=owner.topic, created_us=int(row["created_us"]), row=row_description
        )
    except (ValueError, AttributeError, TypeError):
        return None


def _segment_sums_from_row(row: Mapping[str, Any], prefix: str) -> SegmentSums:
    names = ("segments", "entries", "size_bytes")
    return SegmentSums(**{name: int(row[f"{prefix}{name}"]) for name in names})


def _find_newer_snapshot_ledgers(read: ReadRows, ledgers: Sequence[Mapping[str, Any]]) -> dict[int, LedgerId]:
    """Return, by snapshot ledger, the newer ledger that its cursor or transaction buffer names now, if any.

    A cursor that is younger than the ledger is ignored, because it is another cursor of the same name.
    """
    cursors, snapshots = (
        [row for row in ledgers if row["component"] == component.value]
        for component in (Component.MANAGED_CURSOR, Component.TXN_SNAPSHOT)
    )
    newest: dict[tuple[int, str], tuple[int, int]] = {}
    for rows, query in ((cursors, _select_cursor_snapshots), (snapshots, _select_buffer_snapshots)):
        topic_ids = {int(row["topic_id"]) for row in rows}
        for row in read(query(topic_ids)) if topic_ids else ():
            newest[int(row["topic_id"]), str(row["cursor"])] = int(row["newest"]), int(row["since_us"])
    successors: dict[int, LedgerId] = {}
    for row in (*cursors, *snapshots):
        newest_id, since_us = newest.get((int(row["topic_id"]), _parse_cursor_name(row)), (-1, 0))
        if newest_id > int(row["ledger_id"]) and since_us <= int(row["created_us"]):
            successors[int(row["ledger_id"])] = LedgerId(newest_id)
    return successors


def _parse_cursor_name(row: Mapping[str, Any]) -> str:
    """Return the name of the cursor in the keys of a list, or an empty text if there is none."""
    try:
        return str(json.loads(row["keys"]).get("cursor", ""))
    except (ValueError, AttributeError, TypeError):
        return ""


def _copy_from_row(row: Mapping[str, Any]) -> CopyRow:
    context = parse_offload_context(row["context"])
    uuid = None if context is None else context.get("uuid", "")
    return CopyRow(kind=row["kind"], uuid=uuid, is_live=row["state"] == CopyState.LIVE.value)


def _is_ended_primary_deletion(row: Mapping[str, Any]) -> bool:
    return bool(row["copy"] == CopyKind.LEDGER.value and row["state"] == DeletionState.DELETED.value)


def _select_ledger_owners_and_sums(ledger_ids: Collection[int]) -> Select[Any]:
    """Select ledgers with ledger owner and sums over segments. Missing texts are empty, and missing numbers are 0."""
    lists, zero = t.ledger_list.c, literal_column("0", t.Big)
    source = t.ledger.outerjoin(t.ledger_list, lists.list_id == _L.list_id)
    source = source.outerjoin(t.topic, t.topic.c.topic_id == lists.topic_id)
    columns = (
        _L.ledger_id,
        cast_to_text_or_empty(_L.application, "application"),
        cast_to_text_or_empty(lists.component, "component"),
        cast(func.coalesce(lists.topic_id, zero), t.Big).label("topic_id"),
        cast_to_text_or_empty(t.topic.c.name, "topic"),
        cast_to_text_or_empty(lists.owner, "keys"),
        _L.created_us,
        _L.segments,
        _L.entries,
        _L.size_bytes,
        *build_segment_sum_columns(),
    )
    return select(*columns).select_from(source).where(_L.ledger_id.in_(ledger_ids))


def build_segment_sum_columns() -> list[ColumnElement[int]]:
    """Return the columns `summed_segments`, `summed_entries` and `summed_size_bytes` of a ledger's segments."""
    of_ledger, zero = t.segment.c.ledger_id == _L.ledger_id, literal_column("0", t.Big)
    return [
        func.coalesce(select(total).where(of_ledger).scalar_subquery(), zero).label(f"summed_{name}")
        for name, total in build_segment_sum_aggregates().items()
    ]


def build_segment_sum_aggregates() -> dict[str, ColumnElement[int]]:
    """Return sums over rows of `segment`, by the name of the column of `ledger` that stores the sum."""
    c = t.segment.c
    totals = {"segments": func.count(), "entries": func.sum(c.entries), "size_bytes": func.sum(c.size_bytes)}
    return {name: cast(total, t.Big) for name, total in totals.items()}


def _select_cursor_snapshots(topic_ids: Collection[int]) -> Select[Any]:
    c = t.cursor.c
    columns = (c.topic_id, c.name.label("cursor"), c.snapshot_ledger.label("newest"), c.created_us.label("since_us"))
    return select(*columns).where(c.topic_id.in_(topic_ids), c.snapshot_ledger.is_not(None))


def _select_buffer_snapshots(topic_ids: Collection[int]) -> Select[Any]:
    """Select the ledgers of transaction snapshots, with the same columns as `_select_cursor_snapshots`."""
    c, zero = t.transaction_snapshot.c, literal_column("0", t.Big)
    columns = (c.topic_id, literal_column("''", Text).label("cursor"), c.ledger_id.label("newest"))
    return select(*columns, zero.label("since_us")).where(c.topic_id.in_(topic_ids), c.ledger_id.is_not(None))


def _select_copy_states(ledger_ids: Collection[int]) -> Select[Any]:
    columns = (_C.ledger_id, _C.kind, _C.state, cast_to_text(_C.context))
    return select(*columns).where(_C.ledger_id.in_(ledger_ids))


def _select_deletions(ledger_ids: Collection[int]) -> Select[Any]:
    columns = (_P.row_id, _P.ledger_id, _P.copy, _P.state, _P.application, _P.component, _P.topic_id, _P.topic)
    owner = (_P["keys"], _P.ledger_created_us.label("created_us"))
    return select(*columns, *owner).where(_P.ledger_id.in_(ledger_ids)).order_by(_P.row_id)


def _select_tables_naming_ledgers(ledger_ids: Collection[int]) -> Select[Any]:
    """Select, for each ledger, the referring tables, except `ledger`, `ledger_copy` and `pending_deletion`."""
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
    naming_rows = union(*each).subquery()
    return select(naming_rows.c.ledger_id, naming_rows.c.named_by).order_by(
        naming_rows.c.ledger_id, naming_rows.c.named_by
    )
