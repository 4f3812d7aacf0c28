"""Index of delayed messages in SQL. Sole writer of `delayed_index` and `delayed_bucket`.

Unsealed entries are delayed messages in no index bucket. Each change of a list of index buckets locks the list's row
until the SQL transaction ends.

Lock order: topic, ledger list, ledgers, row of the list of index buckets, cursors.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    ScalarSelect,
    Select,
    and_,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    true,
    update,
)

from logstore.catalog import tables as t
from logstore.catalog.deletion.intent_rows import reopen_newborn_intent, replace_ledgers_by_intents
from logstore.catalog.deletion.run_rows import NO_CLAIM_COLUMNS, build_claim_columns
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import (
    BIG,
    BulkStatement,
    DatabaseClock,
    build_bulk_parameter,
    build_dialect_insert,
    build_insert_if_absent,
    dataclass_from_row,
    is_one_of,
)
from logstore.catalog.log.component_ledgers import read_newborn_or_reopen_intent, retire_component_ledger
from logstore.catalog.log.ledger_rows import lock_component_list, publish_component_ledger
from logstore.catalog.log.topics import read_topic, share_lock_active_topic
from logstore.delayed.index_buckets import IndexBucket, IndexBucketList, SealAndMergeLimits
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.log.ledgers import Component
from logstore.ports.catalog.delayed import CatalogDelayedMessageCounts, IndexBucketSwitch, UnsealedEntryCounts
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import EARLIEST, LedgerId, Position, TopicId

_I, _B, _L, _S, _C = t.delayed_index.c, t.delayed_bucket.c, t.ledger.c, t.segment.c, t.cursor.c
_CLAIMS_PER_PAGE: Final = 1_000  # appends to the topics of a page wait while the page is renewed
_DROP_DELAY_MS: Final = 60_000  # margin after a bucket's last delivery time, because clocks differ
_NEW_ROW: Final = {"version": 0, "sealed_ledger": EARLIEST.ledger_id, "sealed_entry": EARLIEST.entry_id, "unsealed": 0}


class DelayedIndex(CatalogAdapter):
    """Lists of index buckets. Every change checks and raises the list version."""

    @in_read_transaction
    def get_bucket_list(self, connection: Connection, topic_id: TopicId) -> IndexBucketList:
        """Return the topic's list of index buckets. For an unknown topic the list is empty."""
        row = connection.execute(select(t.delayed_index).where(_I.topic_id == topic_id)).first()
        return IndexBucketList() if row is None else _bucket_list_from_row(connection, row)

    @in_read_transaction
    def count_unsealed_entries(self, connection: Connection, topic_id: TopicId) -> UnsealedEntryCounts:
        """Count unsealed entries from the rows of segments, not from the stored count."""
        query = select(_I.sealed_ledger, _I.sealed_entry, _I.changed_us).where(_I.topic_id == topic_id)
        row = connection.execute(query).first()
        end = EARLIEST if row is None else Position(LedgerId(row.sealed_ledger), row.sealed_entry)
        position = [literal(value, t.Big) for value in (topic_id, end.ledger_id, end.entry_id)]
        counts = select(_count_delayed_entries_after(*position), _count_ledgers_after(*position))
        entries, ledgers = connection.execute(counts).one()
        changed_us = None if row is None else row.changed_us
        return UnsealedEntryCounts(entries=int(entries), ledgers=ledgers, changed_us=changed_us)

    @in_read_transaction
    def count_delayed_messages(self, connection: Connection) -> CatalogDelayedMessageCounts:
        """Return totals over all topics, from stored counts."""
        sealed = select(func.count(), func.coalesce(func.sum(_B.messages), 0))
        buckets, messages = connection.execute(sealed.select_from(t.delayed_bucket)).one()
        unsealed = connection.execute(select(func.coalesce(func.sum(_I.unsealed), 0))).scalar_one()
        return CatalogDelayedMessageCounts(buckets=buckets, messages=int(messages), unsealed=int(unsealed))

    @in_read_transaction
    def find_claim_holder(self, connection: Connection, topic_id: TopicId) -> str | None:
        """Return the id of the workflow that has a live claim on the topic's list of index buckets."""
        is_live = (_I.topic_id == topic_id, _I.claim_until_us > self._db.now_us(connection))
        return connection.execute(select(_I.claim_workflow).where(*is_live)).scalar_one_or_none()

    @in_read_transaction
    def list_topics_with_work(
        self, connection: Connection, limits: SealAndMergeLimits, *, after: TopicId, limit: int
    ) -> list[TopicId]:
        """Return unclaimed topics with ids above `after` that need a seal, a merge or a drop, ascending.

        An index bucket is dropped in three cases:

        1. All messages of the index bucket have been due for a minute.
        2. The topic has subscriptions, and all of them have acknowledged the range of the index bucket.
        3. All ledgers in the range of the index bucket were trimmed.
        """
        now_us = self._db.now_us(connection)
        is_active = exists().where(t.topic.c.topic_id == _I.topic_id, t.topic.c.state == TopicState.ACTIVE.value)
        is_unclaimed = or_(_I.claim_until_us.is_(None), _I.claim_until_us <= now_us)
        is_of_topic = _B.topic_id == _I.topic_id
        buckets = select(func.count()).select_from(t.delayed_bucket).where(is_of_topic).scalar_subquery()
        has_work = or_(
            _match_topics_to_seal(limits, now_us),
            literal(limits.buckets) < buckets,
            exists().where(is_of_topic, _match_droppable_buckets(now_us)),
        )
        topics = select(_I.topic_id).where(_I.topic_id > after, is_unclaimed, is_active, has_work)
        ids = connection.execute(topics.order_by(_I.topic_id).limit(limit)).scalars()
        return [TopicId(topic_id) for topic_id in ids]

    @in_read_transaction
    def list_droppable_buckets(self, connection: Connection, topic_id: TopicId) -> list[LedgerId]:
        """Return the topic's index buckets to drop, by the rule of `list_topics_with_work`, ascending by range."""
        is_droppable = _match_droppable_buckets(self._db.now_us(connection))
        query = select(_B.ledger_id).where(_B.topic_id == topic_id, is_droppable)
        bucket_ids = connection.execute(query.order_by(_B.first_ledger, _B.first_entry)).scalars()
        return [LedgerId(bucket_id) for bucket_id in bucket_ids]

    @in_write_transaction("catalog.claim_buckets")
    def claim_bucket_list(self, connection: Connection, topic_id: TopicId, claim: Claim) -> bool:
        """Claim a topic's list of index buckets, or renew the claim. Return whether the workflow has the claim now.

        The claim is refused if another workflow has a live claim, or if the topic does not exist or is not ACTIVE.
        Claims only avoid duplicate work. List versions decide which changes are published.
        """
        try:
            share_lock_active_topic(connection, topic_id)
        except (UnknownObject, PreconditionFailed):
            return False
        now_us = self._db.now_us(connection)
        connection.execute(build_insert_if_absent(connection, t.delayed_index).values(topic_id=topic_id, **_NEW_ROW))
        is_claimed = and_(
            _I.claim_workflow.is_not(None), _I.claim_workflow != claim.workflow_id, _I.claim_until_us > now_us
        )
        claimable = update(t.delayed_index).where(_I.topic_id == topic_id, ~is_claimed)
        return connection.execute(claimable.values(build_claim_columns(claim, now_us))).rowcount > 0

    def renew_claims(self, claim: Claim) -> int:
        """Renew all claims of the workflow in `claim`. Return the number of topics."""
        renewed, page = 0, [TopicId(-1)]
        while page:
            page = self._renew_page_of_claims(claim, after=page[-1])
            renewed += len(page)
        return renewed

    @in_write_transaction()
    def _renew_page_of_claims(self, connection: Connection, claim: Claim, *, after: TopicId) -> list[TopicId]:
        own = select(_I.topic_id).where(_I.claim_workflow == claim.workflow_id, _I.topic_id > after)
        page = connection.execute(own.order_by(_I.topic_id).limit(_CLAIMS_PER_PAGE).with_for_update()).scalars().all()
        renewed = update(t.delayed_index).where(is_one_of(connection, _I.topic_id, page))
        connection.execute(renewed.values(build_claim_columns(claim, self._db.now_us(connection))))
        return [TopicId(topic_id) for topic_id in page]

    @in_write_transaction("catalog.release_buckets")
    def release_claim(self, connection: Connection, topic_id: TopicId, workflow_id: str) -> None:
        own = update(t.delayed_index).where(_I.topic_id == topic_id, _I.claim_workflow == workflow_id)
        connection.execute(own.values(NO_CLAIM_COLUMNS))

    @in_write_transaction("catalog.switch_buckets")
    def switch_buckets(self, connection: Connection, switch: IndexBucketSwitch) -> bool:
        """Change the list in one transaction. Return whether the list has the change now, also after a repeated call.

        The ledgers of added index buckets become listed and CLOSED. For each removed ledger an intent is filed. The
        change is refused if the list version is not `expected`, if a removed index bucket is not listed, or if the
        topic is not ACTIVE. A refused change files intents for the ledgers of added index buckets. If index buckets
        would overlap or end after the sealed range, the method raises `InvalidInput` and changes nothing.
        """
        added_ids = [new.bucket.bucket_id for new in switch.added]
        try:
            topic = read_topic(connection, switch.topic_id, share_lock=True)
        except UnknownObject:
            for ledger_id in added_ids:
                reopen_newborn_intent(connection, ledger_id)
            return False
        list_id = lock_component_list(connection, switch.topic_id, Component.DELAYED_INDEX, {})
        row_by_id = {
            bucket_id: row
            for bucket_id in added_ids
            if (row := read_newborn_or_reopen_intent(connection, bucket_id, list_id)) is not None
        }
        current = _lock_bucket_list(connection, switch.topic_id)
        if current.includes_change(
            expected=switch.expected, removed=switch.removed, added=added_ids, sealed_to=switch.sealed_to
        ):
            return True
        now = self._db.now_us(connection)
        unlisted = [bucket_id for bucket_id, row in row_by_id.items() if row.place is None]
        listed = {bucket.bucket_id for bucket in current.buckets}
        is_successor = current.version == switch.expected and listed.issuperset(switch.removed)
        if not is_successor or len(unlisted) < len(added_ids) or topic.state is not TopicState.ACTIVE:
            replace_ledgers_by_intents(
                connection, is_one_of(connection, t.ledger.c.ledger_id, unlisted), batch_id="", now_us=now
            )
            return False
        buckets = [new.bucket for new in switch.added]
        # The result is not needed. The call raises `InvalidInput` if buckets overlap.
        current.next_version(removed=switch.removed, added=buckets, sealed_to=switch.sealed_to)
        _change_bucket_list(
            connection, switch.topic_id, removed=switch.removed, added=buckets, sealed_to=switch.sealed_to
        )
        for new in switch.added:
            row = row_by_id[new.bucket.bucket_id]
            publish_component_ledger(connection, row, size_bytes=new.size_bytes, sha256=new.sha256, now_us=now)
        _retire_buckets(connection, switch.removed, topic, switch.reason, now)
        return True

    @in_write_transaction("catalog.clear_buckets")
    def retire_all_buckets(self, connection: Connection, topic_id: TopicId, *, reason: str) -> int:
        """Remove all index buckets from the list and file intents for them. Return the number of removed index buckets.

        The sealed range is reset, so that the log is sealed again. The list version rises, so that the switches of
        running seals and merges are refused. A refused switch files intents for its newborn ledgers.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """
        topic = share_lock_active_topic(connection, topic_id)
        lock_component_list(connection, topic_id, Component.DELAYED_INDEX, {})
        removed = [bucket.bucket_id for bucket in _lock_bucket_list(connection, topic_id).buckets]
        _change_bucket_list(connection, topic_id, removed=removed, added=(), sealed_to=EARLIEST)
        _retire_buckets(connection, removed, topic, reason, self._db.now_us(connection))
        return len(removed)

    def now_ms(self) -> int:
        """Return the time of the catalog's clock, in milliseconds since 1970."""
        return self._db.read(self._db.now_us) // 1000


