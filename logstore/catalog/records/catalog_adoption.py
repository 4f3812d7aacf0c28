"""Adoption in SQL: a rebuilt catalog gets the ledgers and segments that storage has but no flush contained."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select

from logstore.catalog import tables as t
from logstore.catalog.cursors.cursor_rows import forget_cursor_snapshots, move_cursors_past_removed_ledgers
from logstore.catalog.delayed.delayed_index import clear_bucket_lists, recount_unsealed_entries_of_all_topics
from logstore.catalog.deletion.intent_queries import parse_owner_keys
from logstore.catalog.deletion.intent_rows import move_intents_to_batch
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import dataclass_from_row, is_one_of
from logstore.catalog.log.component_ledgers import REFERRING_COLUMN_BY_COMPONENT, remove_schema_versions_where
from logstore.catalog.log.ledger_rows import close_followed_ledgers, remove_ledgers
from logstore.catalog.records.record_log_row import is_adopting, mark_adoption_complete, read_log_state
from logstore.catalog.records.topic_adoption import (
    adopt_staged_ledgers,
    replace_staged_ledgers,
    store_outcomes_of_unstaged_ledgers,
)
from logstore.catalog.transactions.buffer_snapshots import forget_buffer_snapshots
from logstore.deletion.intents import DeletionState
from logstore.errors import PreconditionFailed
from logstore.log.ledger_object_keys import SHARDS
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerState
from logstore.ports.catalog.records import (
    MAX_SAMPLE_ITEMS,
    AbsentLedgerCounts,
    AdoptionOutcome,
    IssuedIdBounds,
    LedgerDiscrepancy,
    LoadedLedger,
    MissingRowCause,
    StorageDiscrepancy,
)
from logstore.positions import LedgerId, TopicId
from logstore.records.job_results import RebuildAdoptionResult
from logstore.records.record_kinds import RecordKind

_A, _L, _S, _C, _P, _T = t.adoption.c, t.ledger.c, t.segment.c, t.ledger_copy.c, t.pending_deletion.c, t.tombstone.c
_LEDGERS_WITH_LIST: Final = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)


class CatalogAdoption(CatalogAdapter):
    """Adoption of uploads into a rebuilt catalog. Every method is idempotent."""

    @in_read_transaction
    def read_issued_ids(self, connection: Connection) -> IssuedIdBounds:
        """Return the bounds of issued ids. Raise `PreconditionFailed` if no adoption is in progress."""
        _require_adopting(connection)
        state = read_log_state(connection, now_us=0)
        ids = state.next_ids  # ceilings of the manifest, because no id is given out before the catalog is READY
        return IssuedIdBounds(epoch=state.epoch, ledger=ids.ledger, topic=ids.topic, transaction=ids.transaction)

    @in_read_transaction
    def is_adopting(self, connection: Connection) -> bool:
        return is_adopting(connection)

    @in_read_transaction
    def list_loaded_ledgers(
        self, connection: Connection, shard: int, *, after: LedgerId, limit: int
    ) -> list[LoadedLedger]:
        """Return loaded ledgers with id % 256 = `shard` and an id above `after`, ascending."""
        columns = (
            t.ledger,
            t.ledger_list.c.topic_id,
            t.ledger_list.c.component,
            t.ledger_list.c.owner.label("keys"),
            t.topic.c.name.label("topic"),
        )
        joined = _LEDGERS_WITH_LIST.join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
        page = select(*columns).select_from(joined).where(_L.ledger_id % SHARDS == shard, _L.ledger_id > after)
        rows = connection.execute(page.order_by(_L.ledger_id).limit(limit)).all()
        ids = [row.ledger_id for row in rows]
        numbers_by_ledger: dict[int, list[int]] = defaultdict(list)
        segments = select(_S.ledger_id, _S.number).where(is_one_of(connection, _S.ledger_id, ids))
        for ledger_id, number in connection.execute(segments.order_by(_S.ledger_id, _S.number)):
            numbers_by_ledger[ledger_id].append(number)
        copies = select(t.ledger_copy).where(is_one_of(connection, _C.ledger_id, ids), _C.state == CopyState.LIVE.value)
        context_by_copy = {(row.ledger_id, row.kind): row.context for row in connection.execute(copies)}
        return [
            dataclass_from_row(
                LoadedLedger,
                row,
                component=Component(row.component),
                owner=LedgerOwner(
                    application=row.application,
                    component=Component(row.component),
                    topic_id=TopicId(row.topic_id),
                    topic=row.topic,
                    keys=parse_owner_keys(row.keys),
                ),
                state=LedgerState(row.state),
                is_listed=row.place is not None,
                segments=tuple(numbers_by_ledger[row.ledger_id]),
                has_primary=(row.ledger_id, CopyKind.LEDGER.value) in context_by_copy,
                tiered_context=context_by_copy.get((row.ledger_id, CopyKind.OFFLOADED_LEDGER.value)),
            )
            for row in rows
        ]

    @in_read_transaction
    def find_missing_row_causes(
        self, connection: Connection, ledger_ids: Collection[LedgerId]
    ) -> Mapping[LedgerId, MissingRowCause]:
        detached = select(_P.ledger_id).where(is_one_of(connection, _P.ledger_id, ledger_ids))
        tombstoned = select(_T.id).where(_T.kind == RecordKind.LEDGER.value, is_one_of(connection, _T.id, ledger_ids))
        cause_by_ledger = dict.fromkeys(ledger_ids, MissingRowCause.UNKNOWN)
        for query, cause in ((tombstoned, MissingRowCause.TOMBSTONED), (detached, MissingRowCause.DETACHED)):
            cause_by_ledger |= {LedgerId(ledger_id): cause for ledger_id in connection.execute(query).scalars()}
        return cause_by_ledger

    @in_read_transaction
    def highest_ledger_id(self, connection: Connection) -> LedgerId:
        """Return the highest ledger id of all ledgers, intents and tombstones, or -1. Ignore ids above the ceiling."""
        next_id = select(t.catalog.c.next_ledger_id).scalar_subquery()
        columns = ((_L.ledger_id, ()), (_P.ledger_id, ()), (_T.id, (_T.kind == RecordKind.LEDGER.value,)))
        queries = [select(func.max(column)).where(column < next_id, *where) for column, where in columns]
        highest_ids = [connection.execute(query).scalar() for query in queries]
        return LedgerId(max((ledger_id for ledger_id in highest_ids if ledger_id is not None), default=-1))

    @in_write_transaction()
    def save_ledger_discrepancies(
        self,
        connection: Connection,
        shard: int,
        ledgers: Sequence[LedgerDiscrepancy],
        *,
        above: LedgerId,
        up_to: LedgerId | None = None,
    ) -> None:
        """Replace the saved differences in a part of a shard (0 to 255). Differences of settled topics stay.

        The part begins after `above` and ends with `up_to`, inclusive. If `up_to` is `None`, the part ends with the
        shard. `ledgers` are all differences in this part.
        """
        _require_adopting(connection)
        replace_staged_ledgers(connection, shard, ledgers, above_id=above, up_to_id=up_to)

    @in_read_transaction
    def count_absent_ledgers(self, connection: Connection) -> AbsentLedgerCounts:
        """Count listed ledgers, and those with the saved difference ABSENT. In a READY catalog all counts are zero."""
        if not is_adopting(connection):
            return AbsentLedgerCounts()
        had_row = _A.standing.not_in([StorageDiscrepancy.STRANGER.value, StorageDiscrepancy.ENDED.value])
        is_settled = and_(_A.adoptee.is_not(None), _A.adoptee != AdoptionOutcome.LEFT_OUT.value)
        is_removed = ~exists().where(_L.ledger_id == _A.ledger_id)
        absent, listed, removed = (
            connection.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one()
            for table, conditions in (
                (t.adoption, (_A.standing == StorageDiscrepancy.ABSENT.value,)),
                (t.ledger, (_L.place.is_not(None),)),
                (t.adoption, (had_row, is_settled, is_removed)),  # ledgers whose rows adoption has removed
            )
        )
        return AbsentLedgerCounts(absent_ledgers=absent, total_ledgers=listed + removed)

    @in_read_transaction
    def list_unsettled_topics(self, connection: Connection, *, after: TopicId, limit: int) -> list[TopicId]:
        """Return topics with saved differences that are not settled, ascending."""
        page = select(_A.topic_id).where(_A.adoptee.is_(None), _A.topic_id > after).distinct()
        return [TopicId(topic_id) for topic_id in connection.execute(page.order_by(_A.topic_id).limit(limit)).scalars()]

    @in_write_transaction()
    def settle_topic(self, connection: Connection, topic_id: TopicId, *, rows_epoch: int) -> None:
        """Adopt the topic's ledgers with saved differences, in one transaction. The call takes a few MB of memory.

        `logstore.records.adoption_rule` decides which uploads are registered. If that rule registers an upload of a
        ledger without a row, the ledger is added to the topic's list. If the topic has no row, the topic is created. No
        intent is filed. Objects of ledgers that have no row after the call stay until a reconciliation reports them.

        `rows_epoch` is the epoch of the loaded rows. Each upload of an earlier epoch was registered or refused before
        these rows were flushed.
        """
        _require_adopting(connection)
        adopt_staged_ledgers(connection, topic_id, rows_epoch=rows_epoch, now_us=self._db.now_us(connection))

    @in_write_transaction()
    def settle_remaining_rows(self, connection: Connection) -> None:
        """Correct, in all topics, the rows that need no comparison with storage.

        1. Remove ledgers that have left their list or have an intent of a later generation. File no intent.
        2. Close all ledgers of a list except the last ledger.
        3. Count entries with a delivery time.
        4. Remove references to ledgers without objects.
        5. Remove schema versions without a ledger, because such schema versions can be neither read nor set again.
        6. Set the catalog's epoch in unfinished intents.

        All steps are one transaction, because each change reads the rows that the earlier changes left.
        """
        if not is_adopting(connection):
            return
        now_us = self._db.now_us(connection)
        _remove_unlisted_or_detached_ledgers(connection)
        _forget_lost_snapshots(connection)
        schema_ledgers = remove_schema_versions_where(connection, ~_is_listed(t.schema_version.c.ledger_id))
        store_outcomes_of_unstaged_ledgers(connection, schema_ledgers, AdoptionOutcome.LEFT_OUT, overwrite=True)
        _remove_newborn_and_unreferenced_ledgers(connection)
        close_followed_ledgers(connection, now_us=now_us)
        recount_unsealed_entries_of_all_topics(connection)
        # Workflows of the old epoch may still run for these intents. So each intent gets a new workflow id.
        move_intents_to_batch(connection, _P.state == DeletionState.PENDING.value, batch_id="", added_openings=1)

    @in_read_transaction
    def count_outcomes(self, connection: Connection) -> RebuildAdoptionResult:
        query = select(_A.adoptee, func.count().label("ledgers"), func.sum(_A.segments).label("segments"))
        rows = connection.execute(query.where(_A.adoptee.is_not(None)).group_by(_A.adoptee)).all()
        ledgers_by_outcome = dict.fromkeys(AdoptionOutcome, 0) | {
            AdoptionOutcome(row.adoptee): row.ledgers for row in rows
        }
        left_out = t.topic.join(t.adoption, _A.topic_id == t.topic.c.topic_id)
        topic_names = select(t.topic.c.name).select_from(left_out).where(_A.adoptee == AdoptionOutcome.LEFT_OUT.value)
        topic_names = topic_names.distinct().order_by(t.topic.c.name).limit(MAX_SAMPLE_ITEMS)
        return RebuildAdoptionResult(
            adopted_ledgers=ledgers_by_outcome[AdoptionOutcome.ADOPTED],
            adopted_segments=sum(int(row.segments) for row in rows),
            detached=ledgers_by_outcome[AdoptionOutcome.DETACHED],
            revived=ledgers_by_outcome[AdoptionOutcome.REVIVED],
            revived_ledgers=_sample_ledger_ids(connection, AdoptionOutcome.REVIVED),
            missing_data=ledgers_by_outcome[AdoptionOutcome.MISSING],
            missing_ledgers=_sample_ledger_ids(connection, AdoptionOutcome.MISSING),
            schemas_left_out=ledgers_by_outcome[AdoptionOutcome.LEFT_OUT],
            schemas_left_out_of=list(connection.execute(topic_names).scalars()),
        )

    @in_write_transaction()
    def make_catalog_ready(self, connection: Connection) -> None:
        if connection.execute(select(exists().where(_A.adoptee.is_(None)))).scalar():
            raise PreconditionFailed("adoption: expected every topic to be settled, found one that is not")
        mark_adoption_complete(connection)


def _require_adopting(connection: Connection) -> None:
    if not is_adopting(connection):
        raise PreconditionFailed("adoption: expected a catalog that is being adopted, found one that is complete")


def _remove_unlisted_or_detached_ledgers(connection: Connection) -> None:
    """Remove ledgers that lost list or place, or have an intent of a higher generation. Objects stay in storage."""
    is_superseded = exists().where(_P.ledger_id == _L.ledger_id, _P.generation > _L.generation)
    is_unlisted = and_(_L.place.is_(None), _L.state != LedgerState.CREATING.value)
    query = select(_L.ledger_id, t.ledger_list.c.topic_id)
    rows = connection.execute(query.select_from(_LEDGERS_WITH_LIST).where(or_(is_unlisted, is_superseded))).all()
    topic_by_ledger = {LedgerId(row.ledger_id): TopicId(row.topic_id) for row in rows}
    remove_ledgers(connection, is_one_of(connection, _L.ledger_id, topic_by_ledger))
    remove_ledgers(connection, ~exists().where(t.ledger_list.c.list_id == _L.list_id))
    ledgers_by_topic: dict[TopicId, list[LedgerId]] = defaultdict(list)
    for ledger_id, topic_id in topic_by_ledger.items():
        ledgers_by_topic[topic_id].append(ledger_id)
    for topic_id, ledger_ids in ledgers_by_topic.items():
        move_cursors_past_removed_ledgers(connection, topic_id, ledger_ids)
    store_outcomes_of_unstaged_ledgers(connection, topic_by_ledger, AdoptionOutcome.REVIVED)


def _match_lost_references(column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Select rows that refer to a ledger without a place or without objects."""
    is_missing = exists().where(t.adoption.c.ledger_id == column, t.adoption.c.adoptee == AdoptionOutcome.MISSING.value)
    return and_(column.is_not(None), or_(~_is_listed(column), is_missing))


