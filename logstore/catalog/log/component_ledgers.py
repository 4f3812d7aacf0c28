"""Component ledgers in SQL: their lists, creation, publication and retirement."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, select

from logstore.catalog import tables as t
from logstore.catalog.audit_log import insert_audit_row
from logstore.catalog.deletion.intent_queries import parse_owner_keys
from logstore.catalog.deletion.intent_rows import reopen_newborn_intent, replace_ledgers_by_intents
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.ledger_rows import (
    ensure_ledger_list,
    format_canonical_json,
    insert_newborn_ledger,
    ledger_from_row,
)
from logstore.catalog.log.topic_rows import read_topic, share_lock_active_topic
from logstore.errors import UnknownObject
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerStatement
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.log import Ledger, Topic
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstone_rules import EndingOperation, is_durable

REFERRING_COLUMN_BY_COMPONENT: Final[Mapping[str, ColumnElement[Any]]] = {
    Component.MANAGED_CURSOR.value: t.cursor.c.snapshot_ledger,
    Component.SCHEMA_STORAGE.value: t.schema_version.c.ledger_id,
    Component.TXN_SNAPSHOT.value: t.transaction_snapshot.c.ledger_id,
    Component.DELAYED_INDEX.value: t.delayed_bucket.c.ledger_id,
}
"""Column that names the ledgers in use, by component. Message ledgers are in use while they are listed."""


_LEDGERS_PER_PAGE: Final = 1_000  # about a megabyte, read in a hundredth of a second
_LISTS_PER_READ: Final = 500  # a list of a cursor, schema or index has few ledgers


class LedgersOfAllComponents(CatalogAdapter):
    """Ledgers of all components of a topic. Ports of the single components publish these ledgers, as CLOSED."""

    @in_write_transaction("catalog.create_component_ledger")
    def create_component_ledger(
        self,
        connection: Connection,
        topic_id: TopicId,
        component: Component,
        keys: Mapping[str, str],
        *,
        application: str,
    ) -> LedgerStatement:
        """Insert the row of a new, unlisted component ledger in state CREATING.

        `keys` identify the ledger owner within the topic, e.g. `{"cursor": "billing"}`. Each ledger owner has its own
        list. The first ledger of a ledger owner creates the list.

        Not idempotent. The topic's trim detaches a ledger that is never published.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """
        topic = share_lock_active_topic(connection, topic_id)
        owner = LedgerOwner(
            application=application, component=component, topic_id=topic_id, topic=topic.name, keys=dict(keys)
        )
        list_id = ensure_ledger_list(connection, topic_id, component, keys)
        return insert_newborn_ledger(connection, owner, list_id, now_us=self._db.now_us(connection))

    def list_ledgers(self, topic_id: TopicId) -> list[Ledger]:
        """Return listed ledgers of all components: message ledgers first, each list in its order."""
        return [ledger for page in self.iterate_ledger_pages(topic_id) for ledger in page]

    def iterate_ledger_pages(
        self, topic_id: TopicId, *, component: Component | None = None
    ) -> Iterator[Sequence[Ledger]]:
        """Yield the ledgers of `list_ledgers`, or of one component, in pages that fit into memory.

        Each page is read on demand. A ledger that leaves its list meanwhile may be missing. No ledger appears twice.
        """
        lists = self._db.read(lambda connection: _read_lists(connection, topic_id, component))
        data = Component.MANAGED_LEDGER
        # The list of message ledgers has any number of ledgers. Other lists have few ledgers.
        single_chunks = [[owned_list] for owned_list in lists if owned_list.component is data]
        other_lists = [owned_list for owned_list in lists if owned_list.component is not data]
        other_chunks = [other_lists[at : at + _LISTS_PER_READ] for at in range(0, len(other_lists), _LISTS_PER_READ)]
        for chunk in (*single_chunks, *other_chunks):
            yield from self._iterate_list_pages(topic_id, chunk)

    def _iterate_list_pages(self, topic_id: TopicId, chunk: "Sequence[_OwnedList]") -> Iterator[Sequence[Ledger]]:
        limit = _LEDGERS_PER_PAGE if chunk[0].component is Component.MANAGED_LEDGER else None

        def read(after: int) -> list[Ledger]:
            return self._db.read(
                lambda connection: _read_ledger_page(connection, topic_id, chunk, after=after, limit=limit)
            )

        page = read(-1)
        while page:
            yield page
            page = read(page[-1].ledger_id) if limit is not None and len(page) == limit else []