def _retire_buckets(
    connection: Connection, removed: Sequence[LedgerId], topic: Topic, reason: str, now_us: int
) -> None:
    for ledger_id in removed:
        retire_component_ledger(connection, ledger_id, topic, reason=reason, now_us=now_us)


def _lock_bucket_list(connection: Connection, topic_id: TopicId) -> IndexBucketList:
    """Lock the row of a list of index buckets. Insert a missing row. The caller has share-locked the topic."""
    connection.execute(build_insert_if_absent(connection, t.delayed_index).values(topic_id=topic_id, **_NEW_ROW))
    locked = select(t.delayed_index).where(_I.topic_id == topic_id).with_for_update()
    return _bucket_list_from_row(connection, connection.execute(locked).one())


def _bucket_list_from_row(connection: Connection, row: Row[Any]) -> IndexBucketList:
    ordered = select(t.delayed_bucket).where(_B.topic_id == row.topic_id).order_by(_B.first_ledger, _B.first_entry)
    return IndexBucketList(
        version=row.version,
        sealed_to=Position(LedgerId(row.sealed_ledger), row.sealed_entry),
        buckets=tuple(map(_bucket_from_row, connection.execute(ordered))),
    )


def _bucket_from_row(row: Row[Any]) -> IndexBucket:
    return dataclass_from_row(
        IndexBucket,
        row,
        bucket_id=LedgerId(row.ledger_id),
        first=Position(LedgerId(row.first_ledger), row.first_entry),
        last=Position(LedgerId(row.last_ledger), row.last_entry),
    )


