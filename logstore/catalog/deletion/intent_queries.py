"""Reads of the table `pending_deletion`, and conversion of rows to intents. Damaged rows are converted too."""

from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, and_, bindparam, func, literal, or_, select

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import (
    BIG,
    BulkStatement,
    build_bulk_parameter,
    cast_to_text,
    dataclass_from_row,
    parse_json_object,
    parse_offload_context,
    parse_offload_context_or_empty,
)
from logstore.deletion.intent_queue_rules import split_batch_into_ranges
from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.log.ledger_object_keys import SHARDS
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import AuditCause, FiledIntentCount, IntentRowRange, IntentTally
from logstore.positions import TopicId

_P = t.pending_deletion.c
_NUMBERS = (
    "ledger_id", "generation", "topic_id", "segments", "last_segment", "ledger_created_us", "size_bytes", "epoch",
    "attempts", "openings", "durable",
)  # fmt: skip
_TEXTS = ("batch_id", "application", "component", "topic")

INTENT_COLUMNS: tuple[ColumnElement[Any], ...] = (
    *(column for column in t.pending_deletion.c if column.name != "context"),
    cast_to_text(t.pending_deletion.c.context),
)
"""Columns that `intent_from_row` reads. The offload context is read as text, so that invalid JSON fails no query."""


def intent_from_row(row: Row[Any]) -> DeletionIntent:
    """Convert a row of `INTENT_COLUMNS`. For a damaged row, set `damage`: an error would stop the whole chunk."""
    values = row._mapping  # noqa: SLF001 - public by SQLAlchemy's documentation
    damage = _describe_damage(values)
    numbers = {name: number_or_zero(values[name]) for name in _NUMBERS}
    texts = {  # SQLite accepts bytes in a text column
        name: text.decode(errors="replace") if isinstance(text := values[name], bytes) else str(text) for name in _TEXTS
    }
    return dataclass_from_row(
        DeletionIntent,
        row,
        **(numbers | {"durable": bool(numbers["durable"])}),
        **texts,
        copy=CopyKind(values["copy"]) if values["copy"] in set(CopyKind) else CopyKind.LEDGER,
        keys=parse_owner_keys(values["keys"]),
        context=parse_offload_context_or_empty(values["context"]),
        state=parse_intent_state(values["state"]),
        outcome=parse_outcome(values["state"], values["outcome"]),
        last_error=values["last_error"] or (damage and f"damaged {damage}"),
        keys_left_attempts=number_or_zero(values["keys_left_attempts"]),
        handed_to=values["claim_workflow"],
        damage=damage,
    )


def match_dead_letters() -> ColumnElement[bool]:
    """Select rows in all states except PENDING and DELETED. Ranges of states use the index, but `!=` would not."""
    state, deleted, pending = t.pending_deletion.c.state, DeletionState.DELETED.value, DeletionState.PENDING.value
    return or_(state < deleted, and_(state > deleted, state < pending), state > pending)


def parse_intent_state(stored: str) -> DeletionState:
    """Parse a stored state. An unknown state is parsed as DEAD_LETTERED."""
    return DeletionState(stored) if stored in set(DeletionState) else DeletionState.DEAD_LETTERED


def parse_outcome(state: str, outcome: str | None) -> Outcome | None:
    """Parse an outcome. In an unknown state, return INVALID.

    An unreadable outcome becomes `None` in state PENDING, and the outcome with the state's name in other states.
    """
    if state not in set(DeletionState):
        return Outcome.INVALID
    if outcome in set(Outcome):
        return Outcome(outcome)
    return None if state == DeletionState.PENDING else Outcome(state)


def parse_owner_keys(text: str) -> dict[str, str]:
    """Parse the keys of a ledger owner. An unreadable text has no keys."""
    return {name: str(value) for name, value in (parse_json_object(text) or {}).items()}


def number_or_zero(stored: object) -> int:
    """Return a stored number. Return 0 for text or bytes, which SQLite accepts in a number column."""
    return stored if isinstance(stored, int) else 0


def _describe_damage(stored_values: RowMapping) -> str | None:
    readable = {
        "state": stored_values["state"] in set(DeletionState),
        "copy": stored_values["copy"] in set(CopyKind),
        "keys": parse_json_object(stored_values["keys"]) is not None,
        "context": parse_offload_context(stored_values["context"]) is not None,
        **{name: isinstance(stored_values[name], int) for name in _NUMBERS},
        **{name: isinstance(stored_values[name], str) for name in _TEXTS},
    }
    return next(
        (
            f"{name} (found {str(stored_values[name])[:80]!r})"
            for name, is_readable in readable.items()
            if not is_readable
        ),
        None,
    )


def tally_intents(connection: Connection, *conditions: ColumnElement[bool]) -> IntentTally:
    sums = (func.count(), func.sum(_P.objects_deleted), func.sum(_P.bytes_deleted))
    query = select(_P.state, _P.outcome, *sums).where(*conditions).group_by(_P.state, _P.outcome)
    rows = [(parse_outcome(*row[:2]) or Outcome.RETRYING, *row[2:]) for row in connection.execute(query).all()]
    names = sorted({row[0].value for row in rows})
    return IntentTally(
        outcomes={name: sum(row[1] for row in rows if row[0] == name) for name in names},
        objects=int(sum(row[2] for row in rows)),
        size_bytes=int(sum(row[3] for row in rows)),
    )


