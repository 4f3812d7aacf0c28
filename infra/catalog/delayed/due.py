"""Work on delayed messages: messages behind the last bucket, and buckets that are to be dropped."""

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

from infra.catalog import tables as t
from logstore.delayed.buckets import BucketLimits
from logstore.log.ledgers import Component
from logstore.ports.catalog import DelayedCounts, TopicState, UnsealedCounts
from logstore.positions import EARLIEST, LedgerId, TopicId

_I, _B, _L, _S, _C = t.delayed_index.c, t.delayed_bucket.c, t.ledger.c, t.segment.c, t.cursor.c
_PASSED_MS: Final = 60_000  # so long a bucket is kept after its last message was due: processes' clocks may differ


def _listed(topic_id: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
    """Rows of `ledger` that are the topic's listed data ledgers; their places are their ids, and an index has these."""
    lists = t.ledger_list.c
    return (
        lists.topic_id == topic_id,
        lists.component == Component.MANAGED_LEDGER.value,
        _L.list_id == lists.list_id,
        _L.place.is_not(None),
    )


def count_entries_behind(
    topic_id: ColumnElement[int], ledger: ColumnElement[int], entry: ColumnElement[int]
) -> ScalarSelect[int]:
    """Entries with a delivery time in the topic's segments that begin behind a position: seals end where these end."""
    behind = or_(_L.ledger_id > ledger, and_(_L.ledger_id == ledger, _S.first_entry > entry))
    mine = (*_listed(topic_id), _L.place >= ledger, _S.ledger_id == _L.ledger_id, behind)
    return select(func.coalesce(func.sum(_S.delayed), 0)).where(*mine).scalar_subquery()


def count_ledgers_behind(
    topic_id: ColumnElement[int], ledger: ColumnElement[int], entry: ColumnElement[int]
) -> ScalarSelect[int]:
    """The topic's ledgers that hold entries behind a position."""
    behind = or_(and_(_L.ledger_id > ledger, _L.entries > 0), and_(_L.ledger_id == ledger, _L.entries - 1 > entry))
    return select(func.count(_L.ledger_id)).where(*_listed(topic_id), _L.place >= ledger, behind).scalar_subquery()


def count_unsealed(connection: Connection, topic_id: TopicId) -> UnsealedCounts:
    """See `DelayedIndex.unsealed`: counted from segments, because some may be gone since the row was written."""
    where = select(_I.sealed_ledger, _I.sealed_entry, _I.changed_us).where(_I.topic_id == topic_id)
    row = connection.execute(where).first()
    ledger, entry = (EARLIEST.ledger_id, EARLIEST.entry_id) if row is None else (row.sealed_ledger, row.sealed_entry)
    of = (literal(topic_id, t.Big), literal(ledger, t.Big), literal(entry, t.Big))
    entries, ledgers = connection.execute(select(count_entries_behind(*of), count_ledgers_behind(*of))).one()
    return UnsealedCounts(entries=int(entries), ledgers=ledgers, changed_us=None if row is None else row.changed_us)


def count_all(connection: Connection) -> DelayedCounts:
    """See `DelayedIndex.counts`: the sums of rows that are kept up to date by what changes them."""
    sealed = select(func.count(), func.coalesce(func.sum(_B.messages), 0))
    buckets, messages = connection.execute(sealed.select_from(t.delayed_bucket)).one()
    unsealed = connection.execute(select(func.coalesce(func.sum(_I.unsealed), 0))).scalar_one()
    return DelayedCounts(buckets=buckets, messages=int(messages), unsealed=int(unsealed))


def select_droppable(connection: Connection, topic_id: TopicId, *, now_us: int) -> list[LedgerId]:
    """See `DelayedIndex.passed`."""
    query = select(_B.ledger_id).where(_B.topic_id == topic_id, _is_passed(now_us))
    found = connection.execute(query.order_by(_B.first_ledger, _B.first_entry)).scalars()
    return [LedgerId(one) for one in found]


def _is_passed(now_us: int) -> ColumnElement[bool]:
    """A bucket's messages have all come due, are behind every mark-delete position, or have left with their ledgers."""
    of_topic = _C.topic_id == _B.topic_id
    before = or_(_C.mark_ledger < _B.last_ledger, and_(_C.mark_ledger == _B.last_ledger, _C.mark_entry < _B.last_entry))
    acknowledged = and_(exists().where(of_topic), ~exists().where(of_topic, before))
    within = _L.place.between(_B.first_ledger, _B.last_ledger)
    return or_(
        _B.last_ms <= now_us // 1000 - _PASSED_MS,
        acknowledged,
        ~exists().where(*_listed(_B.topic_id), within),
    )


def due_topics(
    connection: Connection, limits: BucketLimits, *, after: TopicId, limit: int, now_us: int
) -> list[TopicId]:
    """See `DelayedIndex.due`."""
    active = exists().where(t.topic.c.topic_id == _I.topic_id, t.topic.c.state == TopicState.ACTIVE.value)
    free = or_(_I.claim_until_us.is_(None), _I.claim_until_us <= now_us)
    buckets = select(func.count()).select_from(t.delayed_bucket).where(_of_index()).scalar_subquery()
    to_merge = literal(limits.buckets) < buckets
    wanted = or_(_is_to_seal(limits, now_us), to_merge, exists().where(_of_index(), _is_passed(now_us)))
    query = select(_I.topic_id).where(_I.topic_id > after, free, active, wanted)
    return [TopicId(one) for one in connection.execute(query.order_by(_I.topic_id).limit(limit)).scalars()]


def _of_index() -> ColumnElement[bool]:
    return _B.topic_id == _I.topic_id


def _is_to_seal(limits: BucketLimits, now_us: int) -> ColumnElement[bool]:
    """Enough messages, enough ledgers, or any for long enough."""
    idle_us = now_us - round(limits.idle_s * 1_000_000)
    ledgers = count_ledgers_behind(_I.topic_id, _I.sealed_ledger, _I.sealed_entry)
    long_enough = or_(_I.changed_us <= idle_us, literal(limits.ledgers) <= ledgers)
    return or_(_I.unsealed >= limits.messages, and_(_I.unsealed > 0, long_enough))


def delayed_sizes() -> tuple[Select[Any], Select[Any]]:
    """Return queries of topics with delayed messages in their log, and of topics with buckets. A topic may be in both.

    The columns are `topic_id` and `size`, the number of delayed messages in the log.
    """
    lists = t.ledger_list.c
    data = (lists.component == Component.MANAGED_LEDGER.value) & _L.place.is_not(None) & (_S.delayed > 0)
    joined = t.segment.join(t.ledger, _S.ledger_id == _L.ledger_id).join(t.ledger_list, _L.list_id == lists.list_id)
    entries = cast(func.sum(_S.delayed), t.Big).label("size")
    in_log = select(lists.topic_id, entries).select_from(joined).where(data).group_by(lists.topic_id)
    none = literal_column("0", t.Big).label("size")
    return in_log, select(_B.topic_id, none).group_by(_B.topic_id)