def _change_bucket_list(
    connection: Connection,
    topic_id: TopicId,
    *,
    removed: Collection[LedgerId],
    added: Iterable[IndexBucket],
    sealed_to: Position | None,
) -> None:
    """Change a locked list and raise the list version. With `sealed_to`, count the unsealed entries again.

    A concurrent append waits for the lock of the row, and then adds its own messages to the count.
    """
    connection.execute(delete(t.delayed_bucket).where(is_one_of(connection, _B.ledger_id, removed)))
    rows = [_row_from_bucket(topic_id, bucket) for bucket in added]
    if rows:
        connection.execute(insert(t.delayed_bucket), rows)
    values: dict[str, Any] = {"version": _I.version + 1}
    if sealed_to is not None:
        end = {"sealed_ledger": sealed_to.ledger_id, "sealed_entry": sealed_to.entry_id}
        values |= end | {"unsealed": _select_unsealed_count(topic_id, *end.values())}
    connection.execute(update(t.delayed_index).where(_I.topic_id == topic_id).values(values))


def _row_from_bucket(topic_id: TopicId, bucket: IndexBucket) -> dict[str, int]:
    summary = {name: getattr(bucket, name) for name in ("messages", "segments", "first_ms", "last_ms")}
    ends = {
        "first_ledger": bucket.first.ledger_id,
        "first_entry": bucket.first.entry_id,
        "last_ledger": bucket.last.ledger_id,
        "last_entry": bucket.last.entry_id,
    }
    return {"ledger_id": bucket.bucket_id, "topic_id": topic_id, **ends, **summary}


