"""SELECT statements of bulk jobs, for `open_arrow_reader`. Most of them select a range of a key.

A range includes `first` and excludes `end`. Rows ascend by the key. A column is a 64-bit integer or a text. A missing
text is empty. Queries by ids raise `InvalidInput` for more than `MAX_LEDGERS_PER_QUERY` ids.
"""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Text, case, cast, exists, func, literal_column, or_, select, union

from logstore.catalog import tables as t
from logstore.catalog.deletion.run_rows import match_stalled_intents
from logstore.catalog.engine.dialect_sql import DatabaseClock, cast_to_text, cast_to_text_or_empty
from logstore.catalog.log.component_ledgers import REFERRING_COLUMN_BY_COMPONENT
from logstore.catalog.reconciliation.rows_naming_ledgers import build_segment_sum_aggregates
from logstore.deletion.intents import DeletionState
from logstore.errors import InvalidInput
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerState
from logstore.ports.catalog.log import TopicState

MAX_LEDGERS_PER_QUERY: Final = 5_000  # of queries that take ids

_L, _C, _P = t.ledger.c, t.ledger_copy.c, t.pending_deletion.c
CREATING: Final = 1
LISTED: Final = 2
OTHER_APPLICATION: Final = 4
"""Bits of `flags`. They replace the texts `state` and `application`, which would be as large as all others together."""


def select_ledgers_with_flags(first: int, end: int, own_application: str) -> Select[Any]:
    """Select ledgers of a range. `flags` says whether a ledger is CREATING, listed, and of another application."""
    flags = (
        _cast_to_flag(_L.state == LedgerState.CREATING.value)
        + _cast_to_flag(_L.place.is_not(None)) * literal_column(str(LISTED), t.Big)
        + _cast_to_flag(_L.application != own_application) * literal_column(str(OTHER_APPLICATION), t.Big)
    )
    columns = (_L.ledger_id, _L.list_id, _L.segments, _L.last_segment, _L.size_bytes, _L.created_us)
    within = _is_in_range(_L.ledger_id, first, end)
    return select(*columns, flags.label("flags")).where(*within).order_by(_L.ledger_id)


NUMBER_MODULUS: Final = 4_093
SIZE_MODULUS: Final = 65_521
"""Prime moduli, with which the weighted sum of a ledger with millions of segments fits in 64 bits."""


def select_weighted_segment_sums(first: int, end: int) -> Select[Any]:
    """Select a weighted sum of segment sizes for each ledger with two or more segments.

    The weight of a segment depends on the segment's number. Unlike a plain sum, the weighted sum shows that two
    segments of different sizes were exchanged, or that a segment has bytes of another segment.
    """
    c, one = t.segment.c, literal_column("1", t.Big)
    place = c.number % literal_column(str(NUMBER_MODULUS), t.Big) + one
    moment = func.sum(place * place * (c.size_bytes % literal_column(str(SIZE_MODULUS), t.Big)))
    query = select(c.ledger_id, cast(moment, t.Big).label("moment")).where(*_is_in_range(c.ledger_id, first, end))
    return query.group_by(c.ledger_id).having(func.count() > one).order_by(c.ledger_id)


def select_ledgers_with_wrong_sums(first: int, end: int) -> Select[Any]:
    """Select ledgers whose totals differ from the sums over their segments. One statement reads totals and segments."""
    c, zero = t.segment.c, literal_column("0", t.Big)
    totals = build_segment_sum_aggregates()
    columns = [total.label(name) for name, total in totals.items()]
    sums = select(c.ledger_id, *columns).where(*_is_in_range(c.ledger_id, first, end)).group_by(c.ledger_id).subquery()
    differs = or_(*(_L[name] != func.coalesce(sums.c[name], zero) for name in totals))
    source = t.ledger.outerjoin(sums, sums.c.ledger_id == _L.ledger_id)
    return select(_L.ledger_id).select_from(source).where(*_is_in_range(_L.ledger_id, first, end), differs)


def select_max_segments(first: int, end: int) -> Select[Any]:
    """Select the number of segments of the ledger with the most segments, or 0 if there is no ledger."""
    segments = func.coalesce(func.max(_L.segments), literal_column("0", t.Big))
    return select(cast(segments, t.Big).label("segments")).where(*_is_in_range(_L.ledger_id, first, end))


def select_ledgers_of_other_applications(first: int, end: int, own_application: str) -> Select[Any]:
    within = _is_in_range(_L.ledger_id, first, end)
    return select(_L.ledger_id, _L.application).where(*within, _L.application != own_application).order_by(_L.ledger_id)


LIVE: Final = 1
TIERED: Final = 2
"""Bits of a copy's `flags`."""


