"""The `Adoption` port: a catalog that was loaded takes in what storage holds beyond its last flush."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import close_holes
from infra.catalog.cursors.cursor_rows import drop_snapshots as drop_cursors_snapshots
from infra.catalog.delayed.bucket_rows import clear_lists, recount_all_unsealed
from infra.catalog.deletion.intent_rows import move_to_batch
from infra.catalog.deletion.intents import keys_of
from infra.catalog.engine.database import CatalogAdapter, reads, writes
from infra.catalog.engine.dialects import among, dataclass_from_row
from infra.catalog.log.components import REFERRING_COLUMN_BY_COMPONENT
from infra.catalog.log.ledger_rows import close_followed_ledgers, remove_ledgers
from infra.catalog.log.schemas import remove_versions_where
from infra.catalog.records.adoption_rows import (
    absent_ledgers,
    counted,
    is_left,
    put_staged,
    removed_ledgers,
    sample,
    tell,
    topics_of,
    unsettled,
)
from infra.catalog.records.log_rows import end_adoption, is_adopting, state_of
from infra.catalog.records.settling import settle
from infra.catalog.transactions.snapshots import drop_snapshots
from logstore.deletion.intents import DeletionState
from logstore.errors import PreconditionFailed
from logstore.log.ledgers import SHARDS, Component, CopyKind, CopyState, LedgerOwner, LedgerState
from logstore.ports.catalog.rebuilding import (
    Absence,
    Adoptee,
    AdoptionReport,
    Fate,
    Issued,
    KnownLedger,
    StagedLedger,
)
from logstore.positions import LedgerId, TopicId
from logstore.records.kinds import RecordKind

_L, _S, _C, _P, _T = t.ledger.c, t.segment.c, t.ledger_copy.c, t.pending_deletion.c, t.tombstone.c
_OF_LIST: Final = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)


class SqlAdoption(CatalogAdapter):
    """The `Adoption` port."""

    @reads
    def issued(self, connection: Connection) -> Issued:
        """See `Adoption.issued`; nothing is given out before the catalog is READY."""
        _require_adopting(connection)
        state = state_of(connection, now_us=0)
        ids = state.next_ids
        return Issued(epoch=state.epoch, ledger=ids.ledger, topic=ids.topic, transaction=ids.transaction)

    @reads
    def is_adopting(self, connection: Connection) -> bool:
        """See `Adoption.is_adopting`."""
        return is_adopting(connection)

    def known(self, shard: int, *, after: LedgerId, limit: int) -> list[KnownLedger]:
        """See `Adoption.known`; a ledger whose topic or list is gone is not known."""
        return self._db.read(lambda connection: _known(connection, shard, after, limit))

    @reads
    def fates(self, connection: Connection, ledger_ids: Collection[LedgerId]) -> Mapping[LedgerId, Fate]:
        """See `Adoption.fates`."""
        filed = connection.execute(select(_P.ledger_id).where(among(connection, _P.ledger_id, ledger_ids)))
        buried = select(_T.id).where(_T.kind == RecordKind.LEDGER.value, among(connection, _T.id, ledger_ids))
        fates = dict.fromkeys(ledger_ids, Fate.UNKNOWN)
        fates |= {LedgerId(one): Fate.TOMBSTONED for one in connection.execute(buried).scalars()}
        return fates | {LedgerId(one): Fate.DETACHED for one in filed.scalars()}

    @reads
    def highest_id(self, connection: Connection) -> LedgerId:
        """See `Adoption.highest_id`."""
        given_out = select(t.catalog.c.next_ledger_id).scalar_subquery()
        columns = ((_L.ledger_id, ()), (_P.ledger_id, ()), (_T.id, (_T.kind == RecordKind.LEDGER.value,)))
        highest = [select(func.max(column)).where(column < given_out, *where) for column, where in columns]
        found = [connection.execute(one).scalar() for one in highest]
        return LedgerId(max((one for one in found if one is not None), default=-1))

    @writes()
    def stage(
        self,
        connection: Connection,
        shard: int,
        found: Sequence[StagedLedger],
        *,
        above: LedgerId,
        up_to: LedgerId | None = None,
    ) -> None:
        """See `Adoption.stage`."""
        _require_adopting(connection)
        put_staged(connection, shard, found, above=above, up_to=up_to)

    def absence(self) -> Absence:
        """See `Adoption.absence`."""
        return self._db.read(_absence)

    def unsettled(self, *, after: TopicId, limit: int) -> list[TopicId]:
        """See `Adoption.unsettled`."""
        return self._db.read(lambda connection: unsettled(connection, after=after, limit=limit))

    @writes()
    def settle(self, connection: Connection, topic_id: TopicId, *, rows_epoch: int) -> None:
        """See `Adoption.settle`."""
        _require_adopting(connection)
        settle(connection, topic_id, rows_epoch=rows_epoch, now_us=self._db.now_us(connection))

    @writes()
    def conclude(self, connection: Connection) -> None:
        """See `Adoption.conclude`; all in one transaction, because what one step leaves the next one looks at."""
        if not is_adopting(connection):
            return
        now = self._db.now_us(connection)
        _remove_revived(connection)
        _forget_absent_snapshots(connection)
        gone = remove_versions_where(connection, ~_is_listed(t.schema_version.c.ledger_id))
        tell(connection, gone, Adoptee.LEFT_OUT, over=True)
        _remove_unnamed(connection)
        close_followed_ledgers(connection, now_us=now)
        recount_all_unsealed(connection)
        # workflows that had them speak of another epoch, and one may still run under the next one's id
        move_to_batch(connection, _P.state == DeletionState.PENDING.value, batch_id="", again=1)

    def report(self) -> AdoptionReport:
        """See `Adoption.report`."""
        return self._db.read(_report)

    @writes()
    def finish(self, connection: Connection) -> None:
        """See `Adoption.finish`.

        Raises:
            PreconditionFailed: A topic is not settled.
        """
        if is_left(connection):
            raise PreconditionFailed("adoption: expected every topic to be settled, found one that is not")
        end_adoption(connection)


def _require_adopting(connection: Connection) -> None:
    if not is_adopting(connection):
        raise PreconditionFailed("adoption: expected a catalog that is being adopted, found one that is complete")


def _absence(connection: Connection) -> Absence:
    if not is_adopting(connection):
        return Absence()
    listed = select(func.count()).select_from(t.ledger).where(_L.place.is_not(None))
    ledgers = connection.execute(listed).scalar_one() + removed_ledgers(connection)
    return Absence(absent=absent_ledgers(connection), ledgers=ledgers)


def _known(connection: Connection, shard: int, after: LedgerId, limit: int) -> list[KnownLedger]:
    columns = (
        t.ledger,
        t.ledger_list.c.topic_id,
        t.ledger_list.c.component,
        t.ledger_list.c.owner.label("keys"),
        t.topic.c.name.label("topic"),
    )
    of_topic = _OF_LIST.join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
    page = select(*columns).select_from(of_topic).where(_L.ledger_id % SHARDS == shard, _L.ledger_id > after)
    rows = connection.execute(page.order_by(_L.ledger_id).limit(limit)).all()
    ids = [row.ledger_id for row in rows]
    segments: dict[int, list[int]] = defaultdict(list)
    numbers = select(_S.ledger_id, _S.number).where(among(connection, _S.ledger_id, ids))
    for ledger_id, number in connection.execute(numbers.order_by(_S.ledger_id, _S.number)):
        segments[ledger_id].append(number)
    copies = select(t.ledger_copy).where(among(connection, _C.ledger_id, ids), _C.state == CopyState.LIVE.value)
    standing = {(row.ledger_id, row.kind): row.context for row in connection.execute(copies)}
    return [
        dataclass_from_row(
            KnownLedger,
            row,
            component=Component(row.component),
            owner=LedgerOwner(
                application=row.application,
                component=Component(row.component),
                topic_id=TopicId(row.topic_id),
                topic=row.topic,
                keys=keys_of(row.keys),
            ),
            state=LedgerState(row.state),
            listed=row.place is not None,
            segments=tuple(segments[row.ledger_id]),
            primary=(row.ledger_id, CopyKind.LEDGER.value) in standing,
            tiered=standing.get((row.ledger_id, CopyKind.OFFLOADED_LEDGER.value)),
        )
        for row in rows
    ]


def _remove_revived(connection: Connection) -> None:
    """Remove ledgers that came back from an older version of their record. Their objects stay.

    Their list does not name them, or an intent of a later generation says so; where that is unfinished it goes on
    alone. Those whose topic or list is gone have no place at all.
    """
    later = and_(_P.ledger_id == _L.ledger_id, _P.generation > _L.generation)
    stray = and_(_L.place.is_(None), _L.state != LedgerState.CREATING.value)
    query = select(_L.ledger_id, t.ledger_list.c.topic_id)
    rows = connection.execute(query.select_from(_OF_LIST).where(or_(stray, exists().where(later)))).all()
    remove_ledgers(connection, among(connection, _L.ledger_id, {row.ledger_id for row in rows}))
    homeless = ~exists().where(t.ledger_list.c.list_id == _L.list_id)
    remove_ledgers(connection, homeless)
    topics: dict[TopicId, list[LedgerId]] = defaultdict(list)
    for row in rows:
        topics[TopicId(row.topic_id)].append(LedgerId(row.ledger_id))
    for topic_id, gone in topics.items():
        close_holes(connection, topic_id, gone)
    tell(connection, {one: topic_id for topic_id, gone in topics.items() for one in gone}, Adoptee.REVIVED)


def _gone(column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a row names a ledger that is in no list, or of which adoption has found nothing or not all."""
    found = and_(t.adoption.c.ledger_id == column, t.adoption.c.adoptee == Adoptee.MISSING.value)
    return and_(column.is_not(None), or_(~_is_listed(column), exists().where(found)))


