"""End of uploads of tiered copies: selection of abandoned uploads, and intents for their objects."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Text, case, cast, func, select

from logstore.catalog import tables as t
from logstore.catalog.deletion.intent_queries import INTENT_COLUMNS
from logstore.catalog.deletion.intent_rows import (
    file_next_generation_intent,
    replace_copies_by_intents,
    set_intent_context,
)
from logstore.catalog.engine.dialect_sql import ParsableJsonOrNull, cast_to_text, parse_offload_context_or_empty
from logstore.catalog.log.ledger_rows import set_copy_context
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerStatement
from logstore.offload.tiered_copy import UPLOAD_GRACE_S, context_after_upload, upload_requests_end_us
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId

TIERED = CopyKind.OFFLOADED_LEDGER
_P = t.pending_deletion


def match_abandoned_uploads(now_us: int) -> ColumnElement[bool]:
    """Select WRITING tiered copies whose upload deadline passed more than `UPLOAD_GRACE_S` ago.

    A copy without a readable deadline is not selected.
    """
    c = t.ledger_copy.c
    stored_end = cast(ParsableJsonOrNull(c.context)["until_us"].as_string(), Text)
    is_number = func.length(stored_end).between(1, 18) & (func.ltrim(stored_end, "0123456789") == "")
    end_us = case((is_number, cast(stored_end, t.Big)), else_=now_us)
    has_ended = end_us + UPLOAD_GRACE_S * 1_000_000 <= now_us
    return (c.kind == TIERED.value) & (c.state == CopyState.WRITING.value) & has_ended


def build_ledger_statement(topic: Topic, row: Row[Any]) -> LedgerStatement:
    """Return the expected statement of a message ledger. `row` must include the `component` of the ledger's list."""
    owner = LedgerOwner(
        application=row.application,
        component=Component(row.component),
        topic_id=topic.topic_id,
        topic=topic.name,
        keys={},
    )
    return LedgerStatement(owner=owner, ledger_id=row.ledger_id, created_us=row.created_us, epoch=row.epoch)


def read_tiered_copy(connection: Connection, ledger_id: LedgerId) -> Row[Any] | None:
    c = t.ledger_copy.c
    query = select(c.ledger_id, c.kind, c.state, cast_to_text(c.context))
    return connection.execute(query.where(c.ledger_id == ledger_id, c.kind == TIERED.value)).first()


def end_upload_and_file_intent(
    connection: Connection, list_id: int | None, ledger_id: LedgerId, uuid: str, *, until_us: int | None, now_us: int
) -> None:
    """End an upload attempt by the rules of `Offloads.abandon_offload`. If the list exists, the caller has locked it.

    `until_us` is the time of the attempt's last request, or `None` if all requests were answered.
    """
    copy = read_tiered_copy(connection, ledger_id)
    if copy is None or parse_offload_context_or_empty(copy.context).get("uuid") != uuid:
        _shorten_upload_wait_or_file_intent(connection, ledger_id, uuid, until_us, now_us)
    elif copy.state == CopyState.WRITING.value and list_id is not None:
        set_copy_context(
            connection, ledger_id, TIERED, context_after_upload(parse_offload_context_or_empty(copy.context), until_us)
        )
        is_ledger = t.ledger.c.ledger_id == ledger_id
        replace_copies_by_intents(connection, list_id, TIERED, is_ledger, batch_id="", now_us=now_us)


def _shorten_upload_wait_or_file_intent(
    connection: Connection, ledger_id: LedgerId, uuid: str, until_us: int | None, now_us: int
) -> None:
    """Shorten the time that phase two waits for the upload attempt. If the time is over, file one more intent.

    If the attempt's last intent has no end time, nothing changes, because an earlier call has ended the upload.
    """
    conditions = (_P.c.ledger_id == ledger_id, _P.c.copy == TIERED.value)
    rows = connection.execute(
        select(*INTENT_COLUMNS).where(*conditions).order_by(_P.c.generation).with_for_update()
    ).all()
    attempt_rows = [row for row in rows if parse_offload_context_or_empty(row.context).get("uuid") == uuid]
    last_context = parse_offload_context_or_empty(attempt_rows[-1].context) if attempt_rows else {}
    end_us = upload_requests_end_us(last_context)
    if end_us is None:
        return
    last_intent, context = attempt_rows[-1], context_after_upload(last_context, until_us)
    if last_intent.state == DeletionState.PENDING.value and end_us > now_us:
        set_intent_context(connection, last_intent.row_id, context)
    else:
        file_next_generation_intent(connection, last_intent, context, now_us)
