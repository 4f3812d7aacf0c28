"""Rows of `cursor` as values and back, and the listed ledgers that cursors move over."""

from typing import Any

from sqlalchemy import Connection, Row, select, update

from infra.catalog import tables as t
from infra.catalog.log.ledgers import data_list
from logstore.cursors.state import CursorState, LedgerSpan, pack_acknowledged, unpack_acknowledged
from logstore.ports.catalog import StoredCursor
from logstore.positions import LedgerId, Position, TopicId


def one_cursor(topic_id: TopicId, name: str) -> Any:  # noqa: ANN401 - SQLAlchemy's select of many columns
    """The query of one cursor's row."""
    return select(t.cursor).where(t.cursor.c.topic_id == topic_id, t.cursor.c.name == name)


def spans(connection: Connection, topic_id: TopicId, *, from_ledger: int = -1) -> list[LedgerSpan]:
    """Listed data ledgers of the topic from an id on, ascending."""
    query = (
        select(t.ledger.c.ledger_id, t.ledger.c.entries)
        .where(
            t.ledger.c.list_id == data_list(connection, topic_id),
            t.ledger.c.place.is_not(None),
            t.ledger.c.ledger_id >= from_ledger,
        )
        .order_by(t.ledger.c.ledger_id)
    )
    return [LedgerSpan(LedgerId(row.ledger_id), row.entries) for row in connection.execute(query)]


def stored(row: Row[Any]) -> StoredCursor:
    """A row of `cursor` as a value."""
    state = CursorState(Position(LedgerId(row.mark_ledger), row.mark_entry), unpack_acknowledged(row.acknowledged))
    return StoredCursor(
        name=row.name,
        state=state,
        created_us=row.created_us,
        snapshot_ledger=None if row.snapshot_ledger is None else LedgerId(row.snapshot_ledger),
        seeks=row.seeks,
    )


def columns(state: CursorState) -> dict[str, Any]:
    """What of a row the state decides; of a cursor with a snapshot, the state since."""
    return {
        "mark_ledger": state.mark_delete.ledger_id,
        "mark_entry": state.mark_delete.entry_id,
        "acknowledged": pack_acknowledged(state.acknowledged),
    }


def store(connection: Connection, topic_id: TopicId, name: str, state: CursorState, **more: Any) -> None:  # noqa: ANN401
    """Write a cursor whose row the caller has locked, with other columns if any."""
    where = (t.cursor.c.topic_id == topic_id, t.cursor.c.name == name)
    connection.execute(update(t.cursor).where(*where).values(**columns(state), **more))
