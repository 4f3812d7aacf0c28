"""Reads of the catalog by bulk jobs: SELECTs, most of them over ranges of a key, run by `open_arrow_reader`.

A range is half-open: `first` is in it, `end` is not. Rows ascend by the key. Each column is a 64-bit integer or a
text, and where a row has no such text it is empty: see `ArrowReader.batches`.
"""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Text, case, cast, exists, func, literal_column, or_, select, union

from infra.catalog import tables as t
from infra.catalog.deletion.runs import is_stalled
from infra.catalog.engine.dialects import DatabaseClock, as_text, text_or_empty
from infra.catalog.log.components import REFERRING_COLUMN_BY_COMPONENT
from infra.catalog.reconciliation.known import segment_totals
from logstore.deletion.intents import DeletionState
from logstore.errors import InvalidInput
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerState
from logstore.ports.catalog import TopicState

MOST_LEDGERS: Final = 5_000
"""That one statement names by their ids."""

_L, _C, _P = t.ledger.c, t.ledger_copy.c, t.pending_deletion.c
CREATING: Final = 1
LISTED: Final = 2
OTHER_APPLICATION: Final = 4
"""Bits of `flags`: two texts for each of millions of rows would cost as much as all the rest of them."""


def ledgers(first: int, end: int, application: str) -> Select[Any]:
    """Each ledger of these ids; `flags` says what its texts mean, beside an application's name."""
    flags = (
        _flag(_L.state == LedgerState.CREATING.value)
        + _flag(_L.place.is_not(None)) * literal_column(str(LISTED), t.Big)
        + _flag(_L.application != application) * literal_column(str(OTHER_APPLICATION), t.Big)
    )
    columns = (_L.ledger_id, _L.list_id, _L.segments, _L.last_segment, _L.size_bytes, _L.created_us)
    within = _within(_L.ledger_id, first, end)
    return select(*columns, flags.label("flags")).where(*within).order_by(_L.ledger_id)


NUMBER_MODULUS: Final = 4_093
SIZE_MODULUS: Final = 65_521
"""Primes that keep the moment of a ledger of some millions of segments within 64 bits."""


def segment_moments(first: int, end: int) -> Select[Any]:
    """The second moment of the segments of each of these ledgers that has two or more: sizes by squares of numbers.

    A sum of sizes does not show that two segments changed places, nor that one is longer by what another lacks.
    """
    c, one = t.segment.c, literal_column("1", t.Big)
    place = c.number % literal_column(str(NUMBER_MODULUS), t.Big) + one
    moment = func.sum(place * place * (c.size_bytes % literal_column(str(SIZE_MODULUS), t.Big)))
    query = select(c.ledger_id, cast(moment, t.Big).label("moment")).where(*_within(c.ledger_id, first, end))
    return query.group_by(c.ledger_id).having(func.count() > one).order_by(c.ledger_id)


def ledgers_with_wrong_segment_sums(first: int, end: int) -> Select[Any]:
    """Those of these ledgers whose rows of segments are not what the ledger's row counts, at one moment."""
    c, zero = t.segment.c, literal_column("0", t.Big)
    totals = segment_totals()
    columns = [total.label(name) for name, total in totals.items()]
    sums = select(c.ledger_id, *columns).where(*_within(c.ledger_id, first, end)).group_by(c.ledger_id).subquery()
    differs = or_(*(_L[name] != func.coalesce(sums.c[name], zero) for name in totals))
    source = t.ledger.outerjoin(sums, sums.c.ledger_id == _L.ledger_id)
    return select(_L.ledger_id).select_from(source).where(*_within(_L.ledger_id, first, end), differs)


def most_segments(first: int, end: int) -> Select[Any]:
    """One row: the most segments that any of these ledgers has, 0 if there is none."""
    most = func.coalesce(func.max(_L.segments), literal_column("0", t.Big))
    return select(cast(most, t.Big).label("segments")).where(*_within(_L.ledger_id, first, end))


def applications(first: int, end: int, application: str) -> Select[Any]:
    """Ledgers of these ids that are of another application, with its name."""
    within = _within(_L.ledger_id, first, end)
    return select(_L.ledger_id, _L.application).where(*within, _L.application != application).order_by(_L.ledger_id)


LIVE: Final = 1
TIERED: Final = 2
"""Bits of a copy's `flags`."""


def copies(first: int, end: int) -> Select[Any]:
    """Each copy of ledgers of these ids, without its context."""
    flags = _flag(_C.state == CopyState.LIVE.value) + _flag(
        _C.kind == CopyKind.OFFLOADED_LEDGER.value
    ) * literal_column(str(TIERED), t.Big)
    within = _within(_C.ledger_id, first, end)
    return select(_C.ledger_id, flags.label("flags")).where(*within).order_by(_C.ledger_id)


def named_ledgers(first: int, end: int) -> Select[Any]:
    """Return ledgers of these ids, with their component, that a row of `REFERRING_COLUMN_BY_COMPONENT` names.

    These components' ledgers are in use where such a row names them, a place in the list or not.
    """
    each = (
        select(key.label("ledger_id"), literal_column(f"'{name}'", Text).label("component")).where(
            *_within(key, first, end)
        )
        for name, key in REFERRING_COLUMN_BY_COMPONENT.items()
    )
    named = union(*each).subquery()
    return select(named.c.ledger_id, named.c.component)


