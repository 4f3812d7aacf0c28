"""Message ledgers in SQL: creation, attachment, lists and segments."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, and_, func, select

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_epoch
from logstore.catalog.deletion.intent_rows import (
    reopen_intents_of_late_uploads,
    reopen_newborn_intent,
    replace_ledgers_by_intents,
)
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import BIG, BulkStatement, build_bulk_parameter, dataclass_from_row, is_one_of
from logstore.catalog.log.component_ledgers import create_newborn_ledger
from logstore.catalog.log.ledger_rows import (
    attach_newborn_ledger,
    ledger_from_row,
    read_last_ledger_id,
    read_live_copies_by_ledger,
    read_message_list_id,
)
from logstore.catalog.log.producer_sequence_rows import read_producer_sequences
from logstore.catalog.log.topics import share_lock_active_topic
from logstore.catalog.log.totals_and_backlogs import count_cursor_backlogs, read_topic_totals
from logstore.catalog.transactions.buffer_rows import read_buffers
from logstore.cursors.cursor_state import CursorState
from logstore.errors import UnknownObject
from logstore.log.entries import HighestSequenceIds
from logstore.log.ledgers import Component, LedgerStatement
from logstore.ports.catalog.log import Ledger, Segment, TopicLedgerTotals
from logstore.positions import LedgerId, TopicId


class MessageLedgers(CatalogAdapter):
    def catalog_epoch(self) -> int:
        return self._db.read(read_epoch)

    def list_ledgers(
        self, topic_id: TopicId, *, from_ledger: LedgerId | None = None, limit: int | None = None
    ) -> list[Ledger]:
        """Return the topic's message ledgers with ids from `from_ledger` on, inclusive, ascending."""
        page = _select_listed_ledgers(topic_id).where(
            t.ledger.c.ledger_id >= (0 if from_ledger is None else from_ledger)
        )
        page = page.order_by(t.ledger.c.ledger_id).limit(limit)
        return self._db.read(lambda connection: _read_listed_ledgers(connection, topic_id, page))

    def get_topic_totals(self, topic_id: TopicId) -> TopicLedgerTotals:
        return self._db.read(
            lambda connection: read_topic_totals(connection, [topic_id], read_buffers(connection, [topic_id]))[topic_id]
        )

    def count_backlogs(self, topic_id: TopicId, states: Sequence[CursorState]) -> list[int]:
        """Return for each state the number of unacknowledged entries in listed ledgers. Each state costs some reads."""
        listed = _select_listed_ledgers(topic_id)
        return self._db.read(lambda connection: count_cursor_backlogs(connection, topic_id, listed, states))

    def last_ledger(self, topic_id: TopicId) -> Ledger | None:
        query = _select_listed_ledgers(topic_id).order_by(t.ledger.c.ledger_id.desc()).limit(1)
        row = self._db.read(lambda connection: connection.execute(query).first())
        return ledger_from_row(row, topic_id) if row else None

    @in_read_transaction
    def last_ledgers(self, connection: Connection, topic_ids: Collection[TopicId]) -> list[Ledger]:
        """Return the last ledger of each topic, in one read. Topics with an empty list are left out."""
        lists, other = t.ledger_list.c, t.ledger.alias()
        newest = select(func.max(other.c.place)).where(other.c.list_id == lists.list_id).scalar_subquery()
        query = (
            select(t.ledger, lists.topic_id)
            .select_from(t.ledger_list.join(t.ledger, t.ledger.c.ledger_id == newest))  # places are ids
            .where(lists.component == Component.MANAGED_LEDGER.value)
            .where(is_one_of(connection, lists.topic_id, topic_ids))
        )
        return [ledger_from_row(row, TopicId(row.topic_id)) for row in connection.execute(query)]

    @in_write_transaction("catalog.create_ledger")
    def create_ledger(self, connection: Connection, topic_id: TopicId, *, application: str) -> LedgerStatement:
        """Insert the row of a new, unlisted ledger in state CREATING.

        Not idempotent. If the ledger is not attached within the registration timeout, a trim of the topic detaches it.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """
        return create_newborn_ledger(
            connection,
            topic_id,
            Component.MANAGED_LEDGER,
            {},
            application=application,
            read_clock=self._db.now_us,
        )

    @in_write_transaction("catalog.attach")
    def attach_ledger(self, connection: Connection, ledger_id: LedgerId, *, after: LedgerId | None) -> bool:
        """Add a CREATING ledger to the end of its list as OPEN, and close `after`, the list's last ledger.

        The ledger is not attached if the last ledger is not `after`, or has a higher id than `ledger_id`. Instead, an
        intent is filed for the newborn ledger in the same transaction (apache/pulsar#350). Return whether the ledger is
        listed now, also after a repeated call. Raise `PreconditionFailed` if the topic is not ACTIVE.
        """
        source = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id)
        query = select(t.ledger, t.ledger_list.c.topic_id).select_from(source)
        newborn = connection.execute(query.where(t.ledger.c.ledger_id == ledger_id)).first()
        try:
            topic = newborn and share_lock_active_topic(connection, newborn.topic_id)
        except UnknownObject:  # the topic was deleted meanwhile
            topic = None
        if newborn is None or topic is None:
            reopen_newborn_intent(connection, ledger_id)
            return False  # a trim has replaced the ledger by an intent, or its topic was deleted
        read_message_list_id(connection, newborn.topic_id, lock=True)
        current = connection.execute(select(t.ledger).where(t.ledger.c.ledger_id == ledger_id)).first()
        if current is None:
            reopen_newborn_intent(connection, ledger_id)
        if current is None or current.place is not None:
            return current is not None
        last = read_last_ledger_id(connection, newborn.list_id)
        if last != after or (last is not None and last > ledger_id):  # a list ascends by id
            replace_ledgers_by_intents(
                connection, t.ledger.c.ledger_id == ledger_id, batch_id="", now_us=self._db.now_us(connection)
            )
            return False
        now = self._db.now_us(connection)
        attach_newborn_ledger(connection, newborn.list_id, ledger_id, after=after, now_us=now)
        return True

    @in_write_transaction("catalog.give_up")
    def record_abandoned_upload(self, connection: Connection, ledger_id: LedgerId, *, epoch: int) -> None:
        """Record that a process gives up an unregistered upload to the ledger. The upload may still arrive.

        If the catalog no longer has the ledger's primary copy, phase two may have missed the upload. The call then
        makes the copy's intents pending and unclaimed again, except dead letters. If the catalog still has the primary
        copy, nothing changes, because a later deletion lists all objects. Nothing changes either if `epoch` is not
        the catalog's epoch.

        Idempotency: each call only makes phase two search for objects once more.
        """
        reopen_intents_of_late_uploads(connection, [ledger_id], epoch=epoch)

    def list_segments(self, ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        """Return the registered segments that have entries from `from_entry` on, ascending."""
        s = t.segment.c
        query = (
            select(t.segment)
            .where(s.ledger_id == ledger_id, s.first_entry + s.entries > from_entry)
            .order_by(s.first_entry)
        )
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return [dataclass_from_row(Segment, row) for row in rows]

    @in_read_transaction
    def find_segments_of_ranges(
        self, connection: Connection, topic_id: TopicId, range_by_ledger: Mapping[LedgerId, range]
    ) -> list[tuple[Ledger, list[Segment]]]:
        """Return, in one read, the given ledgers that are listed, ascending, each with the segments in its range."""
        ranges = [(ledger_id, entries.start, entries.stop) for ledger_id, entries in range_by_ledger.items()]
        segments_by_ledger: dict[LedgerId, list[Segment]] = defaultdict(list)
        listed = filter_listed_ledgers(connection, topic_id, range_by_ledger)
        for row in _compile_segments_in_ranges(connection.dialect.name).execute(connection, ranges):
            segments_by_ledger[row.ledger_id].append(dataclass_from_row(Segment, row))
        return [(ledger, segments_by_ledger[ledger.ledger_id]) for ledger in listed]

    def producer_sequences(self, topic_id: TopicId, producers: Iterable[str]) -> dict[str, HighestSequenceIds]:
        return self._db.read(lambda connection: read_producer_sequences(connection, topic_id, producers))


@cache
def _compile_segments_in_ranges(dialect: str) -> BulkStatement:
    rows, s = build_bulk_parameter(dialect, "within", {"ledger_id": BIG, "start": BIG, "stop": BIG}), t.segment.c
    range_columns = rows.source.c
    overlaps = and_(
        s.ledger_id == range_columns.ledger_id,
        s.first_entry < range_columns.stop,
        s.first_entry + s.entries > range_columns.start,
    )
    query = select(t.segment).join(rows.source, overlaps)
    return BulkStatement(sql=query.order_by(s.ledger_id, s.first_entry), rows=rows)


def filter_listed_ledgers(connection: Connection, topic_id: TopicId, ledger_ids: Collection[LedgerId]) -> list[Ledger]:
    """Return the ledgers with these ids that are in the topic's list of message ledgers, ascending."""
    page = _select_listed_ledgers(topic_id).where(is_one_of(connection, t.ledger.c.ledger_id, ledger_ids))
    return _read_listed_ledgers(connection, topic_id, page.order_by(t.ledger.c.ledger_id))


def _select_listed_ledgers(topic_id: TopicId) -> Any:  # noqa: ANN401 - SQLAlchemy's select of many columns
    return (
        select(t.ledger)
        .join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id)
        .where(
            t.ledger_list.c.topic_id == topic_id,
            t.ledger_list.c.component == Component.MANAGED_LEDGER.value,
            t.ledger.c.place.is_not(None),
        )
    )


def _read_listed_ledgers(connection: Connection, topic_id: TopicId, page: Select[Any]) -> list[Ledger]:
    rows = connection.execute(page).all()
    copies_by_ledger = read_live_copies_by_ledger(connection, rows)
    return [ledger_from_row(row, topic_id, copies=copies_by_ledger[row.ledger_id]) for row in rows]
