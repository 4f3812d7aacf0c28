"""Compound operations in SQL: what one does to the copies of one ledger, under the lock of its list."""

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.deletion.doomed import Doomed, ListView, doomed
from infra.catalog.deletion.intent_rows import file_copy_intents
from infra.catalog.deletion.intents import filed_by
from infra.catalog.deletion.runs import fingerprint
from infra.catalog.log.ledgers import listed_among
from logstore.errors import UnknownObject
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import Cause, Detached
from logstore.positions import LedgerId, TopicId
from logstore.records.compound import Compound
from logstore.records.tombstones import Ending


def asked(topic_id: TopicId, operation: Compound, *, durable: bool | None) -> str:
    """What a batch id was used for: the same text in every process, whatever order its sets have there."""
    sets = f"{sorted(operation.remove)}/{sorted(operation.pass_over)}"
    return fingerprint(f"{topic_id}/{sets}/{operation.generation}/durable {durable}", [operation.ledger_id])


def decided(
    connection: Connection, found: ListView, operation: Compound
) -> tuple[ListView, Ending | None, Doomed | None]:
    """The list as if subscriptions that are passed over were not there, and how the ledger ends, if it does.

    Raises:
        UnknownObject: There is no subscription of such a name, or the ledger is in no list of the topic.
        PreconditionFailed: See `Compound.ending`.
        LedgerStillNeeded: It would end, and is needed.
    """
    if unknown := sorted(operation.pass_over - found.marks.keys()):
        raise UnknownObject("subscription", expected=f"a subscription of {found.topic}", found=unknown[0])
    listed = listed_among(connection, found.topic_id, [operation.ledger_id])
    if not listed:
        raise UnknownObject("ledger", expected=f"a ledger of {found.topic}", found=operation.ledger_id)
    view = replace(found, marks={name: at for name, at in found.marks.items() if name not in operation.pass_over})
    ending = operation.ending(listed[0].copies, generation=listed[0].generation)
    return view, ending, doomed(connection, view, [operation.ledger_id], force=False) if ending else None


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