def _is_listed(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return exists().where(_L.ledger_id == column, _L.place.is_not(None))


def _forget_lost_snapshots(connection: Connection) -> None:
    """Remove references to lost snapshots. Cursors, buffers and delayed indexes work without these snapshots."""
    forget_cursor_snapshots(connection, _match_lost_references(t.cursor.c.snapshot_ledger))
    forget_buffer_snapshots(connection, _match_lost_references(t.transaction_snapshot.c.ledger_id))
    bucket = t.delayed_bucket.c
    topic_ids = connection.execute(
        select(bucket.topic_id).where(_match_lost_references(bucket.ledger_id)).distinct()
    ).scalars()
    clear_bucket_lists(connection, [TopicId(topic_id) for topic_id in topic_ids])


def _remove_newborn_and_unreferenced_ledgers(connection: Connection) -> None:
    """Remove newborn ledgers, and component ledgers to which no row refers. Objects stay in storage."""
    component = t.ledger_list.c.component
    is_named = or_(
        *(
            and_(component == name, exists().where(column == _L.ledger_id))
            for name, column in REFERRING_COLUMN_BY_COMPONENT.items()
        )
    )
    is_unnamed = and_(component.in_(list(REFERRING_COLUMN_BY_COMPONENT)), ~is_named)
    is_newborn = and_(component == Component.MANAGED_LEDGER.value, _L.place.is_(None))
    query = select(_L.ledger_id, t.ledger_list.c.topic_id).select_from(_LEDGERS_WITH_LIST)
    rows = connection.execute(query.where(or_(is_unnamed, is_newborn)))
    topic_by_ledger = {LedgerId(row.ledger_id): TopicId(row.topic_id) for row in rows}
    remove_ledgers(connection, is_one_of(connection, _L.ledger_id, topic_by_ledger))
    store_outcomes_of_unstaged_ledgers(connection, topic_by_ledger, AdoptionOutcome.DETACHED)


def _sample_ledger_ids(connection: Connection, outcome: AdoptionOutcome) -> list[int]:
    page = select(_A.ledger_id).where(_A.adoptee == outcome.value).order_by(_A.ledger_id).limit(MAX_SAMPLE_ITEMS)
    return list(connection.execute(page).scalars())