def _select_unsealed_count(topic_id: TopicId, ledger: int, entry: int) -> ScalarSelect[int]:
    return _count_delayed_entries_after(*(literal(value, t.Big) for value in (topic_id, ledger, entry)))


def add_to_unsealed_counts(connection: Connection, delayed: Mapping[int, int]) -> None:
    """Add newly registered delayed messages to the topics' counts. The caller has share-locked the topics.

    Rows are locked in ascending order, after the ledgers that got the messages.
    """
    _compile_unsealed_increment(connection.dialect.name).execute(connection, delayed.items())


@cache
def _compile_unsealed_increment(dialect: str) -> BulkStatement:
    rows = build_bulk_parameter(dialect, "delayed", {"topic_id": BIG, "entries": BIG})
    new = {name: literal(value) for name, value in _NEW_ROW.items()} | {"unsealed": rows.source.c.entries}
    columns = {"topic_id": rows.source.c.topic_id, **new, "changed_us": DatabaseClock()}
    values = select(*columns.values()).where(true())  # without WHERE, SQLite parses ON CONFLICT as the ON of a join
    put = build_dialect_insert(dialect, t.delayed_index).from_select(list(columns), values)
    counted = {"unsealed": _I.unsealed + put.excluded.unsealed, "changed_us": put.excluded.changed_us}
    return BulkStatement(sql=put.on_conflict_do_update(index_elements=["topic_id"], set_=counted), rows=rows)


