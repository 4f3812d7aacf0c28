"""Phase one on ledgers and copies: intents stand in their place, in a batch that is claimed.

The rule says which ledgers go, or a compound operation what becomes of the copies of one; the caller holds the lock of
the list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from infra.catalog import tables as t
from infra.catalog.audits import AuditedLedgers, audit
from infra.catalog.cursors.cursor_rows import close_holes
from infra.catalog.delayed.bucket_rows import recount_unsealed
from infra.catalog.deletion.detachable import Detachable, ListView, find_detachable
from infra.catalog.deletion.intent_rows import adopt_stalled, file_copy_intents, file_intents
from infra.catalog.deletion.intents import count_filed
from infra.catalog.deletion.runs import fingerprint, open_run, share_run
from infra.catalog.log.ledger_rows import is_abandoned_newborn, lock_lists
from infra.catalog.log.ledgers import filter_listed
from infra.catalog.offload.uploads import TIERED, is_abandoned_upload
from logstore.errors import UnknownObject
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import Cause, Claim, DetachedBatch
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstones import Compound, Ending, is_durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request to detach: the actor, the ledgers, and the batch's name."""

    ledger_ids: Sequence[LedgerId] | None
    batch_id: str
    claim: Claim
    cause: Cause
    request: str  # what was asked, so that a batch id used twice is told from a repeated call
    ending: Ending
    force: bool = False
    passed_over: Sequence[str] = ()  # subscriptions that were not asked, where not all of them were passed over
    durable: bool | None = None  # None: as the topic says, or the operation
    shared: bool = False  # whether the batch is one of many topics

    def is_durable(self, view: ListView, *, newborn: bool = False) -> bool:
        """Whether what is detached leaves tombstones."""
        ending = Ending.EXPIRY if newborn else self.ending
        return is_durable(ending, topic=view.durable_delete, asked=self.durable)


def replace_by_intents(connection: Connection, view: ListView, gone: Detachable, order: Order) -> DetachedBatch:
    """Take the ledgers out of the locked list, file their intents, and open or hold the batch; audited.

    Where retention asks, newborn ledgers that their creators left go with them.
    """
    batch_id, asked, now = order.batch_id, order.ledger_ids, view.now_us
    adopted = adopt_stalled(connection, view.topic_id, asked, batch_id=batch_id, now_us=now)
    newborn = _abandon_newborn(connection, view, order) if asked is None else 0
    filed = 0
    if gone.ids:
        durable = order.is_durable(view)
        filed = file_intents(connection, gone.rows, batch_id=batch_id, now_us=now, cause=order.cause, durable=durable)
        recount_unsealed(connection, view.topic_id)
    dead = 0
    if asked is None:
        dead = file_copy_intents(
            connection, view.list_id, TIERED, is_abandoned_upload(now), batch_id=batch_id, now_us=now, cause=order.cause
        )
    close_holes(connection, view.topic_id, gone.ids)
    intents = adopted + newborn + filed + dead
    result = DetachedBatch(batch_id=batch_id, ledgers=len(gone.ids), intents=intents, finished=gone.finished)
    if intents or asked is not None:
        if order.shared:
            share_run(connection, batch_id, order.claim, now, request=order.request)
        else:
            open_run(connection, result, view.topic_id, order.claim, now, request=order.request)
    if gone.ids:
        about: dict[str, Any] = {
            "topic_id": view.topic_id,
            "topic": view.topic,
            "run_id": batch_id,
            "span": AuditedLedgers.from_ids(gone.ids),
        }
        detail: dict[str, Any] = {"forced": True} if order.force else {}
        detail |= {"passed_over": list(order.passed_over)} if order.passed_over else {}
        audit(connection, "detach", order.cause, at_us=now, detail=detail, **about)
    return replace(
        result, filed_counts=count_filed(connection, batch_id, now, topic_id=view.topic_id) if intents > adopted else ()
    )


def _abandon_newborn(connection: Connection, view: ListView, order: Order) -> int:
    """Detach ledgers of any component whose creator gave up or died before listing them (apache/pulsar#350)."""
    lists = t.ledger_list.c.topic_id == view.topic_id
    newborn = is_abandoned_newborn(view.abandoned_us)
    inner = select(t.ledger_list.c.list_id).where(lists)
    where = select(t.ledger.c.list_id).where(t.ledger.c.list_id.in_(inner), newborn).distinct()
    ids = lock_lists(connection, lists, t.ledger_list.c.list_id.in_(where))
    if not ids:
        return 0
    rows, durable = t.ledger.c.list_id.in_(ids) & newborn, order.is_durable(view, newborn=True)
    return file_intents(
        connection, rows, batch_id=order.batch_id, now_us=view.now_us, cause=order.cause, durable=durable
    )


def fingerprint_operation(topic_id: TopicId, operation: Compound, *, durable: bool | None) -> str:
    """The use of a batch id: the same text in every process, whatever order its sets have there."""
    sets = f"{sorted(operation.remove)}/{sorted(operation.pass_over)}"
    return fingerprint(f"{topic_id}/{sets}/{operation.generation}/durable {durable}", [operation.ledger_id])


def resolve_operation(
    connection: Connection, found: ListView, operation: Compound
) -> tuple[ListView, Ending | None, Detachable | None]:
    """The list as if subscriptions that are passed over were not there, and how the ledger ends, if it does.

    Raises:
        UnknownObject: There is no subscription of such a name, or the ledger is in no list of the topic.
        PreconditionFailed: See `Compound.ending`.
        LedgerStillNeeded: It would end, and is needed.
    """
    if unknown := sorted(operation.pass_over - found.marks.keys()):
        raise UnknownObject("subscription", expected=f"a subscription of {found.topic}", found=unknown[0])
    listed = filter_listed(connection, found.topic_id, [operation.ledger_id])
    if not listed:
        raise UnknownObject("ledger", expected=f"a ledger of {found.topic}", found=operation.ledger_id)
    view = replace(found, marks={name: at for name, at in found.marks.items() if name not in operation.pass_over})
    ending = operation.ending(listed[0].copies, generation=listed[0].generation)
    return view, ending, find_detachable(connection, view, [operation.ledger_id], force=False) if ending else None


def detach_tiered_copy(
    connection: Connection, view: ListView, ledger_id: LedgerId, *, batch_id: str, cause: Cause
) -> DetachedBatch:
    """Replace the tiered copy by its intent; the ledger stays, and is read from its primary copy."""
    this, now = t.ledger.c.ledger_id == ledger_id, view.now_us
    filed = file_copy_intents(
        connection, view.list_id, CopyKind.OFFLOADED_LEDGER, this, batch_id=batch_id, now_us=now, cause=cause
    )
    about: dict[str, Any] = {"topic_id": view.topic_id, "topic": view.topic, "run_id": batch_id, "detail": {}}
    audit(connection, "remove-tiered", cause, at_us=now, span=AuditedLedgers.from_ids([ledger_id]), **about)
    told = count_filed(connection, batch_id, now, topic_id=view.topic_id)
    return DetachedBatch(batch_id=batch_id, ledgers=1, intents=filed, filed_counts=told)
