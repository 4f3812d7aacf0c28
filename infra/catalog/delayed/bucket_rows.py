"""Rows of lists of buckets, and of buckets: nothing else writes `delayed_index` and `delayed_bucket`.

Their locks come behind those of topic, list and ledgers, and are held by what changes a list until its end.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Row, ScalarSelect, and_, delete, insert, literal, select, true, update

from infra.catalog import tables as t
from infra.catalog.delayed.due import count_entries_behind, delayed_sizes
from infra.catalog.deletion.runs import UNCLAIMED, claim_columns
from infra.catalog.engine.dialects import (
    BIG,
    DatabaseClock,
    Statement,
    among,
    bulk_parameter,
    dataclass_from_row,
    dialect_insert,
    insert_if_absent,
)
from logstore.delayed.buckets import Bucket, BucketList
from logstore.ports.catalog import Claim
from logstore.positions import EARLIEST, LedgerId, Position, TopicId

_I, _B = t.delayed_index.c, t.delayed_bucket.c
_PAGE: Final = 1_000  # of claims: appends to these topics wait while they are renewed
_NEW: Final = {"version": 0, "sealed_ledger": EARLIEST.ledger_id, "sealed_entry": EARLIEST.entry_id, "unsealed": 0}


def count_delayed(connection: Connection, delayed: Mapping[int, int]) -> None:
    """Count entries with a delivery time that were just registered in topics, which are share-locked.

    One statement for all topics; their rows are locked ascending, behind the ledgers that grew.
    """
    _counting(connection.dialect.name).execute(connection, delayed.items())


@cache
def _counting(dialect: str) -> Statement:
    rows = bulk_parameter(dialect, "delayed", {"topic_id": BIG, "entries": BIG})
    new = {name: literal(value) for name, value in _NEW.items()} | {"unsealed": rows.source.c.entries}
    columns = {"topic_id": rows.source.c.topic_id, **new, "changed_us": DatabaseClock()}
    picked = select(*columns.values()).where(true())  # without it SQLite reads ON as a join's
    put = dialect_insert(dialect, t.delayed_index).from_select(list(columns), picked)
    counted = {"unsealed": _I.unsealed + put.excluded.unsealed, "changed_us": put.excluded.changed_us}
    return Statement(sql=put.on_conflict_do_update(index_elements=["topic_id"], set_=counted), rows=rows)


def read_list(connection: Connection, topic_id: TopicId) -> BucketList:
    """The topic's list; an empty one where there is no row."""
    row = connection.execute(select(t.delayed_index).where(_I.topic_id == topic_id)).first()
    return BucketList() if row is None else _list_of(connection, row)


def lock_list(connection: Connection, topic_id: TopicId) -> BucketList:
    """The list, locked, with a row of its own from now on; the topic is share-locked."""
    connection.execute(insert_if_absent(connection, t.delayed_index).values(topic_id=topic_id, **_NEW))
    locked = select(t.delayed_index).where(_I.topic_id == topic_id).with_for_update()
    return _list_of(connection, connection.execute(locked).one())


def _list_of(connection: Connection, row: Row[Any]) -> BucketList:
    ordered = select(t.delayed_bucket).where(_B.topic_id == row.topic_id).order_by(_B.first_ledger, _B.first_entry)
    return BucketList(
        version=row.version,
        sealed_to=Position(LedgerId(row.sealed_ledger), row.sealed_entry),
        buckets=tuple(to_bucket(one) for one in connection.execute(ordered)),
    )


def to_bucket(row: Row[Any]) -> Bucket:
    """A row of `delayed_bucket` as a value."""
    return dataclass_from_row(
        Bucket,
        row,
        bucket_id=LedgerId(row.ledger_id),
        first=Position(LedgerId(row.first_ledger), row.first_entry),
        last=Position(LedgerId(row.last_ledger), row.last_entry),
    )


def change_list(
    connection: Connection,
    topic_id: TopicId,
    *,
    gone: Collection[LedgerId],
    born: Iterable[Bucket],
    sealed_to: Position | None,
) -> None:
    """Change a list that is locked: its version rises, and what is behind `sealed_to` is counted anew.

    An append whose entries are not visible here waits for the row, and counts them after us.
    """
    connection.execute(delete(t.delayed_bucket).where(among(connection, _B.ledger_id, gone)))
    rows = [_row_of(topic_id, one) for one in born]
    if rows:
        connection.execute(insert(t.delayed_bucket), rows)
    values: dict[str, Any] = {"version": _I.version + 1}
    if sealed_to is not None:
        end = {"sealed_ledger": sealed_to.ledger_id, "sealed_entry": sealed_to.entry_id}
        values |= end | {"unsealed": _counted(topic_id, *end.values())}
    connection.execute(update(t.delayed_index).where(_I.topic_id == topic_id).values(values))


