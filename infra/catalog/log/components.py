"""Ledgers of components in SQL: their lists, made on demand, and how a ledger joins and leaves one."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, select

from infra.catalog import tables as t
from infra.catalog.audits import audit
from infra.catalog.deletion.intent_rows import file_intents, reopen_intent
from infra.catalog.deletion.intents import keys_of
from infra.catalog.engine.database import OnDatabase, writes
from infra.catalog.log.ledger_rows import canonical, ledger_of, make_list, newborn
from infra.catalog.log.topic_rows import active_topic, topic_row
from logstore.errors import UnknownObject
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerStatement
from logstore.ports.catalog import Cause, Ledger, Topic
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstones import Ending, is_durable

BY_ROW: Final[Mapping[str, ColumnElement[Any]]] = {
    Component.MANAGED_CURSOR.value: t.cursor.c.snapshot_ledger,
    Component.SCHEMA_STORAGE.value: t.schema_version.c.ledger_id,
    Component.TXN_SNAPSHOT.value: t.transaction_snapshot.c.ledger_id,
    Component.DELAYED_INDEX.value: t.delayed_bucket.c.ledger_id,
}
"""Components whose ledgers are in use where a row names them, a place in the list or not; and that row's column."""


class SqlComponents(OnDatabase):
    """The `Components` port."""

    @writes("catalog.create_component_ledger")
    def create(
        self,
        connection: Connection,
        topic_id: TopicId,
        component: Component,
        keys: Mapping[str, str],
        *,
        application: str,
    ) -> LedgerStatement:
        """See `Components.create`."""
        topic = active_topic(connection, topic_id)
        owner = LedgerOwner(
            application=application, component=component, topic_id=topic_id, topic=topic.name, keys=dict(keys)
        )
        list_id = make_list(connection, topic_id, component, keys)
        return newborn(connection, owner, list_id, now_us=self._db.now_us(connection))

    def listed(self, topic_id: TopicId) -> list[Ledger]:
        """See `Components.listed`."""
        return self._db.read(lambda connection: _listed(connection, topic_id))


def topic_of_newborn(connection: Connection, topic_id: TopicId, ledger_id: LedgerId) -> Topic | None:
    """The topic under a share lock; None when it was deleted, and what the creator stored since is looked at again."""
    try:
        return topic_row(connection, topic_id, share=True)
    except UnknownObject:
        reopen_intent(connection, ledger_id)
        return None


def born(connection: Connection, ledger_id: LedgerId, list_id: int) -> Row[Any] | None:
    """The row of a ledger that its creator wants to publish, or None when it was taken for abandoned.

    What the creator has put into storage since is then looked at again.

    Args:
        connection: In a writing transaction that holds the lock of the list.
        ledger_id: The newborn, or a ledger that was published already.
        list_id: Its list.
    """
    query = select(t.ledger).where(t.ledger.c.ledger_id == ledger_id, t.ledger.c.list_id == list_id)
    found = connection.execute(query).first()
    if found is None:
        reopen_intent(connection, ledger_id)
    return found


def retire(connection: Connection, ledger_id: LedgerId, topic: Topic, *, reason: str, now_us: int) -> None:
    """Replace a component's ledger by an intent that no workflow works on yet, and say so in the audit log.

    A trim of the topic or a sweep takes the intent up, whatever became of that process (apache/pulsar#982).
    """
    durable = is_durable(Ending.UPKEEP, topic=topic.durable_delete)
    file_intents(connection, t.ledger.c.ledger_id == ledger_id, batch_id="", now_us=now_us, durable=durable)
    cause = Cause(actor="sexton", reason=reason, workflow_id="")
    audit(
        connection,
        "retire",
        cause,
        at_us=now_us,
        topic_id=topic.topic_id,
        topic=topic.name,
        detail={"ledger": int(ledger_id)},
    )


def _listed(connection: Connection, topic_id: TopicId) -> list[Ledger]:
    """Ordered here, not in SQL: a database sorts text by its own locale."""
    listed = (t.ledger_list.c.topic_id == topic_id, t.ledger.c.place.is_not(None))
    of_list = t.ledger.c.list_id == t.ledger_list.c.list_id
    columns = (t.ledger, t.ledger_list.c.component, t.ledger_list.c.owner)
    rows = connection.execute(select(*columns).join(t.ledger_list, of_list).where(*listed)).all()
    inner = select(t.ledger.c.ledger_id).join(t.ledger_list, of_list).where(*listed)
    live = (t.ledger_copy.c.ledger_id.in_(inner), t.ledger_copy.c.state == CopyState.LIVE.value)
    kinds: dict[int, set[CopyKind]] = {}
    for row in connection.execute(select(t.ledger_copy.c.ledger_id, t.ledger_copy.c.kind).where(*live)):
        kinds.setdefault(row.ledger_id, set()).add(CopyKind(row.kind))
    found = [
        ledger_of(
            row,
            topic_id,
            component=Component(row.component),
            copies=tuple(sorted(kinds.get(row.ledger_id, ()))),
            keys=keys_of(row.owner),
        )
        for row in rows
    ]
    data = Component.MANAGED_LEDGER
    return sorted(found, key=lambda one: (one.component is not data, one.component, canonical(one.keys), one.ledger_id))
