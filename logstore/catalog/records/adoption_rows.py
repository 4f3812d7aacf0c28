"""Sole writer of `adoption`: ledgers that wait for adoption (*staged* ledgers), and the outcomes of adoption."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import (
    BIG,
    TEXT,
    BulkStatement,
    build_bulk_parameter,
    build_insert_if_absent,
    is_one_of,
)
from logstore.ports.catalog.records import MAX_SAMPLE_ITEMS, AdoptionOutcome, LedgerDiscrepancy, StorageDiscrepancy
from logstore.positions import LedgerId, TopicId

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_A: Final = t.adoption.c
_MAX_LEDGERS_PER_PAGE: Final = 500
_MAX_PAGE_CHARACTERS: Final = 2 << 20  # JSON text; parsed JSON takes about ten times as much memory


@cache
def _ledger_adapter() -> "TypeAdapter[LedgerDiscrepancy]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - start-up time

    return TypeAdapter(LedgerDiscrepancy)


def replace_staged_ledgers(
    connection: Connection,
    shard: int,
    ledgers: Sequence[LedgerDiscrepancy],
    *,
    above_id: LedgerId,
    up_to_id: LedgerId | None,
) -> None:
    part = [_A.shard == shard, _A.ledger_id > above_id, _A.adoptee.is_(None)]
    if up_to_id is not None:
        part.append(_A.ledger_id <= up_to_id)
    connection.execute(delete(t.adoption).where(*part))
    rows = [
        {
            "ledger_id": ledger.ledger_id,
            "topic_id": ledger.topic_id,
            "shard": shard,
            "standing": ledger.standing.value,
            "facts": _ledger_adapter().dump_json(ledger).decode(),
            "segments": 0,
        }
        for ledger in ledgers
    ]
    if rows:
        connection.execute(build_insert_if_absent(connection, t.adoption), rows)


def read_unsettled_topic_ids(connection: Connection, *, after: TopicId, limit: int) -> list[TopicId]:
    page = select(_A.topic_id).where(_A.adoptee.is_(None), _A.topic_id > after).distinct()
    return [TopicId(topic_id) for topic_id in connection.execute(page.order_by(_A.topic_id).limit(limit)).scalars()]


def iterate_staged_ledgers(connection: Connection, topic_id: TopicId) -> Iterator[list[LedgerDiscrepancy]]:
    """Yield pages of ledgers to adopt, ascending. Only a page of one ledger may exceed `_MAX_PAGE_CHARACTERS`."""
    after = -1
    while ids := _read_next_page_ids(connection, topic_id, after):
        facts = select(_A.facts).where(is_one_of(connection, _A.ledger_id, ids)).order_by(_A.ledger_id)
        yield [_ledger_adapter().validate_json(text) for text in connection.execute(facts).scalars()]
        after = ids[-1]


def _read_next_page_ids(connection: Connection, topic_id: TopicId, after: int) -> list[int]:
    mine = (_A.topic_id == topic_id, _A.ledger_id > after, _A.adoptee.is_(None))
    sizes = select(_A.ledger_id, func.length(_A.facts)).where(*mine)
    sizes = sizes.order_by(_A.ledger_id).limit(_MAX_LEDGERS_PER_PAGE)
    ids, page_characters = list[int](), 0
    for ledger_id, characters in connection.execute(sizes):
        page_characters += characters
        if ids and page_characters > _MAX_PAGE_CHARACTERS:
            break
        ids.append(ledger_id)
    return ids


def store_outcomes_and_clear_staged_data(
    connection: Connection,
    outcome_by_ledger: Mapping[LedgerId, AdoptionOutcome],
    segments_by_ledger: Mapping[LedgerId, int],
) -> None:
    rows = [
        (ledger_id, outcome.value, segments_by_ledger.get(ledger_id, 0))
        for ledger_id, outcome in outcome_by_ledger.items()
    ]
    _compile_outcome_update(connection.dialect.name).execute(connection, rows, facts="{}")


@cache
def _compile_outcome_update(dialect: str) -> BulkStatement:
    settled = build_bulk_parameter(dialect, "settled", {"ledger_id": BIG, "adoptee": TEXT, "segments": BIG})
    c = settled.source.c
    mine = update(t.adoption).where(_A.ledger_id == c.ledger_id)
    values = {"adoptee": c.adoptee, "segments": c.segments, "facts": bindparam("facts")}
    return BulkStatement(sql=mine.values(values), rows=settled)


def store_outcomes_of_unstaged_ledgers(
    connection: Connection,
    topic_by_ledger: Mapping[LedgerId, TopicId],
    outcome: AdoptionOutcome,
    *,
    overwrite: bool = False,
) -> None:
    rows = [
        {
            "ledger_id": ledger_id,
            "topic_id": topic_id,
            "shard": -1,
            "standing": "",
            "facts": "{}",
            "adoptee": outcome.value,
            "segments": 0,
        }
        for ledger_id, topic_id in topic_by_ledger.items()
    ]
    if rows:
        connection.execute(build_insert_if_absent(connection, t.adoption), rows)
        if overwrite:
            store_outcomes_and_clear_staged_data(connection, dict.fromkeys(topic_by_ledger, outcome), {})


def count_ledgers_by_outcome(connection: Connection) -> dict[AdoptionOutcome, tuple[int, int]]:
    query = select(_A.adoptee, func.count(), func.sum(_A.segments)).where(_A.adoptee.is_not(None))
    rows = connection.execute(query.group_by(_A.adoptee))
    return {AdoptionOutcome(name): (ledgers, int(segments)) for name, ledgers, segments in rows}


def count_absent_ledgers(connection: Connection) -> int:
    query = select(func.count()).select_from(t.adoption).where(_A.standing == StorageDiscrepancy.ABSENT.value)
    return connection.execute(query).scalar_one()


def count_removed_ledgers(connection: Connection) -> int:
    """Count ledgers whose rows adoption has removed. ENDED ledgers and LEFT_OUT ledgers do not count."""
    had_row = _A.standing.not_in([StorageDiscrepancy.STRANGER.value, StorageDiscrepancy.ENDED.value])
    is_settled = (_A.adoptee.is_not(None), _A.adoptee != AdoptionOutcome.LEFT_OUT.value)
    is_removed = ~exists().where(t.ledger.c.ledger_id == _A.ledger_id)
    query = select(func.count()).select_from(t.adoption).where(had_row, *is_settled, is_removed)
    return connection.execute(query).scalar_one()


def sample_ledger_ids(connection: Connection, outcome: AdoptionOutcome) -> list[int]:
    page = select(_A.ledger_id).where(_A.adoptee == outcome.value).order_by(_A.ledger_id).limit(MAX_SAMPLE_ITEMS)
    return list(connection.execute(page).scalars())


def sample_topic_names(connection: Connection, outcome: AdoptionOutcome) -> list[str]:
    mine = select(t.topic.c.name).join(t.adoption, _A.topic_id == t.topic.c.topic_id).where(_A.adoptee == outcome.value)
    return list(connection.execute(mine.distinct().order_by(t.topic.c.name).limit(MAX_SAMPLE_ITEMS)).scalars())


def has_unsettled_topic(connection: Connection) -> bool:
    return bool(connection.execute(select(exists().where(_A.adoptee.is_(None)))).scalar())