def read_next_row_ranges(
    connection: Connection, batch_id: str, *, after: int, rows_per_range: int, limit: int
) -> list[IntentRowRange]:
    """Return at most `limit` ranges of unfinished, unclaimed rows of the batch, with row ids above `after`."""
    page = connection.execute(_select_rows_spanning_next_unfinished(batch_id, after, rows_per_range * limit)).all()
    rows_of_page = ((row.row_id, number_or_zero(row.segments), bool(row.left)) for row in page)
    return [
        IntentRowRange(first=ids[0], last=ids[-1], rows=len(ids))
        for ids in islice(split_batch_into_ranges(rows_of_page, rows_per_range), limit)
    ]


def _select_rows_spanning_next_unfinished(batch_id: str, after: int, max_rows: int) -> Select[Any]:
    is_unfinished, batch = (
        and_(_P.state == DeletionState.PENDING.value, _P.claim_workflow.is_(None)),
        _P.batch_id == batch_id,
    )
    page = (
        select(_P.row_id).where(batch, _P.row_id > after, is_unfinished).order_by(_P.row_id).limit(max_rows).subquery()
    )
    ends = select(func.min(page.c.row_id).label("first"), func.max(page.c.row_id).label("last")).subquery()
    within = and_(_P.row_id >= ends.c.first, _P.row_id <= ends.c.last)
    columns = (_P.row_id, _P.segments, is_unfinished.label("left"))
    return select(*columns).join(ends, within).where(batch).order_by(_P.row_id)


def select_intents_to_file(
    to_delete: ColumnElement[bool], batch_id: str, now_us: int, cause: AuditCause | None, *, durable: bool = False
) -> tuple[list[str], Select[Any]]:
    """Return the column names of new intents, and a query with one row for each copy that satisfies `to_delete`."""
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
        "actor": literal(cause.actor if cause else ""),
        "reason": literal(cause.reason if cause else ""),
        "durable": literal(int(durable)),
    }
    query = select(*(value.label(name) for name, value in columns.items())).select_from(_COPIES).where(to_delete)
    # Order by shard, so that a chunk has few shards and its ledgers share listings.
    return list(columns), query.order_by(t.ledger.c.ledger_id % SHARDS, t.ledger.c.ledger_id, t.ledger_copy.c.kind)


_COPIES = (
    t.ledger.join(t.ledger_copy, t.ledger_copy.c.ledger_id == t.ledger.c.ledger_id)
    .join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id)
    .join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
)


def select_fileable_ledgers(ledgers: ColumnElement[bool]) -> Select[Any]:
    """Select the ids of ledgers with a copy, a list and a topic. An intent needs all three."""
    return select(t.ledger.c.ledger_id).select_from(_COPIES).where(ledgers).distinct()


def count_filed_intents(
    connection: Connection, batch_id: str, now_us: int, *, topic_id: TopicId | None = None
) -> tuple[FiledIntentCount, ...]:
    """Count the intents that this transaction filed in a batch at `now_us`, without intents that were taken over."""
    p = t.pending_deletion.c
    mine = () if topic_id is None else (p.state == DeletionState.PENDING.value, p.topic_id == topic_id)
    query = select(p.component, p.copy, func.count()).where(*mine, p.batch_id == batch_id, p.created_us == now_us)
    rows = connection.execute(query.group_by(p.component, p.copy))
    return tuple(FiledIntentCount(component=row[0], copy=row[1], rows=row[2]) for row in rows)


_NAMES = (
    "row_id", "ledger_id", "copy", "generation", "topic_id", "topic", "batch_id", "claim_workflow", "actor", "reason",
)  # fmt: skip
_LOCKED_COLUMNS = [_P[name] for name in _NAMES]


def lock_held_intents(
    connection: Connection, row_ids: Iterable[int], holder: str, *, only_unclaimed: bool = False
) -> dict[int, Row[Any]]:
    """Lock PENDING rows, ascending. `holder` is the id of the rows' batch, or of the workflow that claimed the rows.

    Rows of another holder are left out. With `only_unclaimed`, rows with a claim are left out, too.
    """
    query = _compile_intent_lock(connection.dialect.name, only_unclaimed=only_unclaimed)
    return {row.row_id: row for row in query.execute(connection, ((row_id,) for row_id in row_ids), holder=holder)}


@cache
def _compile_intent_lock(dialect: str, *, only_unclaimed: bool) -> BulkStatement:
    ids, batch = build_bulk_parameter(dialect, "asked", {"id": BIG}), _P.batch_id == bindparam("holder")
    is_held = (
        and_(batch, _P.claim_workflow.is_(None))
        if only_unclaimed
        else or_(batch, _P.claim_workflow == bindparam("holder"))
    )
    conditions = (_P.row_id.in_(select(ids.source.c.id)), _P.state == DeletionState.PENDING.value, is_held)
    return BulkStatement(
        sql=select(*_LOCKED_COLUMNS).where(*conditions).order_by(_P.row_id).with_for_update(), rows=ids
    )