def recount_unsealed_entries(connection: Connection, topic_id: TopicId) -> None:
    """Count a topic's unsealed entries again. Lock the row of the list of index buckets."""
    has_unsealed = (_I.topic_id == topic_id, _I.unsealed > 0)
    row = connection.execute(select(_I.sealed_ledger, _I.sealed_entry).where(*has_unsealed).with_for_update()).first()
    if row is not None:
        recounted = update(t.delayed_index).where(_I.topic_id == topic_id)
        connection.execute(recounted.values(unsealed=_select_unsealed_count(topic_id, *row)))


def recount_unsealed_entries_of_all_topics(connection: Connection) -> None:
    """Count the unsealed entries of all topics again, in a catalog without other writers."""
    new = {name: literal(value) for name, value in _NEW_ROW.items()}
    in_log, _ = build_delayed_and_bucket_topic_queries()
    topics = select(in_log.subquery().c.topic_id, *new.values()).where(true())
    connection.execute(build_insert_if_absent(connection, t.delayed_index).from_select(["topic_id", *new], topics))
    unsealed = _count_delayed_entries_after(_I.topic_id, _I.sealed_ledger, _I.sealed_entry)
    connection.execute(update(t.delayed_index).values(unsealed=unsealed))
    without_time = update(t.delayed_index).where(_I.unsealed > 0, _I.changed_us.is_(None))
    connection.execute(without_time.values(changed_us=DatabaseClock()))


def clear_bucket_lists(connection: Connection, topic_ids: Collection[TopicId]) -> None:
    """Empty the lists of index buckets of topics. The caller then counts the unsealed entries again."""
    connection.execute(delete(t.delayed_bucket).where(is_one_of(connection, _B.topic_id, topic_ids)))
    reset = {name: value for name, value in _NEW_ROW.items() if name != "version"} | {"version": _I.version + 1}
    connection.execute(update(t.delayed_index).where(is_one_of(connection, _I.topic_id, topic_ids)).values(reset))


def remove_delayed_index(connection: Connection, topic_id: TopicId) -> int:
    removed = connection.execute(delete(t.delayed_bucket).where(_B.topic_id == topic_id)).rowcount
    connection.execute(delete(t.delayed_index).where(_I.topic_id == topic_id))
    return removed


def _match_topics_to_seal(limits: SealAndMergeLimits, now_us: int) -> ColumnElement[bool]:
    idle_since_us = now_us - round(limits.idle_s * 1_000_000)
    ledgers = _count_ledgers_after(_I.topic_id, _I.sealed_ledger, _I.sealed_entry)
    is_idle_or_long = or_(_I.changed_us <= idle_since_us, literal(limits.ledgers) <= ledgers)
    return or_(_I.unsealed >= limits.messages, and_(_I.unsealed > 0, is_idle_or_long))


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


def _count_delayed_entries_after(
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


def _count_ledgers_after(
    topic_id: ColumnElement[int], ledger: ColumnElement[int], entry: ColumnElement[int]
) -> ScalarSelect[int]:
    is_behind = or_(and_(_L.ledger_id > ledger, _L.entries > 0), and_(_L.ledger_id == ledger, _L.entries - 1 > entry))
    return (
        select(func.count(_L.ledger_id))
        .where(*_match_listed_message_ledgers(topic_id), _L.place >= ledger, is_behind)
        .scalar_subquery()
    )


def _match_listed_message_ledgers(topic_id: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
    """Select the topic's listed message ledgers. Callers filter by `place`, which equals the id and has an index."""
    lists = t.ledger_list.c
    return (
        lists.topic_id == topic_id,
        lists.component == Component.MANAGED_LEDGER.value,
        _L.list_id == lists.list_id,
        _L.place.is_not(None),
    )


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