def lists() -> Select[Any]:
    """Each list of ledgers, with its topic's encoded name; `owner` is one JSON object. By `list_id`."""
    c = t.ledger_list.c
    source = t.ledger_list.outerjoin(t.topic, t.topic.c.topic_id == c.topic_id)
    columns = (c.list_id, c.topic_id, c.component, c.owner, text_or_empty(t.topic.c.name, "topic"))
    return select(*columns).select_from(source).order_by(c.list_id)


def tiered_copies(first: int, end: int) -> Select[Any]:
    """Each tiered copy of ledgers of these ids, with its context, kept as found, and what its ledger's row says.

    One whose ledger has lost its row names its objects still: it is among them, without a time and a size.
    """
    source = t.ledger_copy.outerjoin(t.ledger, _L.ledger_id == _C.ledger_id)
    columns = (_C.ledger_id, _L.created_us, _C.state, as_text(_C.context), _L.size_bytes)
    mine = (_C.kind == CopyKind.OFFLOADED_LEDGER.value, *_within(_C.ledger_id, first, end))
    return select(*columns).select_from(source).where(*mine).order_by(_C.ledger_id)


def intents(first: int, end: int) -> Select[Any]:
    """Each intent of these row ids, unless nothing of it is left in storage; `stalled` is 1 if no workflow works on it.

    Whether a claim has ended, the database's clock says at the moment of the read.
    """
    now = select(DatabaseClock()).scalar_subquery()
    return (
        select(
            _P.row_id,
            _P.ledger_id,
            _P.copy,
            _P.state,
            as_text(_P.context),
            _P.topic,
            _P.size_bytes,
            _flag(is_stalled(now)).label("stalled"),
            _P.created_us,
        )
        .where(_P.state != DeletionState.DELETED.value, *_within(_P.row_id, first, end))
        .order_by(_P.row_id)
    )


def copies_of(ledger_ids: Collection[int]) -> Select[Any]:
    """Each copy of these ledgers, with its context, kept as found.

    Raises:
        InvalidInput: More than `MOST_LEDGERS`.
    """
    return select(_C.ledger_id, _C.kind, as_text(_C.context)).where(_among(_C.ledger_id, ledger_ids))


def segments(ledger_ids: Collection[int]) -> Select[Any]:
    """Each segment of these ledgers, by ledger and number.

    Raises:
        InvalidInput: More than `MOST_LEDGERS`.
    """
    c = t.segment.c
    return (
        select(c.ledger_id, c.number, c.size_bytes)
        .where(_among(c.ledger_id, ledger_ids))
        .order_by(c.ledger_id, c.number)
    )


