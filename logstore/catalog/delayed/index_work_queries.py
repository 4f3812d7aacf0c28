"""Queries for work on delayed messages: unsealed entries, and index buckets to merge or drop."""

from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    and_,
    cast,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
)

from logstore.catalog import tables as t
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.log.ledgers import Component
from logstore.ports.catalog.delayed import CatalogDelayedMessageCounts, UnsealedEntryCounts
from logstore.ports.catalog.log import TopicState
from logstore.positions import EARLIEST, LedgerId, TopicId

_I, _B, _L, _S, _C = t.delayed_index.c, t.delayed_bucket.c, t.ledger.c, t.segment.c, t.cursor.c
_DROP_DELAY_MS: Final = 60_000  # margin after a bucket's last delivery time, because clocks differ


def _match_listed_message_ledgers(topic_id: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
    """Select the topic's listed message ledgers. Callers filter by `place`, which equals the id and has an index."""
    lists = t.ledger_list.c
    return (
        lists.topic_id == topic_id,
        lists.component == Component.MANAGED_LEDGER.value,
        _L.list_id == lists.list_id,
        _L.place.is_not(None),
    )


def count_delayed_entries_after(
    topic_id: ColumnElement[int], ledger: ColumnElement[int], entry: ColumnElement[int]
) -> ScalarSelect[int]:
    """Count delayed messages after a position. The position must be the end of a segment, or `EARLIEST`."""
    is_behind = or_(_L.ledger_id > ledger, and_(_L.ledger_id == ledger, _S.first_entry > entry))
    is_in_segment = (
        *_match_listed_message_ledgers(topic_id),
        _L.place >= ledger,
        _S.ledger_id == _L.ledger_id,
        is_behind,
    )
    return select(func.coalesce(func.sum(_S.delayed), 0)).where(*is_in_segment).scalar_subquery()


def count_ledgers_after(
    topic_id: ColumnElement[int], ledger: ColumnElement[int], entry: ColumnElement[int]
) -> ScalarSelect[int]:
    is_behind = or_(and_(_L.ledger_id > ledger, _L.entries > 0), and_(_L.ledger_id == ledger, _L.entries - 1 > entry))
    return (
        select(func.count(_L.ledger_id))
        .where(*_match_listed_message_ledgers(topic_id), _L.place >= ledger, is_behind)
        .scalar_subquery()
    )


def count_unsealed_entries(connection: Connection, topic_id: TopicId) -> UnsealedEntryCounts:
    """Count unsealed entries from the rows of segments, not from the stored count."""
    query = select(_I.sealed_ledger, _I.sealed_entry, _I.changed_us).where(_I.topic_id == topic_id)
    row = connection.execute(query).first()
    ledger, entry = (EARLIEST.ledger_id, EARLIEST.entry_id) if row is None else (row.sealed_ledger, row.sealed_entry)
    position = (literal(topic_id, t.Big), literal(ledger, t.Big), literal(entry, t.Big))
    counts = select(count_delayed_entries_after(*position), count_ledgers_after(*position))
    entries, ledgers = connection.execute(counts).one()
    return UnsealedEntryCounts(
        entries=int(entries), ledgers=ledgers, changed_us=None if row is None else row.changed_us
    )


def count_delayed_totals(connection: Connection) -> CatalogDelayedMessageCounts:
    """Return totals over all topics, from stored counts."""
    sealed = select(func.count(), func.coalesce(func.sum(_B.messages), 0))
    buckets, messages = connection.execute(sealed.select_from(t.delayed_bucket)).one()
    unsealed = connection.execute(select(func.coalesce(func.sum(_I.unsealed), 0))).scalar_one()
    return CatalogDelayedMessageCounts(buckets=buckets, messages=int(messages), unsealed=int(unsealed))


def find_droppable_buckets(connection: Connection, topic_id: TopicId, *, now_us: int) -> list[LedgerId]:
    """Return the topic's index buckets whose messages are all due, acknowledged or trimmed, ascending by range."""
    query = select(_B.ledger_id).where(_B.topic_id == topic_id, _match_droppable_buckets(now_us))
    bucket_ids = connection.execute(query.order_by(_B.first_ledger, _B.first_entry)).scalars()
    return [LedgerId(bucket_id) for bucket_id in bucket_ids]


def _match_droppable_buckets(now_us: int) -> ColumnElement[bool]:
    is_of_topic = _C.topic_id == _B.topic_id
    is_before_end = or_(
        _C.mark_ledger < _B.last_ledger, and_(_C.mark_ledger == _B.last_ledger, _C.mark_entry < _B.last_entry)
    )
    is_acknowledged = and_(exists().where(is_of_topic), ~exists().where(is_of_topic, is_before_end))
    is_in_range = _L.place.between(_B.first_ledger, _B.last_ledger)
    return or_(
        _B.last_ms <= now_us // 1000 - _DROP_DELAY_MS,
        is_acknowledged,
        ~exists().where(*_match_listed_message_ledgers(_B.topic_id), is_in_range),
    )


def find_topics_with_index_work(
    connection: Connection, limits: SealAndMergeLimits, *, after: TopicId, limit: int, now_us: int
) -> list[TopicId]:
    is_active = exists().where(t.topic.c.topic_id == _I.topic_id, t.topic.c.state == TopicState.ACTIVE.value)
    is_unclaimed = or_(_I.claim_until_us.is_(None), _I.claim_until_us <= now_us)
    is_of_topic = _B.topic_id == _I.topic_id
    buckets = select(func.count()).select_from(t.delayed_bucket).where(is_of_topic).scalar_subquery()
    should_merge = literal(limits.buckets) < buckets
    has_work = or_(
        _match_topics_to_seal(limits, now_us),
        should_merge,
        exists().where(is_of_topic, _match_droppable_buckets(now_us)),
    )
    query = select(_I.topic_id).where(_I.topic_id > after, is_unclaimed, is_active, has_work)
    return [TopicId(topic_id) for topic_id in connection.execute(query.order_by(_I.topic_id).limit(limit)).scalars()]


def _match_topics_to_seal(limits: SealAndMergeLimits, now_us: int) -> ColumnElement[bool]:
    idle_since_us = now_us - round(limits.idle_s * 1_000_000)
    ledgers = count_ledgers_after(_I.topic_id, _I.sealed_ledger, _I.sealed_entry)
    is_idle_or_long = or_(_I.changed_us <= idle_since_us, literal(limits.ledgers) <= ledgers)
    return or_(_I.unsealed >= limits.messages, and_(_I.unsealed > 0, is_idle_or_long))


def build_delayed_and_bucket_topic_queries() -> tuple[Select[Any], Select[Any]]:
    """Return two queries: topics with delayed messages in the log, and topics with index buckets.

    The columns are `topic_id` and `size`. The `size` is the number of delayed messages, or 0 in the second query.
    """
    lists = t.ledger_list.c
    is_delayed = (lists.component == Component.MANAGED_LEDGER.value) & _L.place.is_not(None) & (_S.delayed > 0)
    joined = t.segment.join(t.ledger, _S.ledger_id == _L.ledger_id).join(t.ledger_list, _L.list_id == lists.list_id)
    entries = cast(func.sum(_S.delayed), t.Big).label("size")
    in_log = select(lists.topic_id, entries).select_from(joined).where(is_delayed).group_by(lists.topic_id)
    no_entries = literal_column("0", t.Big).label("size")
    return in_log, select(_B.topic_id, no_entries).group_by(_B.topic_id)
