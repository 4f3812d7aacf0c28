"""Rows of what adoption found in storage, and what became of it: nothing else writes `adoption`."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from infra.catalog import tables as t
from infra.catalog.engine.many import BIG, TEXT, Statement, ignoring_conflict, rows_of
from logstore.ports.catalog.adoption import SAMPLE, Adoptee, StagedLedger
from logstore.positions import LedgerId, TopicId

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_A: Final = t.adoption.c


@cache
def _form() -> "TypeAdapter[StagedLedger]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - start-up time

    return TypeAdapter(StagedLedger)


def put_staged(connection: Connection, shard: int, found: Sequence[StagedLedger]) -> None:
    """Replace what a shard's earlier look had found, as far as no topic was settled with it."""
    connection.execute(delete(t.adoption).where(_A.shard == shard, _A.adoptee.is_(None)))
    rows = [
        {
            "ledger_id": one.ledger_id,
            "topic_id": one.topic_id,
            "shard": shard,
            "standing": one.standing.value,
            "facts": _form().dump_json(one).decode(),
            "segments": 0,
        }
        for one in found
    ]
    if rows:
        connection.execute(ignoring_conflict(connection, t.adoption), rows)


def unsettled(connection: Connection, *, after: TopicId, limit: int) -> list[TopicId]:
    """Topics with rows that are not settled, ascending."""
    page = select(_A.topic_id).where(_A.adoptee.is_(None), _A.topic_id > after).distinct()
    return [TopicId(one) for one in connection.execute(page.order_by(_A.topic_id).limit(limit)).scalars()]


def staged(connection: Connection, topic_id: TopicId) -> list[StagedLedger]:
    """What is not settled of a topic, by ledger."""
    mine = select(_A.facts).where(_A.topic_id == topic_id, _A.adoptee.is_(None)).order_by(_A.ledger_id)
    return [_form().validate_json(one) for one in connection.execute(mine).scalars()]


def settled(connection: Connection, became: Mapping[LedgerId, Adoptee], segments: Mapping[LedgerId, int]) -> None:
    """Write down what became of staged ledgers; what was found of them is not needed any more."""
    rows = [(ledger_id, one.value, segments.get(ledger_id, 0)) for ledger_id, one in became.items()]
    _settling(connection.dialect.name).execute(connection, rows, facts="{}")


@cache
def _settling(dialect: str) -> Statement:
    told = rows_of(dialect, "told", {"ledger_id": BIG, "adoptee": TEXT, "segments": BIG})
    c = told.source.c
    mine = update(t.adoption).where(_A.ledger_id == c.ledger_id)
    values = {"adoptee": c.adoptee, "segments": c.segments, "facts": bindparam("facts")}
    return Statement(sql=mine.values(values), rows=told)


def tell(connection: Connection, ledgers: Mapping[LedgerId, TopicId], became: Adoptee) -> None:
    """Write down what became of ledgers of which storage was not asked, or said nothing new."""
    rows = [
        {
            "ledger_id": ledger_id,
            "topic_id": topic_id,
            "shard": -1,
            "standing": "",
            "facts": "{}",
            "adoptee": became.value,
            "segments": 0,
        }
        for ledger_id, topic_id in ledgers.items()
    ]
    if rows:
        connection.execute(ignoring_conflict(connection, t.adoption), rows)


def counted(connection: Connection) -> dict[Adoptee, tuple[int, int]]:
    """Of each thing that may become of a ledger: how many ledgers, and how many segments were adopted."""
    query = select(_A.adoptee, func.count(), func.sum(_A.segments)).where(_A.adoptee.is_not(None))
    return {Adoptee(name): (rows, int(sum_)) for name, rows, sum_ in connection.execute(query.group_by(_A.adoptee))}


def sample(connection: Connection, became: Adoptee) -> tuple[LedgerId, ...]:
    """The first ids of those of which that became."""
    page = select(_A.ledger_id).where(_A.adoptee == became.value).order_by(_A.ledger_id).limit(SAMPLE)
    return tuple(LedgerId(one) for one in connection.execute(page).scalars())


def is_left(connection: Connection) -> bool:
    """Whether any topic is not settled."""
    return bool(connection.execute(select(exists().where(_A.adoptee.is_(None)))).scalar())
