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
    own = list_query(topic_id, Component.MANAGED_LEDGER, {}).scalar_subquery()
    listed = (t.ledger.c.list_id == own, t.ledger.c.place.is_not(None), t.ledger.c.entries > 0)
    last = select(t.ledger.c.ledger_id, t.ledger.c.entries).where(*listed).order_by(t.ledger.c.place.desc()).limit(1)
    row = connection.execute(last).first()
    view = views(connection, [topic_id], from_ledger=from_ledger)[topic_id]
    if row is None:
        return Frontier(last=None)
    end = Position(LedgerId(row.ledger_id), row.entries - 1)
    if view.first_open is None:
        return Frontier(last=end, hidden=view.hidden)
    first = view.first_open
    if first.entry_id > 0:
        return Frontier(last=Position(first.ledger_id, first.entry_id - 1), hidden=view.hidden)
    before = connection.execute(last.where(t.ledger.c.ledger_id < first.ledger_id)).first()
    end_before = Position(LedgerId(before.ledger_id), before.entries - 1) if before else None
    return Frontier(last=end_before, hidden=view.hidden)