def unreferenced_ledgers(ledger_ids: Collection[int]) -> Select[Any]:
    """Those of these ledgers that have a row which nothing names, at the moment of the read, and are not CREATING.

    One statement sees a ledger and what names it at one moment; ranges are read table by table, between which a
    snapshot or a schema may be published.

    Raises:
        InvalidInput: More than `MOST_LEDGERS`.
    """
    component = func.coalesce(t.ledger_list.c.component, "")
    named = [
        (component == name, exists().where(key == _L.ledger_id)) for name, key in REFERRING_COLUMN_BY_COMPONENT.items()
    ]
    source = t.ledger.outerjoin(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    unnamed = ~case(*named, else_=_L.place.is_not(None))
    attached = _L.state != LedgerState.CREATING.value
    return select(_L.ledger_id).select_from(source).where(_among(_L.ledger_id, ledger_ids), attached, unnamed)


def stalled_intents(row_ids: Collection[int]) -> Select[Any]:
    """Which of these rows are intents without a workflow, by the database's clock at the moment of the read.

    Raises:
        InvalidInput: More than `MOST_LEDGERS`.
    """
    now = select(DatabaseClock()).scalar_subquery()
    return select(_P.row_id).where(_among(_P.row_id, row_ids, "row ids"), is_stalled(now))


def topic_segments(topic_id: int) -> Select[Any]:
    """Each registered segment of a topic's data ledgers that are listed and have a primary copy, in entry order."""
    c, lists = t.segment.c, t.ledger_list
    source = (
        t.segment.join(t.ledger, _L.ledger_id == c.ledger_id)
        .join(lists, lists.c.list_id == _L.list_id)
        .join(t.ledger_copy, (_C.ledger_id == _L.ledger_id) & (_C.kind == CopyKind.LEDGER.value))
    )
    mine = (lists.c.topic_id == topic_id, lists.c.component == Component.MANAGED_LEDGER.value, _L.place.is_not(None))
    columns = (c.ledger_id, c.number, c.first_entry, c.entries, c.size_bytes, text_or_empty(c.sha256, "sha256"))
    return select(*columns).select_from(source).where(*mine).order_by(_L.place, c.number)


def scrubbed_ledgers(first: int, end: int, topics: Collection[int]) -> Select[Any]:
    """Each LIVE copy of ledgers of these ids, with its bytes and its objects: the segments, or one tiered object.

    Args:
        first: Id, inclusive.
        end: Id, exclusive.
        topics: Whose ledgers, by id; none: of every topic.
    """
    tiered = _C.kind == CopyKind.OFFLOADED_LEDGER.value
    objects = case((tiered, literal_column("1", t.Big)), else_=_L.segments).label("objects")
    columns = (_L.ledger_id, _L.size_bytes, objects)
    source = t.ledger.join(t.ledger_copy, _C.ledger_id == _L.ledger_id)
    return select(*columns).select_from(source).where(*_scrubbed(first, end, topics)).order_by(_L.ledger_id)


def scrubbed_segments(first: int, end: int, topics: Collection[int]) -> Select[Any]:
    """Each segment of these ledgers that have a LIVE primary copy, with its topic; by ledger and number."""
    c, lists = t.segment.c, t.ledger_list.c
    source = (
        t.segment.join(t.ledger, _L.ledger_id == c.ledger_id)
        .join(t.ledger_copy, (_C.ledger_id == _L.ledger_id) & (_C.kind == CopyKind.LEDGER.value))
        .outerjoin(t.ledger_list, lists.list_id == _L.list_id)
        .outerjoin(t.topic, t.topic.c.topic_id == lists.topic_id)
    )
    columns = (c.ledger_id, c.number, c.first_entry, c.entries, c.size_bytes, text_or_empty(c.sha256, "sha256"))
    return (
        select(*columns, text_or_empty(t.topic.c.name, "topic"))
        .select_from(source)
        .where(*_scrubbed(first, end, topics))
        .order_by(c.ledger_id, c.number)
    )


def scrubbed_copies(first: int, end: int, topics: Collection[int]) -> Select[Any]:
    """Each LIVE tiered copy of these ledgers, with its context, kept as found, and its topic."""
    lists = t.ledger_list.c
    source = (
        t.ledger.join(t.ledger_copy, (_C.ledger_id == _L.ledger_id) & (_C.kind == CopyKind.OFFLOADED_LEDGER.value))
        .outerjoin(t.ledger_list, lists.list_id == _L.list_id)
        .outerjoin(t.topic, t.topic.c.topic_id == lists.topic_id)
    )
    columns = (_L.ledger_id, as_text(_C.context), _L.size_bytes, text_or_empty(t.topic.c.name, "topic"))
    return select(*columns).select_from(source).where(*_scrubbed(first, end, topics)).order_by(_L.ledger_id)


def _scrubbed(first: int, end: int, topics: Collection[int]) -> tuple[ColumnElement[bool], ...]:
    lists = t.ledger_list.c
    mine = select(lists.list_id).where(_among(lists.topic_id, topics, "topic ids"))
    of_topics = (_L.list_id.in_(mine),) if topics else ()
    return (_C.state == CopyState.LIVE.value, *_within(_L.ledger_id, first, end), *of_topics)


def topic_sizes() -> Select[Any]:
    """Each topic that is not being deleted, and as `size` the segments of its data ledgers; by `topic_id`."""
    c, lists = t.topic.c, t.ledger_list
    data = (lists.c.topic_id == c.topic_id) & (lists.c.component == Component.MANAGED_LEDGER.value)
    source = t.topic.outerjoin(lists, data).outerjoin(t.ledger, _L.list_id == lists.c.list_id)
    size = cast(func.coalesce(func.sum(_L.segments), literal_column("0", t.Big)), t.Big).label("size")
    active = c.state == TopicState.ACTIVE.value
    return select(c.topic_id, size).select_from(source).where(active).group_by(c.topic_id).order_by(c.topic_id)


def _among(key: ColumnElement[Any], ids: Collection[int], what: str = "ledger ids") -> ColumnElement[bool]:
    if len(ids) > MOST_LEDGERS:
        raise InvalidInput(what, expected=f"at most {MOST_LEDGERS:,}", found=len(ids))
    return key.in_([int(one) for one in ids])


def bounds() -> Select[Any]:
    """One row: `first_ledger`, `last_ledger`, `ledgers` (rows), and `first_row` and `last_row` of the intents.

    Of an empty table the first is 0 and the last -1.
    """

    def end(which: Any, key: ColumnElement[int], empty: str, name: str) -> ColumnElement[Any]:  # noqa: ANN401
        return select(func.coalesce(which(key), literal_column(empty, t.Big))).scalar_subquery().label(name)

    return select(
        end(func.min, _L.ledger_id, "0", "first_ledger"),
        end(func.max, _L.ledger_id, "-1", "last_ledger"),
        select(func.count()).select_from(t.ledger).scalar_subquery().label("ledgers"),
        end(func.min, _P.row_id, "0", "first_row"),
        end(func.max, _P.row_id, "-1", "last_row"),
    )


def _within(key: ColumnElement[Any], first: int, end: int) -> tuple[ColumnElement[bool], ...]:
    return key >= first, key < end


def _flag(condition: ColumnElement[bool]) -> ColumnElement[int]:
    one, zero = literal_column("1", t.Big), literal_column("0", t.Big)
    return case((condition, one), else_=zero)
