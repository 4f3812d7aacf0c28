"""Which rows of a batch come next in SQL, cut into ranges that one activity each deals with."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, and_, func, select

from infra.catalog import tables as t
from infra.catalog.deletion.intents import number_in
from logstore.deletion.intents import DeletionState
from logstore.ports.catalog import RowRange

_P = t.pending_deletion.c
_MOST_SEGMENTS = 20_000  # in a range: some 10 MB of keys while a chunk works


def next_ranges(connection: Connection, batch_id: str, *, after: int, rows: int, limit: int) -> list[RowRange]:
    """See `Deletions.ranges`."""
    found = connection.execute(_query(batch_id, after, rows * limit)).all()
    return list(islice(_cut(found, rows), limit))


def _query(batch_id: str, after: int, most: int) -> Select[Any]:
    """The next rows that are left, and those that others have dealt with between them."""
    left, batch = and_(_P.state == DeletionState.PENDING.value, _P.claim_workflow.is_(None)), _P.batch_id == batch_id
    page = select(_P.row_id).where(batch, _P.row_id > after, left).order_by(_P.row_id).limit(most).subquery()
    ends = select(func.min(page.c.row_id).label("first"), func.max(page.c.row_id).label("last")).subquery()
    within = and_(_P.row_id >= ends.c.first, _P.row_id <= ends.c.last)
    columns = (_P.row_id, _P.segments, left.label("left"))
    return select(*columns).join(ends, within).where(batch).order_by(_P.row_id)


def _cut(found: Iterable[Any], rows: int) -> Iterator[RowRange]:
    """Ranges of at most `rows` rows that hold few enough objects to be listed at once, and of what is left only."""
    ids: list[int] = []
    segments = 0
    for row in found:
        if ids and (not row.left or len(ids) == rows or segments + number_in(row.segments) > _MOST_SEGMENTS):
            yield RowRange(first=ids[0], last=ids[-1], rows=len(ids))
            ids, segments = [], 0
        if row.left:
            ids.append(row.row_id)
            segments += number_in(row.segments)
    if ids:
        yield RowRange(first=ids[0], last=ids[-1], rows=len(ids))
