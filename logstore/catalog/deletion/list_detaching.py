"""Replacement of ledgers and copies by intents in a claimed batch. The caller holds the lock of the list."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from logstore.catalog import tables as t
from logstore.catalog.audit_log import AuditedLedgers, insert_audit_row
from logstore.catalog.cursors.cursor_rows import move_cursors_past_removed_ledgers
from logstore.catalog.delayed.delayed_index import recount_unsealed_entries
from logstore.catalog.deletion.detach_selection import LedgersToDetach, TopicListView, select_ledgers_to_detach
from logstore.catalog.deletion.intent_queries import count_filed_intents
from logstore.catalog.deletion.intent_rows import (
    replace_copies_by_intents,
    replace_ledgers_by_intents,
    take_over_stalled_intents,
)
from logstore.catalog.deletion.run_rows import fingerprint_request, insert_batch_run, open_or_renew_shared_run
from logstore.catalog.log.ledger_rows import lock_ledger_lists, match_abandoned_newborns
from logstore.catalog.log.message_ledgers import filter_listed_ledgers
from logstore.catalog.offload.upload_ends import TIERED, match_abandoned_uploads
from logstore.errors import UnknownObject
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstone_rules import CompoundOperation, EndingOperation, is_durable


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachOrder:
    ledger_ids: Sequence[LedgerId] | None
    batch_id: str
    claim: Claim
    cause: AuditCause
    request: str  # fingerprint: a call with the same batch id but another fingerprint is refused
    ending: EndingOperation
    force: bool = False
    passed_over: Sequence[str] = ()  # subscriptions that do not keep the ledger
    durable: bool | None = None  # None: the setting of the topic, or the default of `ending`
    shared: bool = False  # the batch has many topics

    def is_durable(self, view: TopicListView, *, newborn: bool = False) -> bool:
        ending = EndingOperation.EXPIRY if newborn else self.ending
        return is_durable(ending, topic_setting=view.durable_delete, command_setting=self.durable)


def detach_ledgers(
    connection: Connection, view: TopicListView, detachable: LedgersToDetach, order: DetachOrder
) -> DetachedBatch:
    """Replace ledgers of the locked list by intents, insert or renew the run of the batch, and write an audit row.

    The batch takes over stalled intents. A detach by retention also files intents for abandoned newborn ledgers and
    for abandoned uploads.
    """
    batch_id, now = order.batch_id, view.now_us
    by_retention = order.ledger_ids is None
    taken_over_intents = take_over_stalled_intents(
        connection, view.topic_id, order.ledger_ids, batch_id=batch_id, now_us=now
    )
    newborn_intents = _file_abandoned_newborns(connection, view, order) if by_retention else 0
    filed_intents = dead_upload_intents = 0
    if detachable.ids:
        durable = order.is_durable(view)
        filed_intents = replace_ledgers_by_intents(
            connection, detachable.rows, batch_id=batch_id, now_us=now, cause=order.cause, durable=durable
        )
        recount_unsealed_entries(connection, view.topic_id)
    if by_retention:
        dead_upload_intents = replace_copies_by_intents(
            connection,
            view.list_id,
            TIERED,
            match_abandoned_uploads(now),
            batch_id=batch_id,
            now_us=now,
            cause=order.cause,
        )
    move_cursors_past_removed_ledgers(connection, view.topic_id, detachable.ids)
    intents = taken_over_intents + newborn_intents + filed_intents + dead_upload_intents
    result = DetachedBatch(
        batch_id=batch_id, ledgers=len(detachable.ids), intents=intents, finished=detachable.finished
    )
    if intents or not by_retention:
        if order.shared:
            open_or_renew_shared_run(connection, batch_id, order.claim, now, request=order.request)
        else:
            insert_batch_run(connection, result, view.topic_id, order.claim, now, request=order.request)
    if detachable.ids:
        about: dict[str, Any] = {
            "topic_id": view.topic_id,
            "topic": view.topic,
            "run_id": batch_id,
            "span": AuditedLedgers.from_ids(detachable.ids),
        }
        detail: dict[str, Any] = {"forced": True} if order.force else {}
        detail |= {"passed_over": list(order.passed_over)} if order.passed_over else {}
        insert_audit_row(connection, "detach", order.cause, at_us=now, detail=detail, **about)
    return replace(
        result,
        filed_counts=count_filed_intents(connection, batch_id, now, topic_id=view.topic_id)
        if intents > taken_over_intents
        else (),
    )


def _file_abandoned_newborns(connection: Connection, view: TopicListView, order: DetachOrder) -> int:
    """File intents for the topic's abandoned newborn ledgers, of any component (apache/pulsar#350)."""
    of_topic = t.ledger_list.c.topic_id == view.topic_id
    is_newborn = match_abandoned_newborns(view.abandoned_us)
    all_lists = select(t.ledger_list.c.list_id).where(of_topic)
    with_newborn = select(t.ledger.c.list_id).where(t.ledger.c.list_id.in_(all_lists), is_newborn).distinct()
    list_ids = lock_ledger_lists(connection, of_topic, t.ledger_list.c.list_id.in_(with_newborn))
    if not list_ids:
        return 0
    rows, durable = t.ledger.c.list_id.in_(list_ids) & is_newborn, order.is_durable(view, newborn=True)
    return replace_ledgers_by_intents(
        connection, rows, batch_id=order.batch_id, now_us=view.now_us, cause=order.cause, durable=durable
    )


