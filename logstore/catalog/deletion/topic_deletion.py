"""Deletion of a whole topic in SQL: one transaction for each step, under a lock of the topic's row.

A transaction that adds rows to a topic holds a share lock of the topic's row and requires state ACTIVE.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, func, or_, select

from logstore.catalog import tables as t
from logstore.catalog.audit_log import AuditedLedgers, find_first_act_time_us, insert_audit_row
from logstore.catalog.cursors.cursor_rows import remove_cursors
from logstore.catalog.delayed.delayed_index import remove_delayed_index
from logstore.catalog.deletion.intent_queries import count_filed_intents, tally_intents
from logstore.catalog.deletion.intent_rows import replace_ledgers_by_intents, take_over_stalled_intents
from logstore.catalog.deletion.run_rows import find_earlier_detach, insert_batch_run
from logstore.catalog.engine.database import Database
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.component_ledgers import remove_schema_versions
from logstore.catalog.log.ledger_rows import (
    insert_missing_copies,
    lock_ledger_lists,
    remove_ledger_lists,
    remove_ledgers,
)
from logstore.catalog.log.producer_sequence_rows import remove_producers
from logstore.catalog.log.topics import mark_topic_deleting, read_topic, remove_topic, topic_from_row
from logstore.catalog.records.tombstone_rows import insert_topic_tombstone
from logstore.catalog.transactions.buffer_rows import remove_topic_buffer
from logstore.catalog.transactions.buffer_snapshots import remove_buffer_snapshot
from logstore.deletion.intents import DeletionState
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch, IntentTally, TopicContentCounts
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstone_rules import EndingOperation, is_durable

_Removals = Mapping[str, Callable[[Connection, TopicId], int]]

_ROWS_WITH_LEDGERS: Final[_Removals] = {
    "cursor": remove_cursors,
    "schema_version": remove_schema_versions,
    "transaction_snapshot": remove_buffer_snapshot,
    "delayed_bucket": remove_delayed_index,
}
"""Functions that remove a topic's rows with ledger ids, by table, in lock order. `detach_whole_topic` calls them."""

_TOPIC_ROWS: Final[_Removals] = {
    **_ROWS_WITH_LEDGERS,
    "producer_sequence": remove_producers,
    "ledger_list": remove_ledger_lists,
    "buffer": remove_topic_buffer,
}
"""Functions that remove a topic's rows, by table. These rows must not outlive the row in the table `topic`.

Add each new table with a topic id here or to `_ROWS_WITH_LEDGERS`. Ledgers that the rows name must be in a list of the
topic.
"""

_BEGIN_ACT = "delete-topic"


def begin_deletion_or_get_start_us(
    connection: Connection, database: Database, topic_id: TopicId, name: str, cause: AuditCause
) -> int:
    topic = _lock_topic(connection, topic_id, key_share=True)
    begun_us = find_first_act_time_us(connection, _BEGIN_ACT, topic_id)
    if topic is None and begun_us is None:
        raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
    if topic is not None and topic.name != name:
        raise PreconditionFailed(f"topic {topic_id}: expected the name {name}, found {topic.name}")
    if begun_us is not None:
        return begun_us
    now = database.now_us(connection)
    mark_topic_deleting(connection, topic_id)
    insert_audit_row(connection, _BEGIN_ACT, cause, at_us=now, topic_id=topic_id, topic=name, detail={})
    return now


def detach_whole_topic(
    connection: Connection,
    database: Database,
    topic_id: TopicId,
    *,
    batch_id: str,
    claim: Claim,
    cause: AuditCause,
    durable: bool | None,
) -> DetachedBatch:
    request = f"all of topic {topic_id}"
    topic = _lock_topic(connection, topic_id)
    earlier_detach = find_earlier_detach(connection, batch_id, request)
    if earlier_detach or topic is None:
        return earlier_detach or DetachedBatch(batch_id=batch_id, ledgers=0, intents=0)
    now_us = database.now_us(connection)
    result = _detach_topic_ledgers(connection, topic, batch_id, cause, now_us, durable=_is_durable(topic, durable))
    if result.intents:
        insert_batch_run(connection, result, topic_id, claim, now_us, request=request)
    return result


def _detach_topic_ledgers(
    connection: Connection, topic: Row[Any], batch_id: str, cause: AuditCause, now_us: int, *, durable: bool
) -> DetachedBatch:
    _require_deleting(topic)
    topic_id = TopicId(topic.topic_id)
    lists = t.ledger_list.c.topic_id == topic_id
    lock_ledger_lists(connection, lists)
    to_delete = t.ledger.c.list_id.in_(select(t.ledger_list.c.list_id).where(lists))
    ids = connection.execute(select(t.ledger.c.ledger_id).where(to_delete).order_by(t.ledger.c.ledger_id)).scalars()
    ledger_ids = ids.all()
    taken_over_intents = take_over_stalled_intents(connection, topic_id, None, batch_id=batch_id, now_us=now_us)
    filed_intents = 0
    if ledger_ids:
        insert_missing_copies(connection, topic_id)
        filed_intents = replace_ledgers_by_intents(
            connection, to_delete, batch_id=batch_id, now_us=now_us, cause=cause, durable=durable
        )
        detail = {"removed": _remove_topic_rows(connection, topic_id, _ROWS_WITH_LEDGERS)}
        about = {"topic_id": topic_id, "topic": topic.name, "run_id": batch_id}
        insert_audit_row(
            connection, "detach", cause, at_us=now_us, detail=detail, span=AuditedLedgers.from_ids(ledger_ids), **about
        )
    return DetachedBatch(
        batch_id=batch_id,
        ledgers=len(ledger_ids),
        intents=taken_over_intents + filed_intents,
        filed_counts=count_filed_intents(connection, batch_id, now_us, topic_id=topic_id) if filed_intents else (),
    )


