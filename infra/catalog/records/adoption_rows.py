"""Rows of what adoption found in storage, and what became of it: nothing else writes `adoption`."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from infra.catalog import tables as t
from infra.catalog.engine.dialects import BIG, TEXT, Statement, among, bulk_parameter, insert_if_absent
from logstore.ports.catalog.rebuilding import SAMPLE, Adoptee, StagedLedger, Standing
from logstore.positions import LedgerId, TopicId

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_A: Final = t.adoption.c
_LEDGERS: Final = 500
_CHARACTERS: Final = 2 << 20  # of JSON; some ten times as much in memory


@cache
def _form() -> "TypeAdapter[StagedLedger]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - start-up time

    return TypeAdapter(StagedLedger)


def put_staged(
    connection: Connection, shard: int, found: Sequence[StagedLedger], *, above: LedgerId, up_to: LedgerId | None
) -> None:
    """Replace what an earlier look had found in a part of a shard, as far as no topic was settled with it."""
    part = [_A.shard == shard, _A.ledger_id > above, _A.adoptee.is_(None)]
    if up_to is not None:
        part.append(_A.ledger_id <= up_to)
    connection.execute(delete(t.adoption).where(*part))
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
        connection.execute(insert_if_absent(connection, t.adoption), rows)


def unsettled(connection: Connection, *, after: TopicId, limit: int) -> list[TopicId]:
    """Topics with rows that are not settled, ascending."""
    page = select(_A.topic_id).where(_A.adoptee.is_(None), _A.topic_id > after).distinct()
    return [TopicId(one) for one in connection.execute(page.order_by(_A.topic_id).limit(limit)).scalars()]


def staged(connection: Connection, topic_id: TopicId) -> Iterator[list[StagedLedger]]:
    """Ledgers of a topic that are not settled, in pages of a few MB or of one ledger."""
    after = -1
    while ids := _page(connection, topic_id, after):
        facts = select(_A.facts).where(among(connection, _A.ledger_id, ids)).order_by(_A.ledger_id)
        yield [_form().validate_json(one) for one in connection.execute(facts).scalars()]
        after = ids[-1]


def _page(connection: Connection, topic_id: TopicId, after: int) -> list[int]:
    """The next ledgers of a topic."""
    mine = (_A.topic_id == topic_id, _A.ledger_id > after, _A.adoptee.is_(None))
    sizes = select(_A.ledger_id, func.length(_A.facts)).where(*mine).order_by(_A.ledger_id).limit(_LEDGERS)
    ids, size = list[int](), 0
    for ledger_id, characters in connection.execute(sizes):
        size += characters
        if ids and size > _CHARACTERS:
            break
        ids.append(ledger_id)
    return ids


def settled(connection: Connection, became: Mapping[LedgerId, Adoptee], segments: Mapping[LedgerId, int]) -> None:
    """Write down what became of staged ledgers; what was found of them is not needed any more."""
    rows = [(ledger_id, one.value, segments.get(ledger_id, 0)) for ledger_id, one in became.items()]
    _settling(connection.dialect.name).execute(connection, rows, facts="{}")


@cache
def _settling(dialect: str) -> Statement:
    told = bulk_parameter(dialect, "told", {"ledger_id": BIG, "adoptee": TEXT, "segments": BIG})
    c = told.source.c
    mine = update(t.adoption).where(_A.ledger_id == c.ledger_id)
    values = {"adoptee": c.adoptee, "segments": c.segments, "facts": bindparam("facts")}
    return Statement(sql=mine.values(values), rows=told)


def tell(connection: Connection, ledgers: Mapping[LedgerId, TopicId], became: Adoptee, *, over: bool = False) -> None:
    """Write down what became of ledgers of which storage was not asked, or said nothing new.

    Args:
        connection: Of the transaction.
        ledgers: With their topics.
        became: The same of all.
        over: Whether it stands in the place of what was written down of them before.
    """
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
        connection.execute(insert_if_absent(connection, t.adoption), rows)
        if over:
            settled(connection, dict.fromkeys(ledgers, became), {})


def counted(connection: Connection) -> dict[Adoptee, tuple[int, int]]:
    """Of each thing that may become of a ledger: how many ledgers, and how many segments were adopted."""
    query = select(_A.adoptee, func.count(), func.sum(_A.segments)).where(_A.adoptee.is_not(None))
    return {Adoptee(name): (rows, int(sum_)) for name, rows, sum_ in connection.execute(query.group_by(_A.adoptee))}


def absent_ledgers(connection: Connection) -> int:
    """Count the ledgers that were staged as absent, settled or not."""
    query = select(func.count()).select_from(t.adoption).where(_A.standing == Standing.ABSENT.value)
    return connection.execute(query).scalar_one()


def removed_ledgers(connection: Connection) -> int:
    """Count the ledgers whose rows adoption has removed, without those that ended before the flush.

    What was weighed with them is not refused without them, where a process died in between. Some were in no list; so
    the share is never taken for higher than before.
    """
    had_row = _A.standing.not_in([Standing.STRANGER.value, Standing.ENDED.value])
    told = (_A.adoptee.is_not(None), _A.adoptee != Adoptee.LEFT_OUT.value)
    gone = ~exists().where(t.ledger.c.ledger_id == _A.ledger_id)
    return connection.execute(select(func.count()).select_from(t.adoption).where(had_row, *told, gone)).scalar_one()


def sample(connection: Connection, became: Adoptee) -> tuple[LedgerId, ...]:
    """The first ids of those of which that became."""
    page = select(_A.ledger_id).where(_A.adoptee == became.value).order_by(_A.ledger_id).limit(SAMPLE)
    return tuple(LedgerId(one) for one in connection.execute(page).scalars())


def topics_of(connection: Connection, became: Adoptee) -> tuple[str, ...]:
    """The first names of topics that have ledgers of which that became."""
    mine = select(t.topic.c.name).join(t.adoption, _A.topic_id == t.topic.c.topic_id).where(_A.adoptee == became.value)
    return tuple(connection.execute(mine.distinct().order_by(t.topic.c.name).limit(SAMPLE)).scalars())


def is_left(connection: Connection) -> bool:
    """Whether any topic is not settled."""
    return bool(connection.execute(select(exists().where(_A.adoptee.is_(None)))).scalar())
