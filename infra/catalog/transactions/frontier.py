"""How far readers of a topic may see: before the first message of its oldest open transaction."""

from sqlalchemy import Connection, select

from infra.catalog import tables as t
from infra.catalog.log.ledger_rows import list_query
from infra.catalog.transactions.buffer_rows import views
from logstore.log.ledgers import Component
from logstore.ports.catalog import Frontier
from logstore.positions import LedgerId, Position, TopicId


def frontier_of(connection: Connection, topic_id: TopicId, from_ledger: int) -> Frontier:
    """What readers of a topic may see at one moment; the last entry is read first, see `views`."""
    end = last_entry(connection, topic_id)
    view = views(connection, [topic_id], from_ledger=from_ledger)[topic_id]
    if end is None:
        return Frontier(last=None)
    first = view.first_open
    if first is None:
        return Frontier(last=end, hidden=view.hidden)
    if first.entry_id > 0:
        return Frontier(last=Position(first.ledger_id, first.entry_id - 1), hidden=view.hidden)
    return Frontier(last=last_entry(connection, topic_id, before=first.ledger_id), hidden=view.hidden)


def last_entry(
    connection: Connection, topic_id: TopicId, *, before: LedgerId | None = None, empty_too: bool = False
) -> Position | None:
    """The topic's last entry, or the last in ledgers before that one; None where there is none.

    With `empty_too` an empty last ledger counts, by the position before its first entry, which never goes back.
    """
    c, own = t.ledger.c, list_query(topic_id, Component.MANAGED_LEDGER, {}).scalar_subquery()
    listed = [c.list_id == own, c.place.is_not(None)]
    listed += [] if empty_too else [c.entries > 0]
    listed += [] if before is None else [c.ledger_id < before]
    row = connection.execute(select(c.ledger_id, c.entries).where(*listed).order_by(c.place.desc()).limit(1)).first()
    return None if row is None else Position(LedgerId(row.ledger_id), row.entries - 1)