def select_copies(first: int, end: int) -> Select[Any]:
    flags = _cast_to_flag(_C.state == CopyState.LIVE.value) + _cast_to_flag(
        _C.kind == CopyKind.OFFLOADED_LEDGER.value
    ) * literal_column(str(TIERED), t.Big)
    within = _is_in_range(_C.ledger_id, first, end)
    return select(_C.ledger_id, flags.label("flags")).where(*within).order_by(_C.ledger_id)


def select_referenced_component_ledgers(first: int, end: int) -> Select[Any]:
    """Select the ledgers that a column of `REFERRING_COLUMN_BY_COMPONENT` names, with the column's component."""
    each = (
        select(key.label("ledger_id"), literal_column(f"'{name}'", Text).label("component")).where(
            *_is_in_range(key, first, end)
        )
        for name, key in REFERRING_COLUMN_BY_COMPONENT.items()
    )
    references = union(*each).subquery()
    return select(references.c.ledger_id, references.c.component)


def select_ledger_lists() -> Select[Any]:
    """Select ledger lists with the topic's encoded name, ascending by `list_id`. `owner` is a JSON object."""
    c = t.ledger_list.c
    source = t.ledger_list.outerjoin(t.topic, t.topic.c.topic_id == c.topic_id)
    columns = (c.list_id, c.topic_id, c.component, c.owner, cast_to_text_or_empty(t.topic.c.name, "topic"))
    return select(*columns).select_from(source).order_by(c.list_id)


def select_tiered_copies(first: int, end: int) -> Select[Any]:
    """Select tiered copies with their context as stored. If the row of the ledger is lost, its columns are null."""
    source = t.ledger_copy.outerjoin(t.ledger, _L.ledger_id == _C.ledger_id)
    columns = (_C.ledger_id, _L.created_us, _C.state, cast_to_text(_C.context), _L.size_bytes)
    is_tiered = (_C.kind == CopyKind.OFFLOADED_LEDGER.value, *_is_in_range(_C.ledger_id, first, end))
    return select(*columns).select_from(source).where(*is_tiered).order_by(_C.ledger_id)


def select_undeleted_intents(first_row: int, end_row: int) -> Select[Any]:
    """Select unfinished intents and dead letters.

    `stalled` is 1 if no workflow works on an intent, by the database's clock.
    """
    now = select(DatabaseClock()).scalar_subquery()
    return (
        select(
            _P.row_id,
            _P.ledger_id,
            _P.copy,
            _P.state,
            cast_to_text(_P.context),
            _P.topic,
            _P.size_bytes,
            _cast_to_flag(match_stalled_intents(now)).label("stalled"),
            _P.created_us,
        )
        .where(_P.state != DeletionState.DELETED.value, *_is_in_range(_P.row_id, first_row, end_row))
        .order_by(_P.row_id)
    )


def select_copies_with_context(ledger_ids: Collection[int]) -> Select[Any]:
    return select(_C.ledger_id, _C.kind, cast_to_text(_C.context)).where(_is_among(_C.ledger_id, ledger_ids))


def select_segments(ledger_ids: Collection[int]) -> Select[Any]:
    c = t.segment.c
    return (
        select(c.ledger_id, c.number, c.size_bytes)
        .where(_is_among(c.ledger_id, ledger_ids))
        .order_by(c.ledger_id, c.number)
    )


