"""Tiered copies that are being written: which uploads are over, and how their copies leave the catalog."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Text, case, cast, func, select

from infra.catalog import tables as t
from infra.catalog.deletion.intent_rows import file_copy_intents, refile_intent, set_intent_context
from infra.catalog.deletion.intents import INTENT
from infra.catalog.engine.dialects import ReadableJson, as_text, parse_context_or_empty
from infra.catalog.log.ledger_rows import set_copy_context
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerStatement
from logstore.offload.tiered import UPLOAD_GRACE_S, context_after_upload, upload_ends_us
from logstore.ports.catalog import Topic
from logstore.positions import LedgerId

TIERED = CopyKind.OFFLOADED_LEDGER
_P = t.pending_deletion


def is_abandoned_upload(now_us: int) -> ColumnElement[bool]:
    """Tiered copies that will never be published: their upload can go on no longer.

    Without a time, or with something else in its place, that is not for us to judge: the copy stays, and the ledger.
    """
    c = t.ledger_copy.c
    said = cast(ReadableJson(c.context)["until_us"].as_string(), Text)
    digits = func.length(said).between(1, 18) & (func.ltrim(said, "0123456789") == "")
    until = case((digits, cast(said, t.Big)), else_=now_us)
    over = until + UPLOAD_GRACE_S * 1_000_000 <= now_us
    return (c.kind == TIERED.value) & (c.state == CopyState.WRITING.value) & over


def build_statement(topic: Topic, row: Row[Any]) -> LedgerStatement:
    """The statement of a ledger of messages, as storage should have it; `row` has `component` of its list as well."""
    owner = LedgerOwner(
        application=row.application,
        component=Component(row.component),
        topic_id=topic.topic_id,
        topic=topic.name,
        keys={},
    )
    return LedgerStatement(owner=owner, ledger_id=row.ledger_id, created_us=row.created_us, epoch=row.epoch)


def read_tiered_copy(connection: Connection, ledger_id: LedgerId) -> Row[Any] | None:
    """The row of the ledger's tiered copy, its context as text."""
    c = t.ledger_copy.c
    query = select(c.ledger_id, c.kind, c.state, as_text(c.context))
    return connection.execute(query.where(c.ledger_id == ledger_id, c.kind == TIERED.value)).first()


def end_upload(
    connection: Connection, list_id: int | None, ledger_id: LedgerId, uuid: str, *, until_us: int | None, now_us: int
) -> None:
    """See `Offloads.abandon`; the caller holds the lock of the list, if there still is one.

    Args:
        connection: In a writing transaction.
        list_id: The list that has the ledger, or None.
        ledger_id: Whose copy.
        uuid: The attempt.
        until_us: When its last request was sent; None: all of them were answered.
        now_us: The database's clock.
    """
    copy = read_tiered_copy(connection, ledger_id)
    if copy is None or parse_context_or_empty(copy.context).get("uuid") != uuid:
        _end_intents(connection, ledger_id, uuid, until_us, now_us)
    elif copy.state == CopyState.WRITING.value and list_id is not None:
        set_copy_context(
            connection, ledger_id, TIERED, context_after_upload(parse_context_or_empty(copy.context), until_us)
        )
        this = t.ledger.c.ledger_id == ledger_id
        file_copy_intents(connection, list_id, TIERED, this, batch_id="", now_us=now_us)


def _end_intents(connection: Connection, ledger_id: LedgerId, uuid: str, until_us: int | None, now_us: int) -> None:
    """Let phase two go to work, and see what it may have missed.

    It deletes nothing before the upload's end. So an intent that still waits for that meets every object later; of
    one that has waited in vain it is not known what it saw, and one more is filed. One that waits for nothing was told
    so by an earlier call of this attempt.
    """
    of_copy = (_P.c.ledger_id == ledger_id, _P.c.copy == TIERED.value)
    rows = connection.execute(select(*INTENT).where(*of_copy).order_by(_P.c.generation).with_for_update()).all()
    ours = [row for row in rows if parse_context_or_empty(row.context).get("uuid") == uuid]
    said = parse_context_or_empty(ours[-1].context) if ours else {}
    ends_us = upload_ends_us(said)
    if ends_us is None:
        return
    last, context = ours[-1], context_after_upload(said, until_us)
    if last.state == DeletionState.PENDING.value and ends_us > now_us:
        set_intent_context(connection, last.row_id, context)
    else:
        refile_intent(connection, last, context, now_us)