def fingerprint_compound_operation(topic_id: TopicId, operation: CompoundOperation, *, durable: bool | None) -> str:
    """Return the fingerprint of an operation. Sets are sorted, so that every process gets the same fingerprint."""
    sets = f"{sorted(operation.remove)}/{sorted(operation.pass_over)}"
    return fingerprint_request(f"{topic_id}/{sets}/{operation.generation}/durable {durable}", [operation.ledger_id])


def evaluate_compound_operation(
    connection: Connection, full_view: TopicListView, operation: CompoundOperation
) -> tuple[TopicListView, EndingOperation | None, LedgersToDetach | None]:
    """Return the view without passed-over subscriptions, the operation that ends the ledger, and the ledger to detach.

    If a copy of the ledger remains, the operation and the ledger are `None`.
    """
    if unknown := sorted(operation.pass_over - full_view.marks.keys()):
        raise UnknownObject("subscription", expected=f"a subscription of {full_view.topic}", found=unknown[0])
    listed = filter_listed_ledgers(connection, full_view.topic_id, [operation.ledger_id])
    if not listed:
        raise UnknownObject("ledger", expected=f"a ledger of {full_view.topic}", found=operation.ledger_id)
    view = replace(
        full_view, marks={name: mark for name, mark in full_view.marks.items() if name not in operation.pass_over}
    )
    ending = operation.find_ending_operation(listed[0].copies, generation=listed[0].generation)
    return (
        view,
        ending,
        select_ledgers_to_detach(connection, view, [operation.ledger_id], force=False) if ending else None,
    )


def detach_tiered_copy(
    connection: Connection, view: TopicListView, ledger_id: LedgerId, *, batch_id: str, cause: AuditCause
) -> DetachedBatch:
    is_ledger, now = t.ledger.c.ledger_id == ledger_id, view.now_us
    filed = replace_copies_by_intents(
        connection, view.list_id, CopyKind.OFFLOADED_LEDGER, is_ledger, batch_id=batch_id, now_us=now, cause=cause
    )
    about: dict[str, Any] = {"topic_id": view.topic_id, "topic": view.topic, "run_id": batch_id, "detail": {}}
    insert_audit_row(connection, "remove-tiered", cause, at_us=now, span=AuditedLedgers.from_ids([ledger_id]), **about)
    filed_counts = count_filed_intents(connection, batch_id, now, topic_id=view.topic_id)
    return DetachedBatch(batch_id=batch_id, ledgers=1, intents=filed, filed_counts=filed_counts)