def _is_listed(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return exists().where(_L.ledger_id == column, _L.place.is_not(None))


def _forget_absent_snapshots(connection: Connection) -> None:
    """Cursors go on with what their rows hold, buffers with the log, and an index is built anew from the log."""
    drop_cursors_snapshots(connection, _gone(t.cursor.c.snapshot_ledger))
    drop_snapshots(connection, _gone(t.transaction_snapshot.c.ledger_id))
    bucket = t.delayed_bucket.c
    topics = connection.execute(select(bucket.topic_id).where(_gone(bucket.ledger_id)).distinct()).scalars()
    clear_lists(connection, [TopicId(one) for one in topics])


def _remove_unnamed(connection: Connection) -> None:
    """Remove component ledgers that nothing names, and newborns: no process is creating any. Their objects stay."""
    component = t.ledger_list.c.component
    named = or_(
        *(
            and_(component == name, exists().where(column == _L.ledger_id))
            for name, column in REFERRING_COLUMN_BY_COMPONENT.items()
        )
    )
    stray = and_(component.in_(list(REFERRING_COLUMN_BY_COMPONENT)), ~named)
    newborn = and_(component == Component.MANAGED_LEDGER.value, _L.place.is_(None))
    query = select(_L.ledger_id, t.ledger_list.c.topic_id).select_from(_OF_LIST).where(or_(stray, newborn))
    topic_by_ledger = {LedgerId(row.ledger_id): TopicId(row.topic_id) for row in connection.execute(query)}
    remove_ledgers(connection, among(connection, _L.ledger_id, topic_by_ledger))
    tell(connection, topic_by_ledger, Adoptee.DETACHED)


def _report(connection: Connection) -> AdoptionReport:
    became = counted(connection)

    def ledgers(*kinds: Adoptee) -> int:
        return sum(became.get(kind, (0, 0))[0] for kind in kinds)

    return AdoptionReport(
        adopted_ledgers=ledgers(Adoptee.ADOPTED),
        adopted_segments=sum(segments for _, segments in became.values()),
        detached=ledgers(Adoptee.DETACHED),
        revived=ledgers(Adoptee.REVIVED),
        revived_ledgers=sample(connection, Adoptee.REVIVED),
        missing_data=ledgers(Adoptee.MISSING),
        missing_ledgers=sample(connection, Adoptee.MISSING),
        schemas_left_out=ledgers(Adoptee.LEFT_OUT),
        schemas_left_out_of=topics_of(connection, Adoptee.LEFT_OUT),
    )
