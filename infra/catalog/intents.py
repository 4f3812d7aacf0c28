"""Phase one's effect on rows: ledgers leave, intents stand in their place, in the caller's transaction."""

import json
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, insert, literal, select, update

from infra.catalog import tables as t
from logstore.deletion import DeletionIntent, DeletionState, Outcome
from logstore.ledgers import CopyKind
from logstore.positions import LedgerId, TopicId


def file_intents(connection: Connection, doomed: ColumnElement[bool], *, batch_id: str, now_us: int) -> int:
    """Replace ledger rows by deletion intents, one per copy, set-wise, and return how many intents.

    Args:
        connection: In a writing transaction that holds the lock of the ledgers' list.
        doomed: Which rows of `ledger`.
        batch_id: Whose work the intents are; empty: nobody's, so that they are stalled until a trim or a sweep.
        now_us: The database's clock.
    """
    names, query = _intents(doomed, batch_id, now_us)
    filing = insert(t.pending_deletion).from_select(names, query)
    filed = connection.execute(filing, execution_options={"preserve_rowcount": True}).rowcount
    gone = doomed & _has_intent()
    ids = select(t.ledger.c.ledger_id).where(gone)
    for table in (t.segment, t.ledger_copy):
        connection.execute(delete(table).where(table.c.ledger_id.in_(ids)))
    connection.execute(delete(t.ledger).where(gone))
    return filed


def _has_intent() -> ColumnElement[bool]:
    """Its intent stands: a row that turned up since the intents were filed stays."""
    p = t.pending_deletion.c
    return exists().where(p.ledger_id == t.ledger.c.ledger_id, p.generation == t.ledger.c.generation + 1)


def _intents(doomed: ColumnElement[bool], batch_id: str, now_us: int) -> tuple[list[str], Any]:
    source = (
        t.ledger.join(t.ledger_copy, t.ledger_copy.c.ledger_id == t.ledger.c.ledger_id)
        .join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id)
        .join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
    )
    columns: dict[str, Any] = {
        "batch_id": literal(batch_id),
        "ledger_id": t.ledger.c.ledger_id,
        "copy": t.ledger_copy.c.kind,
        "generation": t.ledger.c.generation + 1,
        "application": t.ledger.c.application,
        "component": t.ledger_list.c.component,
        "topic_id": t.topic.c.topic_id,
        "topic": t.topic.c.name,
        "keys": t.ledger_list.c.owner,
        "context": t.ledger_copy.c.context,
        "segments": t.ledger.c.segments,
        "last_segment": t.ledger.c.last_segment,
        "ledger_created_us": t.ledger.c.created_us,
        "size_bytes": t.ledger.c.size_bytes,
        "epoch": t.ledger.c.epoch,
        "state": literal(DeletionState.PENDING.value),
        "attempts": literal(0),
        "objects_deleted": literal(0),
        "bytes_deleted": literal(0),
        "created_us": literal(now_us, t.Big),
    }
    query = select(*(value.label(name) for name, value in columns.items())).select_from(source).where(doomed)
    return list(columns), query.order_by(t.ledger.c.ledger_id, t.ledger_copy.c.kind)


def reopen_intent(connection: Connection, ledger_id: LedgerId) -> None:
    """Let phase two look again at a newborn that was abandoned too early: its creator has put a `meta.json` since."""
    p = t.pending_deletion.c
    ended = (p.ledger_id == ledger_id, p.segments == 0, p.state == DeletionState.DELETED.value)
    again = {"state": DeletionState.PENDING.value, "outcome": None, "batch_id": "", "finished_us": None}
    connection.execute(update(t.pending_deletion).where(*ended).values(again))


def to_intent(row: Row[Any]) -> DeletionIntent:
    """A row of `pending_deletion` as the value that phase two works on."""
    found = row._mapping  # noqa: SLF001 - public by SQLAlchemy's documentation
    return DeletionIntent(
        row_id=found["row_id"],
        batch_id=found["batch_id"],
        ledger_id=LedgerId(found["ledger_id"]),
        copy=CopyKind(found["copy"]),
        generation=found["generation"],
        application=found["application"],
        component=found["component"],
        topic_id=TopicId(found["topic_id"]),
        topic=found["topic"],
        keys=keys_of(found["keys"]),
        context=found["context"],
        segments=found["segments"],
        last_segment=found["last_segment"],
        ledger_created_us=found["ledger_created_us"],
        size_bytes=found["size_bytes"],
        epoch=found["epoch"],
        state=DeletionState(found["state"]),
        outcome=Outcome(found["outcome"]) if found["outcome"] else None,
        attempts=found["attempts"],
        last_error=found["last_error"],
        handed_to=found["claim_workflow"],
    )


def keys_of(text: str) -> dict[str, str]:
    """Keys of the component; what cannot be read is left out, so that the intent is found INVALID."""
    try:
        keys = json.loads(text)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in keys.items()} if isinstance(keys, dict) else {}