def recount_unsealed(connection: Connection, topic_id: TopicId) -> None:
    """Count anew what is behind the end of a topic's list, if anything was: ledgers have left the topic.

    The row is locked, behind the ledgers and before cursors, as a group commit locks it.
    """
    some = (_I.topic_id == topic_id, _I.unsealed > 0)
    row = connection.execute(select(_I.sealed_ledger, _I.sealed_entry).where(*some).with_for_update()).first()
    if row is not None:
        counted = update(t.delayed_index).where(_I.topic_id == topic_id)
        connection.execute(counted.values(unsealed=_counted(topic_id, *row)))


def recount_all_unsealed(connection: Connection) -> None:
    """Count anew what is behind the end of each list, of all topics: of a catalog that no other process writes to."""
    new = {name: literal(value) for name, value in _NEW.items()}
    in_log, _ = delayed_sizes()
    topics = select(in_log.subquery().c.topic_id, *new.values()).where(true())
    made = insert_if_absent(connection, t.delayed_index).from_select(["topic_id", *new], topics)
    connection.execute(made)
    behind = count_entries_behind(_I.topic_id, _I.sealed_ledger, _I.sealed_entry)
    connection.execute(update(t.delayed_index).values(unsealed=behind))
    waiting = update(t.delayed_index).where(_I.unsealed > 0, _I.changed_us.is_(None))
    connection.execute(waiting.values(changed_us=DatabaseClock()))


def clear_lists(connection: Connection, topic_ids: Collection[TopicId]) -> None:
    """Let lists name no bucket and begin anew, because the snapshot of a bucket is gone: the log has it all."""
    connection.execute(delete(t.delayed_bucket).where(among(connection, _B.topic_id, topic_ids)))
    begun = {name: value for name, value in _NEW.items() if name != "version"} | {"version": _I.version + 1}
    mine = among(connection, _I.topic_id, topic_ids)
    connection.execute(update(t.delayed_index).where(mine).values(begun))


def _counted(topic_id: TopicId, ledger: int, entry: int) -> ScalarSelect[int]:
    return count_entries_behind(*(literal(one, t.Big) for one in (topic_id, ledger, entry)))


def _row_of(topic_id: TopicId, bucket: Bucket) -> dict[str, int]:
    same = {name: getattr(bucket, name) for name in ("messages", "segments", "first_ms", "last_ms")}
    ends = {
        "first_ledger": bucket.first.ledger_id,
        "first_entry": bucket.first.entry_id,
        "last_ledger": bucket.last.ledger_id,
        "last_entry": bucket.last.entry_id,
    }
    return {"ledger_id": bucket.bucket_id, "topic_id": topic_id, **ends, **same}


def claim_list(connection: Connection, topic_id: TopicId, claim: Claim, *, now_us: int) -> bool:
    """Claim a topic's list, or hold it further; False where another workflow's claim is alive."""
    connection.execute(insert_if_absent(connection, t.delayed_index).values(topic_id=topic_id, **_NEW))
    live = and_(_I.claim_workflow.is_not(None), _I.claim_workflow != claim.workflow_id, _I.claim_until_us > now_us)
    free = update(t.delayed_index).where(_I.topic_id == topic_id, ~live)
    return connection.execute(free.values(claim_columns(claim, now_us))).rowcount > 0


def renew_claims(connection: Connection, claim: Claim, *, after: TopicId, now_us: int) -> list[TopicId]:
    """Renew a page of a workflow's claims, of topics above `after`; rows are locked ascending, as appends lock them."""
    mine = select(_I.topic_id).where(_I.claim_workflow == claim.workflow_id, _I.topic_id > after)
    page = connection.execute(mine.order_by(_I.topic_id).limit(_PAGE).with_for_update()).scalars().all()
    these = update(t.delayed_index).where(among(connection, _I.topic_id, page))
    connection.execute(these.values(claim_columns(claim, now_us)))
    return [TopicId(one) for one in page]


def find_holder(connection: Connection, topic_id: TopicId, *, now_us: int) -> str | None:
    """The workflow whose claim of a topic's list is alive."""
    alive = select(_I.claim_workflow).where(_I.topic_id == topic_id, _I.claim_until_us > now_us)
    return connection.execute(alive).scalar_one_or_none()


def release_claim(connection: Connection, topic_id: TopicId, workflow_id: str) -> None:
    """End a workflow's claim of a topic's list, if it is that one's."""
    mine = update(t.delayed_index).where(_I.topic_id == topic_id, _I.claim_workflow == workflow_id)
    connection.execute(mine.values(UNCLAIMED))


def remove_index(connection: Connection, topic_id: TopicId) -> int:
    """Remove the list of a topic that is being deleted, and return how many buckets it had."""
    removed = connection.execute(delete(t.delayed_bucket).where(_B.topic_id == topic_id)).rowcount
    connection.execute(delete(t.delayed_index).where(_I.topic_id == topic_id))
    return removed
