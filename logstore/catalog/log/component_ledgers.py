"""Component ledgers in SQL: their lists, creation, publication and retirement. Schema versions in SQL.

Sole writer of the table `schema_version`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select

from logstore.catalog import tables as t
from logstore.catalog.audit_log import insert_audit_row
from logstore.catalog.deletion.intent_queries import parse_owner_keys
from logstore.catalog.deletion.intent_rows import reopen_newborn_intent, replace_ledgers_by_intents
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.catalog.engine.dialect_sql import dataclass_from_row, is_one_of
from logstore.catalog.log.ledger_rows import (
    ensure_ledger_list,
    format_canonical_json,
    insert_newborn_ledger,
    ledger_from_row,
    lock_component_list,
    publish_component_ledger,
    read_live_copies_by_ledger,
)
from logstore.catalog.log.topics import read_topic, share_lock_active_topic
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.log import Ledger, SchemaVersion, Topic, TopicState
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
        return create_newborn_ledger(
            connection, topic_id, component, keys, application=application, read_clock=self._db.now_us
        )

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
            limit, after = _LEDGERS_PER_PAGE if chunk in single_chunks else None, -1
            while page := self._db.read(partial(_read_ledger_page, topic_id, chunk, after=after, limit=limit)):
                yield page
                if len(page) != limit:
                    break
                after = page[-1].ledger_id


def create_newborn_ledger(
    connection: Connection,
    topic_id: TopicId,
    component: Component,
    keys: Mapping[str, str],
    *,
    application: str,
    read_clock: Callable[[Connection], int],
) -> LedgerStatement:
    """Insert the row of an unlisted ledger in state CREATING. `read_clock` is `Database.now_us`."""
    topic = share_lock_active_topic(connection, topic_id)
    owner = LedgerOwner(
        application=application, component=component, topic_id=topic_id, topic=topic.name, keys=dict(keys)
    )
    list_id = ensure_ledger_list(connection, topic_id, component, keys)
    return insert_newborn_ledger(connection, owner, list_id, now_us=read_clock(connection))


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
    topic_id: TopicId, chunk: Sequence[_OwnedList], connection: Connection, *, after: int, limit: int | None
) -> list[Ledger]:
    index_by_list = {owned_list.list_id: index for index, owned_list in enumerate(chunk)}
    conditions = (
        is_one_of(connection, t.ledger.c.list_id, index_by_list),
        t.ledger.c.place.is_not(None),
        t.ledger.c.ledger_id > after,
    )
    rows = connection.execute(select(t.ledger).where(*conditions).order_by(t.ledger.c.ledger_id).limit(limit)).all()
    copies_by_ledger = read_live_copies_by_ledger(connection, rows)
    return [
        ledger_from_row(
            row,
            topic_id,
            component=chunk[index_by_list[row.list_id]].component,
            copies=copies_by_ledger[row.ledger_id],
            keys=chunk[index_by_list[row.list_id]].keys,
        )
        for row in sorted(rows, key=lambda row: (index_by_list[row.list_id], row.ledger_id))
    ]


_V = t.schema_version.c


class SchemaVersions(CatalogAdapter):
    def list_schema_versions(self, topic_id: TopicId) -> list[SchemaVersion]:
        query = select(t.schema_version).where(_V.topic_id == topic_id).order_by(_V.version)
        return [
            dataclass_from_row(SchemaVersion, row)
            for row in self._db.read(lambda connection: connection.execute(query).all())
        ]

    def newest_schema_version(self, topic_id: TopicId) -> SchemaVersion | None:
        return self._db.read(lambda connection: _read_newest_version(connection, topic_id))

    def publish_schema_version(
        self,
        topic_id: TopicId,
        ledger_id: LedgerId,
        *,
        digest: str,
        content_bytes: int,
        size_bytes: int,
        sha256: str | None = None,
    ) -> SchemaVersion | None:
        """Publish a newborn schema ledger as the next schema version. The ledger becomes listed and CLOSED.

        If the newest schema version has the same digest, the method returns this schema version and files an intent for
        the newborn ledger. Otherwise, if the topic is not ACTIVE, the method also files an intent and raises
        `PreconditionFailed`. A repeated call returns the same schema version. The method returns `None` if the newborn
        ledger was detached meanwhile. The caller then writes another ledger.

        `digest` and `content_bytes` describe the content. `size_bytes` and `sha256` describe the segment's object.
        Digests are SHA-256, hexadecimal.

        The error of a refusal is raised after the commit, because the transaction files the newborn ledger's intent.
        """

        def publish_or_file_intent(connection: Connection) -> SchemaVersion | PreconditionFailed | None:
            topic = lock_topic_or_reopen_intent(connection, topic_id, ledger_id)
            if topic is None:
                return None
            list_id = lock_component_list(connection, topic_id, Component.SCHEMA_STORAGE, {"schema": topic.name})
            row = read_newborn_or_reopen_intent(connection, ledger_id, list_id)
            if row is None or row.place is not None:
                return _read_newest_version(connection, topic_id, _V.ledger_id == ledger_id)
            newest, now_us = _read_newest_version(connection, topic_id), self._db.now_us(connection)
            is_known = newest is not None and newest.digest == digest
            if is_known or topic.state is not TopicState.ACTIVE:
                replace_ledgers_by_intents(connection, t.ledger.c.ledger_id == ledger_id, batch_id="", now_us=now_us)
                expected = f"topic {topic.name}: expected state ACTIVE, found {topic.state.value}"
                return newest if is_known else PreconditionFailed(expected)
            publish_component_ledger(connection, row, size_bytes=size_bytes, sha256=sha256, now_us=now_us)
            version = SchemaVersion(
                version=0 if newest is None else newest.version + 1,
                ledger_id=ledger_id,
                digest=digest,
                size_bytes=content_bytes,
                created_us=now_us,
            )
            connection.execute(insert(t.schema_version).values(topic_id=topic_id, **asdict(version)))
            return version

        with effect("catalog.publish_schema"):
            result = self._db.write(publish_or_file_intent)
        if isinstance(result, PreconditionFailed):
            raise result
        return result


def remove_schema_versions(connection: Connection, topic_id: TopicId) -> int:
    return connection.execute(delete(t.schema_version).where(_V.topic_id == topic_id)).rowcount


def remove_schema_versions_where(connection: Connection, condition: ColumnElement[bool]) -> dict[LedgerId, TopicId]:
    rows = connection.execute(delete(t.schema_version).where(condition).returning(_V.ledger_id, _V.topic_id))
    return {LedgerId(row.ledger_id): TopicId(row.topic_id) for row in rows}


def _read_newest_version(
    connection: Connection, topic_id: TopicId, *conditions: ColumnElement[bool]
) -> SchemaVersion | None:
    query = select(t.schema_version).where(_V.topic_id == topic_id, *conditions).order_by(_V.version.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else dataclass_from_row(SchemaVersion, row)
