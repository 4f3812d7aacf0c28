"""Compound operations in SQL: what one does to the copies of one ledger, under the lock of its list."""

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.deletion.doomed import ListView
from infra.catalog.deletion.intent_rows import file_copy_intents
from infra.catalog.deletion.intents import filed_by
from infra.catalog.log.ledgers import listed_among
from logstore.errors import UnknownObject
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import Cause, Detached
from logstore.positions import LedgerId
from logstore.records.compound import Compound
from logstore.records.tombstones import Ending


def passing_over(view: ListView, operation: Compound) -> ListView:
    """The list as if the subscriptions that are passed over were not there.

    Raises:
        UnknownObject: There is none of such a name.
    """
    if unknown := sorted(operation.pass_over - view.marks.keys()):
        raise UnknownObject("subscription", expected=f"a subscription of {view.topic}", found=unknown[0])
    return replace(view, marks={name: at for name, at in view.marks.items() if name not in operation.pass_over})


def ending_of(connection: Connection, view: ListView, operation: Compound) -> Ending | None:
    """How the operation ends the ledger; None: the ledger stays.

    Raises:
        UnknownObject: It is in no list of the topic.
        PreconditionFailed: See `Compound.ending`.
    """
    found = listed_among(connection, view.topic_id, [operation.ledger_id])
    if not found:
        raise UnknownObject("ledger", expected=f"a ledger of {view.topic}", found=operation.ledger_id)
    return operation.ending(found[0].copies, generation=found[0].generation)


def take_tiered_away(
    connection: Connection, view: ListView, ledger_id: LedgerId, *, batch_id: str, cause: Cause
) -> Detached:
    """Replace the tiered copy by its intent; the ledger stays, and is read from its primary copy."""
    this, now = t.ledger.c.ledger_id == ledger_id, view.now_us
    filed = file_copy_intents(
        connection, view.list_id, CopyKind.OFFLOADED_LEDGER, this, batch_id=batch_id, now_us=now, cause=cause
    )
    about: dict[str, Any] = {"topic_id": view.topic_id, "topic": view.topic, "run_id": batch_id, "detail": {}}
    audit(connection, "remove-tiered", cause, at_us=now, span=Span.of([ledger_id]), **about)
    told = filed_by(connection, batch_id, now, topic_id=view.topic_id)
    return Detached(batch_id=batch_id, ledgers=1, intents=filed, filed=told)