def lock_topic_or_reopen_intent(connection: Connection, topic_id: TopicId, ledger_id: LedgerId) -> Topic | None:
    """Share-lock and return the topic. If the topic was deleted, reopen the ledger's intent and return `None`.

    Phase two then searches storage for late objects again.
    """
    try:
        return read_topic(connection, topic_id, share_lock=True)
    except UnknownObject:
        reopen_newborn_intent(connection, ledger_id)
        return None


def read_newborn_or_reopen_intent(connection: Connection, ledger_id: LedgerId, list_id: int) -> Row[Any] | None:
    """Return the row of a ledger to publish. If the ledger has no row, reopen its intent and return `None`.

    The returned ledger may be published already. The caller has locked the list.
    """
    query = select(t.ledger).where(t.ledger.c.ledger_id == ledger_id, t.ledger.c.list_id == list_id)
    row = connection.execute(query).first()
    if row is None:
        reopen_newborn_intent(connection, ledger_id)
    return row


def retire_component_ledger(
    connection: Connection, ledger_id: LedgerId, topic: Topic, *, reason: str, now_us: int
) -> None:
    """Replace a component ledger by an intent without a batch, and write an audit row.

    The next trim of the topic or the next sweep takes over the intent.
    """
    durable = is_durable(EndingOperation.UPKEEP, topic_setting=topic.durable_delete)
    replace_ledgers_by_intents(
        connection, t.ledger.c.ledger_id == ledger_id, batch_id="", now_us=now_us, durable=durable
    )
    cause = AuditCause(actor="sexton", reason=reason, workflow_id="")
    insert_audit_row(
        connection,
        "retire",
        cause,
        at_us=now_us,
        topic_id=topic.topic_id,
        topic=topic.name,
        detail={"ledger": int(ledger_id)},
    )


@dataclass(frozen=True, slots=True)
class _OwnedList:
    list_id: int
    component: Component
    keys: Mapping[str, str]


def _read_lists(connection: Connection, topic_id: TopicId, component: Component | None) -> list[_OwnedList]:
    """Return the topic's lists, message ledgers first. Python sorts them, because a database sorts by its locale."""
    lists = t.ledger_list.c
    query = select(lists.list_id, lists.component, lists.owner).where(lists.topic_id == topic_id)
    if component is not None:
        query = query.where(lists.component == component.value)
    owned_lists = [
        _OwnedList(row.list_id, Component(row.component), parse_owner_keys(row.owner))
        for row in connection.execute(query)
    ]
    data = Component.MANAGED_LEDGER
    return sorted(
        owned_lists,
        key=lambda owned_list: (
            owned_list.component is not data,
            owned_list.component,
            format_canonical_json(owned_list.keys),
        ),
    )


def _read_ledger_page(
    connection: Connection, topic_id: TopicId, chunk: Sequence[_OwnedList], *, after: int, limit: int | None
) -> list[Ledger]:
    index_by_list = {owned_list.list_id: index for index, owned_list in enumerate(chunk)}
    conditions = (
        is_one_of(connection, t.ledger.c.list_id, index_by_list),
        t.ledger.c.place.is_not(None),
        t.ledger.c.ledger_id > after,
    )
    rows = connection.execute(select(t.ledger).where(*conditions).order_by(t.ledger.c.ledger_id).limit(limit)).all()
    copy = t.ledger_copy.c
    is_live = (
        is_one_of(connection, copy.ledger_id, [row.ledger_id for row in rows]),
        copy.state == CopyState.LIVE.value,
    )
    kinds_by_ledger: dict[int, set[CopyKind]] = {}
    for row in connection.execute(select(copy.ledger_id, copy.kind).where(*is_live)):
        kinds_by_ledger.setdefault(row.ledger_id, set()).add(CopyKind(row.kind))
    return [
        ledger_from_row(
            row,
            topic_id,
            component=chunk[index_by_list[row.list_id]].component,
            copies=tuple(sorted(kinds_by_ledger.get(row.ledger_id, ()))),
            keys=chunk[index_by_list[row.list_id]].keys,
        )
        for row in sorted(rows, key=lambda row: (index_by_list[row.list_id], row.ledger_id))
    ]
