"""Phase one in SQL: one transaction locks the list, selects ledgers, and replaces these ledgers by intents.

So a detached ledger has an intent as soon as it is in no list.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sqlalchemy import ColumnElement, Connection, case, exists, func, or_, select

from logstore.catalog import tables as t
from logstore.catalog.cursors.cursor_rows import read_mark_delete_positions
from logstore.catalog.deletion import topic_deletion
from logstore.catalog.deletion.detach_selection import TopicListView, recheck_chosen_ledgers, select_ledgers_to_detach
from logstore.catalog.deletion.list_detaching import (
    DetachOrder,
    detach_ledgers,
    detach_tiered_copy,
    evaluate_compound_operation,
    fingerprint_compound_operation,
)
from logstore.catalog.deletion.run_rows import (
    fingerprint_request,
    insert_batch_run,
    lock_then_find_earlier_detach,
    match_stalled_intents,
)
from logstore.catalog.engine.database import Database, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.ledger_rows import read_last_ledger_id, read_message_list_id
from logstore.catalog.log.topics import read_topic
from logstore.catalog.ownership.fences import LeaseBoundAdapter, lock_fence_of_lease
from logstore.deletion.intents import DeletionState
from logstore.errors import UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import Component, LedgerState
from logstore.ports.catalog.deletion import (
    AuditCause,
    Claim,
    DetachChosenResult,
    DetachedBatch,
    IntentTally,
    TopicContentCounts,
)
from logstore.ports.catalog.log import Ledger
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstone_rules import CompoundOperation, EndingOperation

_P = t.pending_deletion.c
_MANY_TOPICS: Final = "trim-topics"
_CHOSEN: Final = "chosen one by one"


class PhaseOne(LeaseBoundAdapter):
    """Phase one for ledgers of a topic, for many topics in one batch, and for a whole topic.

    Under an outdated lease, `detach_ledgers` and `apply_compound_operation` raise `NotOwner` and change nothing.

    `durable` says whether detached ledgers leave tombstones. `None` selects the topic's setting. If the topic has no
    setting, only requested deletions leave tombstones, and detaches by retention leave none.

    Idempotency: `detach_ledgers`, `apply_compound_operation` and `detach_whole_topic` are keyed by `batch_id`. A
    repeated call returns the first result.
    """

    def __init__(self, database: Database, *, registration_timeout_s: float) -> None:
        super().__init__(database)
        self._newborn_us = int(registration_timeout_s * 1_000_000)

    def preview_detach(
        self,
        topic_id: TopicId,
        requested_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        rolled: LedgerId | None = None,
    ) -> list[LedgerId]:
        """Return the ledgers that `detach_ledgers` would detach now. Nothing changes.

        The preview treats `rolled`, the last ledger of the list, as closed and followed by another ledger.

        Raises:
            UnknownObject, LedgerStillNeeded: The errors of `detach_ledgers`.
        """

        def read(connection: Connection) -> list[LedgerId]:
            view = self._read_list_view(connection, topic_id, lock=False)
            return list(
                select_ledgers_to_detach(connection, view, requested_ids, force=force, ledger_assumed_rolled=rolled).ids
            )

        return self._db.read(read)

    def detach_ledgers(
        self,
        topic_id: TopicId,
        requested_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """Take ledgers out of their list and file an intent for each copy.

        The call locks the list's row, checks under this lock which ledgers are needed, and raises the list version.

        - With `requested_ids`, either all of these ledgers are detached or none. `force` also detaches ledgers that
          subscriptions need, and moves the cursors of these subscriptions over the ledgers.
        - With `None`, retention selects the ledgers. Stalled intents of the topic and abandoned newborn ledgers move to
          the batch. If nothing is selected, the call is not recorded, and a repeated call may select ledgers.

        Raises:
            UnknownObject: The topic does not exist, or a ledger was never in the topic's list.
            LedgerStillNeeded: A subscription needs a ledger and `force` is not set, or a ledger is the open last
                ledger.
        """
        suffix = "" if durable is None else f"/durable {durable}"
        order = DetachOrder(
            ledger_ids=requested_ids,
            force=force,
            batch_id=batch_id,
            claim=claim,
            cause=cause,
            request=fingerprint_request(f"{topic_id}/{force}{suffix}", requested_ids, text_if_no_ids="retention"),
            ending=EndingOperation.RETENTION if requested_ids is None else EndingOperation.DELETE,
            durable=durable,
        )

        def work(connection: Connection, view: TopicListView) -> DetachedBatch:
            return detach_ledgers(
                connection, view, select_ledgers_to_detach(connection, view, requested_ids, force=force), order
            )

        with effect("catalog.detach"):
            return self._detach_once(topic_id, order, work)

    def find_reasons_to_keep(self, topic_id: TopicId, chosen: Sequence[Ledger]) -> Mapping[LedgerId, str]:
        """Return the reason for each ledger that `detach_chosen_ledgers` would keep. Nothing changes.

        Raise `UnknownObject` if the topic does not exist.
        """
        return self._db.read(
            lambda c: recheck_chosen_ledgers(c, self._read_list_view(c, topic_id, lock=False), chosen)[1]
        )

    @in_write_transaction("catalog.detach_chosen")
    def detach_chosen_ledgers(
        self,
        connection: Connection,
        topic_id: TopicId,
        chosen: Sequence[Ledger],
        *,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachChosenResult:
        """Detach ledgers one by one. Keep each ledger that is needed, or that has changed since `chosen` was read.

        The ledgers are added to a batch of many topics. The call opens the batch, or claims the open batch for
        `claim.ttl_s` from now.

        Idempotency: a repeated call reports detached ledgers as no longer listed.

        Raises:
            UnknownObject, CorruptData: The topic does not exist, or a cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow has claimed it. Nothing changed.
        """
        view = self._read_list_view(connection, topic_id, lock=True)
        detachable, reasons = recheck_chosen_ledgers(connection, view, chosen)
        if not detachable.ids:
            empty = DetachedBatch(batch_id=batch_id, ledgers=0, intents=0)
            return DetachChosenResult(reason_by_kept_ledger=reasons, detached=empty)
        order = DetachOrder(
            ledger_ids=detachable.ids,
            batch_id=batch_id,
            claim=claim,
            cause=cause,
            request=_CHOSEN,
            ending=EndingOperation.FUNCTION,
            durable=durable,
            shared=True,
        )
        detached = detach_ledgers(connection, view, detachable, order)
        return DetachChosenResult(reason_by_kept_ledger=reasons, detached=detached)

    def apply_compound_operation(
        self,
        topic_id: TopicId,
        operation: CompoundOperation,
        *,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """Apply several changes to one ledger, all or none, and write an audit row.

        A ledger that loses its last copy is detached. The operation may name subscriptions that cannot prevent the
        detach. The cursors of these subscriptions then move over the detached ledger. If the ledger stays listed, the
        list version and the ledger's generation rise.

        Raises:
            UnknownObject: The topic or the subscription does not exist, or the ledger is not in the topic's list.
            PreconditionFailed: The ledger is not in the state that the operation expects.
            LedgerStillNeeded: The ledger would lose its last copy and is needed.
        """
        order = DetachOrder(
            ledger_ids=[operation.ledger_id],
            batch_id=batch_id,
            claim=claim,
            cause=cause,
            request=fingerprint_compound_operation(topic_id, operation, durable=durable),
            ending=EndingOperation.COMPOUND,
            durable=durable,
            passed_over=sorted(operation.pass_over),
        )

        def work(connection: Connection, full_view: TopicListView) -> DetachedBatch:
            view, ending, detachable = evaluate_compound_operation(connection, full_view, operation)
            if ending and detachable:
                return detach_ledgers(connection, view, detachable, replace(order, ending=ending))
            batch = detach_tiered_copy(connection, view, operation.ledger_id, batch_id=batch_id, cause=cause)
            insert_batch_run(connection, batch, topic_id, claim, view.now_us, request=order.request)
            return batch

        with effect("catalog.operate"):
            return self._detach_once(topic_id, order, work)

    def would_end_ledger(self, topic_id: TopicId, operation: CompoundOperation) -> bool:
        """Return whether `apply_compound_operation` would detach the ledger. Raise the errors of that method."""
        return self._db.read(
            lambda c: (
                evaluate_compound_operation(c, self._read_list_view(c, topic_id, lock=False), operation)[1] is not None
            )
        )

    @in_read_transaction
    def select_detachable_topics(self, connection: Connection, topic_ids: Sequence[TopicId]) -> frozenset[TopicId]:
        """Return the topics that may have ledgers to detach. The call takes no lock, and usually selects few topics."""
        now = self._db.now_us(connection)
        is_requested = is_one_of(connection, t.topic.c.topic_id, topic_ids)
        query = select(t.topic.c.topic_id).where(is_requested, _match_topics_to_detach(now, now - self._newborn_us))
        return frozenset(TopicId(topic_id) for topic_id in connection.execute(query).scalars())

    @in_write_transaction("catalog.detach_into")
    def detach_by_retention_into_batch(
        self, connection: Connection, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        """Detach by retention into a batch of many topics. Open or claim the batch for `claim.ttl_s` from now.

        In the result, `ledgers` includes abandoned newborn ledgers.

        Idempotency: keyed by batch and topic; if the batch has intents of the topic, the call only counts them.

        Raises:
            UnknownObject, CorruptData: The topic does not exist, or a cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow has claimed it. Nothing changed.
        """
        order = DetachOrder(
            ledger_ids=None,
            batch_id=batch_id,
            claim=claim,
            cause=cause,
            request=_MANY_TOPICS,
            ending=EndingOperation.RETENTION,
            shared=True,
        )
        try:
            view = self._read_list_view(connection, topic_id, lock=True)
        except UnknownObject:  # an earlier call may have detached the ledgers before the topic was removed
            if (earlier := _count_detached_of_topic(connection, topic_id, batch_id)).intents:
                return earlier
            raise
        if (earlier := _count_detached_of_topic(connection, topic_id, batch_id)).intents:
            return earlier
        detachable = select_ledgers_to_detach(connection, view, None, force=False)
        detached = detach_ledgers(connection, view, detachable, order)
        return replace(_count_detached_of_topic(connection, topic_id, batch_id), filed_counts=detached.filed_counts)

    def count_detached_batch(self, batch_id: str) -> DetachedBatch:
        """Return the counts of a batch, taken from the batch's rows. All counts of an unknown batch are zero."""
        return self._db.read(lambda connection: _count_detached(connection, batch_id, _P.batch_id == batch_id))

    def count_topic_contents(self, topic_id: TopicId) -> TopicContentCounts:
        """Count what a deletion of the topic would remove. Raise `UnknownObject` if the topic does not exist."""
        return self._db.read(lambda connection: topic_deletion.count_topic_contents(connection, topic_id))

    @in_write_transaction("catalog.begin_topic_deletion")
    def begin_topic_deletion(self, connection: Connection, topic_id: TopicId, name: str, cause: AuditCause) -> int:
        """Set the topic DELETING and write an audit row. Return the catalog's time of this change, in microseconds.

        After the commit nothing can be attached to the topic, because an attach locks the topic and requires ACTIVE.
        The call does not wait for transactions that have this lock, because a busy topic always has such
        transactions. `detach_whole_topic` waits for these transactions.

        Idempotency: if the topic is DELETING or deleted, return the time of the first call and write no audit row.

        Raises:
            UnknownObject: The topic never existed.
            PreconditionFailed: The topic has another name.
        """
        return topic_deletion.begin_deletion_or_get_start_us(connection, self._db, topic_id, name, cause)

    @in_write_transaction("catalog.detach_topic")
    def detach_whole_topic(
        self,
        connection: Connection,
        topic_id: TopicId,
        *,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """File an intent for each copy of each ledger of the topic, whatever its component and state.

        Cursors, schema versions and other rows that name ledgers are removed. Stalled intents of the topic move to the
        batch. If the topic does not exist any more, nothing is detached.

        Raises:
            PreconditionFailed: The topic is not DELETING, or the batch id belongs to another request.
        """
        work = partial(topic_deletion.detach_whole_topic, database=self._db, topic_id=topic_id, durable=durable)
        return partial(work, batch_id=batch_id, claim=claim, cause=cause)(connection)

    @in_write_transaction("catalog.remove_topic")
    def remove_topic(
        self, connection: Connection, topic_id: TopicId, cause: AuditCause, *, durable: bool | None = None
    ) -> bool:
        """Remove the topic's rows, so that its name is free.

        If a list still has a ledger, return `False` and change nothing. Raise `PreconditionFailed` if the topic is not
        DELETING.
        """
        return topic_deletion.remove_detached_topic(connection, self._db, topic_id, cause, durable=durable)

    def tally_topic_intents(self, topic_id: TopicId, *, since_us: int) -> IntentTally:
        """Count all intents of the topic except those whose copy was deleted before `since_us`."""
        return self._db.read(
            lambda connection: topic_deletion.tally_intents_of_topic_deletion(connection, topic_id, since_us)
        )

    def _detach_once(
        self, topic_id: TopicId, order: DetachOrder, work: Callable[[Connection, TopicListView], DetachedBatch]
    ) -> DetachedBatch:
        """Run `work` once for a batch id, under the locks of list and fence. Later calls return the first result."""

        def detach_unless_done(connection: Connection) -> DetachedBatch:
            lock = partial(self._read_list_view, connection, topic_id, lock=True)
            view_or_earlier_batch = lock_then_find_earlier_detach(connection, order.batch_id, order.request, lock)
            lock_fence_of_lease(connection, self._lease)
            if isinstance(view_or_earlier_batch, DetachedBatch):
                return view_or_earlier_batch
            return work(connection, view_or_earlier_batch)

        return self._db.write(detach_unless_done)

    def _read_list_view(self, connection: Connection, topic_id: TopicId, *, lock: bool) -> TopicListView:
        topic = read_topic(connection, topic_id, share_lock=lock)
        list_id = read_message_list_id(connection, topic_id, lock=lock)
        marks = read_mark_delete_positions(connection, topic_id)
        last = read_last_ledger_id(connection, list_id)
        now = self._db.now_us(connection)
        return TopicListView(
            topic_id=topic_id,
            topic=topic.name,
            list_id=list_id,
            policy=topic.policy,
            durable_delete=topic.durable_delete,
            last=LedgerId(-1 if last is None else last),
            marks=marks,
            now_us=now,
            abandoned_us=now - self._newborn_us,
        )


def _count_detached_of_topic(connection: Connection, topic_id: TopicId, batch_id: str) -> DetachedBatch:
    mine = (_P.state == DeletionState.PENDING.value, _P.topic_id == topic_id, _P.batch_id == batch_id)
    return _count_detached(connection, batch_id, *mine)


def _count_detached(connection: Connection, batch_id: str, *rows: ColumnElement[bool]) -> DetachedBatch:
    """Count the intents, and the ledgers of those intents that the batch itself filed instead of taking over."""
    opened = select(t.run.c.created_us).where(t.run.c.run_id == batch_id).scalar_subquery()
    own = case((_P.created_us >= opened, _P.ledger_id))
    intents, ledgers = connection.execute(select(func.count(), func.count(own.distinct())).where(*rows)).one()
    return DetachedBatch(batch_id=batch_id, ledgers=ledgers, intents=intents)


def _match_topics_to_detach(now_us: int, abandoned_us: int) -> ColumnElement[bool]:
    lists, ledger = t.ledger_list.c, t.ledger.c
    mine = (ledger.list_id == lists.list_id, lists.topic_id == t.topic.c.topic_id)
    data = lists.component == Component.MANAGED_LEDGER.value
    return or_(
        exists().where(*mine, data, ledger.place.is_not(None), ledger.state == LedgerState.CLOSED.value),
        exists().where(*mine, ledger.place.is_(None), ledger.created_us < abandoned_us),
        exists().where(_P.topic_id == t.topic.c.topic_id, match_stalled_intents(now_us)),
    )
