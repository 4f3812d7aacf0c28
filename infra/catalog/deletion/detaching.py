"""What phase one does once it is decided which ledgers go: intents stand in their place, in a batch that is claimed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.cursors.cursor_rows import close_holes
from infra.catalog.delayed.bucket_rows import recount
from infra.catalog.deletion.doomed import Doomed, ListView
from infra.catalog.deletion.intent_rows import adopt_stalled, file_intents
from infra.catalog.deletion.intents import filed_by
from infra.catalog.deletion.runs import open_run, share_run
from infra.catalog.log.ledger_rows import lock_lists, never_attached
from infra.catalog.offload.uploads import take_away_abandoned
from logstore.ports.catalog import Cause, Claim, Detached
from logstore.positions import LedgerId
from logstore.records.tombstones import Ending, is_durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Who asks for what, under which name."""

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
        """Whether what goes leaves tombstones."""
        ending = Ending.EXPIRY if newborn else self.ending
        return is_durable(ending, topic=view.durable_delete, asked=self.durable)


def replace_by_intents(
    connection: Connection, view: ListView, gone: Doomed, order: Order, *, abandoned_us: int
) -> Detached:
    """Take the ledgers out of the locked list, file their intents, and open or hold the batch; audited.

    Where retention asks, newborn ledgers created before `abandoned_us` and never attached go with them.
    """
    batch_id, asked, now = order.batch_id, order.ledger_ids, view.now_us
    adopted = adopt_stalled(connection, view.topic_id, asked, batch_id=batch_id, now_us=now)
    newborn = _abandon_newborn(connection, view, order, abandoned_us) if asked is None else 0
    filed = 0
    if gone.ids:
        filed = _file(connection, gone.rows, view, order, durable=order.is_durable(view))
        recount(connection, view.topic_id)
    dead = 0
    if asked is None:
        dead = take_away_abandoned(connection, view.list_id, batch_id, now, cause=order.cause)
    close_holes(connection, view.topic_id, gone.ids)
    intents = adopted + newborn + filed + dead
    result = Detached(batch_id=batch_id, ledgers=len(gone.ids), intents=intents, finished=gone.finished)
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
            "span": Span.of(gone.ids),
        }
        detail: dict[str, Any] = {"forced": True} if order.force else {}
        detail |= {"passed_over": list(order.passed_over)} if order.passed_over else {}
        audit(connection, "detach", order.cause, at_us=now, detail=detail, **about)
    return replace(
        result, filed=filed_by(connection, batch_id, now, topic_id=view.topic_id) if intents > adopted else ()
    )


def _abandon_newborn(connection: Connection, view: ListView, order: Order, abandoned_us: int) -> int:
    """Detach ledgers of any component whose creator gave up or died before listing them (apache/pulsar#350)."""
    lists = t.ledger_list.c.topic_id == view.topic_id
    abandoned = never_attached(abandoned_us)
    inner = select(t.ledger_list.c.list_id).where(lists)
    where = select(t.ledger.c.list_id).where(t.ledger.c.list_id.in_(inner), abandoned).distinct()
    ids = lock_lists(connection, lists, t.ledger_list.c.list_id.in_(where))
    if not ids:
        return 0
    rows, durable = t.ledger.c.list_id.in_(ids) & abandoned, order.is_durable(view, newborn=True)
    return _file(connection, rows, view, order, durable=durable)


def _file(connection: Connection, rows: ColumnElement[bool], view: ListView, order: Order, *, durable: bool) -> int:
    batch_id, now_us, cause = order.batch_id, view.now_us, order.cause
    return file_intents(connection, rows, batch_id=batch_id, now_us=now_us, cause=cause, durable=durable)
