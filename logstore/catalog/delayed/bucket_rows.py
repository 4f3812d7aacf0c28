"""Sole writer of `delayed_index` and `delayed_bucket`. Unsealed entries are delayed messages in no index bucket.

Lock order: topic, ledger list, ledgers, row of the list of index buckets, cursors. Each change of a list of index
buckets locks the list's row until the SQL transaction ends.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Row, ScalarSelect, and_, delete, insert, literal, select, true, update

from logstore.catalog import tables as t
from logstore.catalog.delayed.index_work_queries import (
    build_delayed_and_bucket_topic_queries,
    count_delayed_entries_after,
)
from logstore.catalog.deletion.run_rows import NO_CLAIM_COLUMNS, build_claim_columns
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
from logstore.delayed.index_buckets import IndexBucket, IndexBucketList
from logstore.ports.catalog.deletion import Claim
from logstore.positions import EARLIEST, LedgerId, Position, TopicId

_I, _B = t.delayed_index.c, t.delayed_bucket.c
_CLAIMS_PER_PAGE: Final = 1_000  # appends to the topics of a page wait while the page is renewed
_NEW_ROW: Final = {"version": 0, "sealed_ledger": EARLIEST.ledger_id, "sealed_entry": EARLIEST.entry_id, "unsealed": 0}


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


def read_bucket_list(connection: Connection, topic_id: TopicId) -> IndexBucketList:
    row = connection.execute(select(t.delayed_index).where(_I.topic_id == topic_id)).first()
    return IndexBucketList() if row is None else _bucket_list_from_row(connection, row)


def lock_bucket_list(connection: Connection, topic_id: TopicId) -> IndexBucketList:
    """Lock the row of a list of index buckets. Insert a missing row. The caller has share-locked the topic."""
    connection.execute(build_insert_if_absent(connection, t.delayed_index).values(topic_id=topic_id, **_NEW_ROW))
    locked = select(t.delayed_index).where(_I.topic_id == topic_id).with_for_update()
    return _bucket_list_from_row(connection, connection.execute(locked).one())


def _bucket_list_from_row(connection: Connection, row: Row[Any]) -> IndexBucketList:
    ordered = select(t.delayed_bucket).where(_B.topic_id == row.topic_id).order_by(_B.first_ledger, _B.first_entry)
    return IndexBucketList(
        version=row.version,
        sealed_to=Position(LedgerId(row.sealed_ledger), row.sealed_entry),
        buckets=tuple(map(bucket_from_row, connection.execute(ordered))),
    )


def bucket_from_row(row: Row[Any]) -> IndexBucket:
    return dataclass_from_row(
        IndexBucket,
        row,
        bucket_id=LedgerId(row.ledger_id),
        first=Position(LedgerId(row.first_ledger), row.first_entry),
        last=Position(LedgerId(row.last_ledger), row.last_entry),
    )


def change_bucket_list(
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
    unsealed = count_delayed_entries_after(_I.topic_id, _I.sealed_ledger, _I.sealed_entry)
    connection.execute(update(t.delayed_index).values(unsealed=unsealed))
    without_time = update(t.delayed_index).where(_I.unsealed > 0, _I.changed_us.is_(None))
    connection.execute(without_time.values(changed_us=DatabaseClock()))


def clear_bucket_lists(connection: Connection, topic_ids: Collection[TopicId]) -> None:
    """Empty the lists of index buckets of topics. The caller then counts the unsealed entries again."""
    connection.execute(delete(t.delayed_bucket).where(is_one_of(connection, _B.topic_id, topic_ids)))
    reset = {name: value for name, value in _NEW_ROW.items() if name != "version"} | {"version": _I.version + 1}
    connection.execute(update(t.delayed_index).where(is_one_of(connection, _I.topic_id, topic_ids)).values(reset))


def _select_unsealed_count(topic_id: TopicId, ledger: int, entry: int) -> ScalarSelect[int]:
    return count_delayed_entries_after(*(literal(value, t.Big) for value in (topic_id, ledger, entry)))


def _row_from_bucket(topic_id: TopicId, bucket: IndexBucket) -> dict[str, int]:
    summary = {name: getattr(bucket, name) for name in ("messages", "segments", "first_ms", "last_ms")}
    ends = {
        "first_ledger": bucket.first.ledger_id,
        "first_entry": bucket.first.entry_id,
        "last_ledger": bucket.last.ledger_id,
        "last_entry": bucket.last.entry_id,
    }
    return {"ledger_id": bucket.bucket_id, "topic_id": topic_id, **ends, **summary}


def claim_bucket_list(connection: Connection, topic_id: TopicId, claim: Claim, *, now_us: int) -> bool:
    connection.execute(build_insert_if_absent(connection, t.delayed_index).values(topic_id=topic_id, **_NEW_ROW))
    is_claimed = and_(
        _I.claim_workflow.is_not(None), _I.claim_workflow != claim.workflow_id, _I.claim_until_us > now_us
    )
    claimable = update(t.delayed_index).where(_I.topic_id == topic_id, ~is_claimed)
    return connection.execute(claimable.values(build_claim_columns(claim, now_us))).rowcount > 0


def renew_bucket_list_claims(connection: Connection, claim: Claim, *, after: TopicId, now_us: int) -> list[TopicId]:
    """Renew the claims of the workflow in `claim` on a page of topics above `after`. Return the topics, ascending."""
    own = select(_I.topic_id).where(_I.claim_workflow == claim.workflow_id, _I.topic_id > after)
    page = connection.execute(own.order_by(_I.topic_id).limit(_CLAIMS_PER_PAGE).with_for_update()).scalars().all()
    renewed = update(t.delayed_index).where(is_one_of(connection, _I.topic_id, page))
    connection.execute(renewed.values(build_claim_columns(claim, now_us)))
    return [TopicId(topic_id) for topic_id in page]


def find_bucket_list_holder(connection: Connection, topic_id: TopicId, *, now_us: int) -> str | None:
    live = select(_I.claim_workflow).where(_I.topic_id == topic_id, _I.claim_until_us > now_us)
    return connection.execute(live).scalar_one_or_none()


def release_bucket_list_claim(connection: Connection, topic_id: TopicId, workflow_id: str) -> None:
    own = update(t.delayed_index).where(_I.topic_id == topic_id, _I.claim_workflow == workflow_id)
    connection.execute(own.values(NO_CLAIM_COLUMNS))


def remove_delayed_index(connection: Connection, topic_id: TopicId) -> int:
    removed = connection.execute(delete(t.delayed_bucket).where(_B.topic_id == topic_id)).rowcount
    connection.execute(delete(t.delayed_index).where(_I.topic_id == topic_id))
    return removed