def select_unreferenced_ledgers(ledger_ids: Collection[int]) -> Select[Any]:
    """Select the `ledger_ids` that have a row, are not CREATING and have no reference.

    One statement reads ledgers and references at the same time. The queries of ranges read one table after the other,
    and a snapshot or a schema may be published between two of them.
    """
    component = func.coalesce(t.ledger_list.c.component, "")
    references = [
        (component == name, exists().where(key == _L.ledger_id)) for name, key in REFERRING_COLUMN_BY_COMPONENT.items()
    ]
    source = t.ledger.outerjoin(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    unnamed = ~case(*references, else_=_L.place.is_not(None))
    attached = _L.state != LedgerState.CREATING.value
    return select(_L.ledger_id).select_from(source).where(_is_among(_L.ledger_id, ledger_ids), attached, unnamed)


def select_stalled_intents(row_ids: Collection[int]) -> Select[Any]:
    now = select(DatabaseClock()).scalar_subquery()
    return select(_P.row_id).where(_is_among(_P.row_id, row_ids, "row ids"), match_stalled_intents(now))


def select_copy_sizes_to_scrub(first: int, end: int, topics: Collection[int]) -> Select[Any]:
    """Select LIVE copies with size and number of objects (1 for a tiered copy). Empty `topics` selects all topics."""
    tiered = _C.kind == CopyKind.OFFLOADED_LEDGER.value
    objects = case((tiered, literal_column("1", t.Big)), else_=_L.segments).label("objects")
    columns = (_L.ledger_id, _L.size_bytes, objects)
    source = t.ledger.join(t.ledger_copy, _C.ledger_id == _L.ledger_id)
    return (
        select(*columns)
        .select_from(source)
        .where(*_match_live_copies_to_scrub(first, end, topics))
        .order_by(_L.ledger_id)
    )


def select_segments_to_scrub(first: int, end: int, topics: Collection[int]) -> Select[Any]:
    """Select the segments of LIVE primary copies with the topic's name, ordered by ledger and number."""
    c, lists = t.segment.c, t.ledger_list.c
    source = (
        t.segment.join(t.ledger, _L.ledger_id == c.ledger_id)
        .join(t.ledger_copy, (_C.ledger_id == _L.ledger_id) & (_C.kind == CopyKind.LEDGER.value))
        .outerjoin(t.ledger_list, lists.list_id == _L.list_id)
        .outerjoin(t.topic, t.topic.c.topic_id == lists.topic_id)
    )
    columns = (c.ledger_id, c.number, c.first_entry, c.entries, c.size_bytes, cast_to_text_or_empty(c.sha256, "sha256"))
    return (
        select(*columns, cast_to_text_or_empty(t.topic.c.name, "topic"))
        .select_from(source)
        .where(*_match_live_copies_to_scrub(first, end, topics))
        .order_by(c.ledger_id, c.number)
    )


def select_tiered_copies_to_scrub(first: int, end: int, topics: Collection[int]) -> Select[Any]:
    """Select LIVE tiered copies with their stored context and the topic's name."""
    lists = t.ledger_list.c
    source = (
        t.ledger.join(t.ledger_copy, (_C.ledger_id == _L.ledger_id) & (_C.kind == CopyKind.OFFLOADED_LEDGER.value))
        .outerjoin(t.ledger_list, lists.list_id == _L.list_id)
        .outerjoin(t.topic, t.topic.c.topic_id == lists.topic_id)
    )
    columns = (_L.ledger_id, cast_to_text(_C.context), _L.size_bytes, cast_to_text_or_empty(t.topic.c.name, "topic"))
    return (
        select(*columns)
        .select_from(source)
        .where(*_match_live_copies_to_scrub(first, end, topics))
        .order_by(_L.ledger_id)
    )


def _match_live_copies_to_scrub(first: int, end: int, topics: Collection[int]) -> tuple[ColumnElement[bool], ...]:
    lists = t.ledger_list.c
    list_ids = select(lists.list_id).where(_is_among(lists.topic_id, topics, "topic ids"))
    is_of_topics = (_L.list_id.in_(list_ids),) if topics else ()
    return (_C.state == CopyState.LIVE.value, *_is_in_range(_L.ledger_id, first, end), *is_of_topics)


def select_active_topic_segment_counts() -> Select[Any]:
    """Select ACTIVE topics. `size` is the number of segments of the topic's message ledgers."""
    c, lists = t.topic.c, t.ledger_list
    data = (lists.c.topic_id == c.topic_id) & (lists.c.component == Component.MANAGED_LEDGER.value)
    source = t.topic.outerjoin(lists, data).outerjoin(t.ledger, _L.list_id == lists.c.list_id)
    size = cast(func.coalesce(func.sum(_L.segments), literal_column("0", t.Big)), t.Big).label("size")
    active = c.state == TopicState.ACTIVE.value
    return select(c.topic_id, size).select_from(source).where(active).group_by(c.topic_id).order_by(c.topic_id)


def _is_among(key: ColumnElement[Any], ids: Collection[int], what: str = "ledger ids") -> ColumnElement[bool]:
    if len(ids) > MAX_LEDGERS_PER_QUERY:
        raise InvalidInput(what, expected=f"at most {MAX_LEDGERS_PER_QUERY:,}", found=len(ids))
    return key.in_([int(number) for number in ids])


def select_ledger_and_intent_bounds() -> Select[Any]:
    """Select `first_ledger`, `last_ledger`, the number of `ledgers`, and `first_row` and `last_row` of the intents.

    For an empty table, the first id is 0 and the last id is -1.
    """

    def extreme(function: Any, key: ColumnElement[int], empty: str, name: str) -> ColumnElement[Any]:  # noqa: ANN401
        return select(func.coalesce(function(key), literal_column(empty, t.Big))).scalar_subquery().label(name)

    return select(
        extreme(func.min, _L.ledger_id, "0", "first_ledger"),
        extreme(func.max, _L.ledger_id, "-1", "last_ledger"),
        select(func.count()).select_from(t.ledger).scalar_subquery().label("ledgers"),
        extreme(func.min, _P.row_id, "0", "first_row"),
        extreme(func.max, _P.row_id, "-1", "last_row"),
    )


def _is_in_range(key: ColumnElement[Any], first: int, end: int) -> tuple[ColumnElement[bool], ...]:
    return key >= first, key < end


def _cast_to_flag(condition: ColumnElement[bool]) -> ColumnElement[int]:
    one, zero = literal_column("1", t.Big), literal_column("0", t.Big)
    return case((condition, one), else_=zero)