def remove_detached_topic(
    connection: Connection, database: Database, topic_id: TopicId, cause: AuditCause, *, durable: bool | None
) -> bool:
    topic = _lock_topic(connection, topic_id)
    if topic is None:
        return True
    _require_deleting(topic)
    lists = lock_ledger_lists(connection, t.ledger_list.c.topic_id == topic_id)
    inside = is_one_of(connection, t.ledger.c.list_id, lists)
    if connection.execute(select(t.ledger.c.ledger_id).where(inside).limit(1)).first():
        return False
    removed = _remove_topic_rows(connection, topic_id, _TOPIC_ROWS)
    now = database.now_us(connection)
    if _is_durable(topic, durable):
        insert_topic_tombstone(connection, topic_id, now_us=now)
    remove_topic(connection, topic_id)
    tally = tally_intents_of_topic_deletion(
        connection, topic_id, find_first_act_time_us(connection, _BEGIN_ACT, topic_id) or 0
    )
    detail = {"removed": removed, "outcomes": dict(tally.outcomes), "objects": tally.objects}
    insert_audit_row(connection, "remove-topic", cause, at_us=now, topic_id=topic_id, topic=topic.name, detail=detail)
    return True


def remove_topic_but_objects(connection: Connection, topic_id: TopicId) -> list[LedgerId]:
    """Remove a topic that an old record version brought back, and all rows of the topic.

    Return the removed ledgers. The objects of these ledgers stay.
    """
    lists = select(t.ledger_list.c.list_id).where(t.ledger_list.c.topic_id == topic_id)
    inside = t.ledger.c.list_id.in_(lists)
    ledger_ids = [
        LedgerId(ledger_id) for ledger_id in connection.execute(select(t.ledger.c.ledger_id).where(inside)).scalars()
    ]
    remove_ledgers(connection, inside)
    _remove_topic_rows(connection, topic_id, _ROWS_WITH_LEDGERS)
    _remove_topic_rows(connection, topic_id, _TOPIC_ROWS)
    remove_topic(connection, topic_id)
    return ledger_ids


def count_topic_contents(connection: Connection, topic_id: TopicId) -> TopicContentCounts:
    read_topic(connection, topic_id)
    component = t.ledger_list.c.component
    mine = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id)
    of_topic = t.ledger_list.c.topic_id == topic_id
    per_component = select(component, func.count()).select_from(mine).where(of_topic).group_by(component)
    with_copies = mine.join(t.ledger_copy, t.ledger_copy.c.ledger_id == t.ledger.c.ledger_id)
    kind = t.ledger_copy.c.kind
    per_kind = select(component, kind, func.count()).select_from(with_copies).where(of_topic).group_by(component, kind)
    copies: dict[str, dict[str, int]] = {}
    for name, kind_name, count in connection.execute(per_kind.order_by(component, kind)):
        copies.setdefault(name, {})[kind_name] = count
    subscriptions = select(func.count()).where(t.cursor.c.topic_id == topic_id)
    return TopicContentCounts(
        ledgers={row[0]: row[1] for row in connection.execute(per_component.order_by(component))},
        copies=copies,
        subscriptions=connection.execute(subscriptions).scalar_one(),
    )


def tally_intents_of_topic_deletion(connection: Connection, topic_id: TopicId, finished_since_us: int) -> IntentTally:
    p = t.pending_deletion.c
    deleted = DeletionState.DELETED.value
    unfinished = p.state != deleted  # includes states that this build does not know
    return tally_intents(
        connection,
        p.topic_id == topic_id,
        or_(unfinished, and_(p.state == deleted, p.finished_us >= finished_since_us)),
    )


def _lock_topic(connection: Connection, topic_id: TopicId, *, key_share: bool = False) -> Row[Any] | None:
    """Lock the topic's row. With `key_share`, the lock does not wait for share locks."""
    query = select(t.topic).where(t.topic.c.topic_id == topic_id)
    return connection.execute(query.with_for_update(key_share=key_share)).first()


def _remove_topic_rows(connection: Connection, topic_id: TopicId, removals: _Removals) -> dict[str, int]:
    return {table: remove(connection, topic_id) for table, remove in removals.items()}


def _is_durable(topic: Row[Any], command_setting: bool | None) -> bool:
    return is_durable(
        EndingOperation.DELETE, topic_setting=topic_from_row(topic).durable_delete, command_setting=command_setting
    )


def _require_deleting(topic: Row[Any]) -> None:
    if topic.state != TopicState.DELETING.value:
        raise PreconditionFailed(f"topic {topic.name}: expected state DELETING, found {topic.state}")
