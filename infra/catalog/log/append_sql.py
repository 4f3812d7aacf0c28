"""The statements of an append, built once for each dialect."""

from dataclasses import dataclass
from functools import cache

from sqlalchemy import and_, insert, select, true, update
from sqlalchemy.sql import Executable

from infra.catalog import tables as t
from infra.catalog.engine.many import BIG, TEXT, Rows, rows_of
from infra.catalog.log.topics import holding, inserting
from logstore.ports.catalog import TopicState


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement and the rows it takes."""

    sql: Executable
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendStatements:
    """In the order in which an append locks, then writes."""

    topics: Statement  # those that are ACTIVE, share-locked, with the catalog's epoch
    ledgers: Statement  # locked, listed ones only, with the topic of their list
    sequences: Statement  # locked, those that exist
    segments: Statement
    grown: Statement
    advanced: Statement


@cache
def append_statements(dialect: str) -> AppendStatements:
    """All of them for `sqlite` or `postgresql`."""
    return AppendStatements(
        topics=_topics(rows_of(dialect, "asked", {"topic_id": BIG})),
        ledgers=_ledgers(rows_of(dialect, "asked", {"ledger_id": BIG})),
        sequences=_sequences(rows_of(dialect, "asked", {"topic_id": BIG, "producer": TEXT})),
        segments=_segments(rows_of(dialect, "added", dict.fromkeys(t.segment.c.keys(), BIG) | {"sha256": TEXT})),
        grown=_grown(rows_of(dialect, "grown", dict.fromkeys(("ledger_id", *GROWS), BIG))),
        advanced=_advanced(rows_of(dialect, "ahead", {"topic_id": BIG, "producer": TEXT, "sequence_id": BIG})),
    )


GROWS = ("entries", "size_bytes", "segments", "last_segment")


def _topics(rows: Rows) -> Statement:
    epoch = select(t.catalog.c.epoch).scalar_subquery()
    query = select(t.topic.c.topic_id, t.topic.c.state, epoch.label("epoch"))
    asked = t.topic.c.topic_id.in_(select(rows.source.c.topic_id))
    active = query.where(asked, t.topic.c.state == TopicState.ACTIVE.value).order_by(t.topic.c.topic_id)
    return Statement(sql=holding(active), rows=rows)


def _ledgers(rows: Rows) -> Statement:
    c = t.ledger.c
    query = (
        select(c.ledger_id, c.state, *(c[name] for name in GROWS), t.ledger_list.c.topic_id)
        .join(t.ledger_list, t.ledger_list.c.list_id == c.list_id)
        .where(c.ledger_id.in_(select(rows.source.c.ledger_id)), c.place.is_not(None))
    )
    return Statement(sql=query.order_by(c.ledger_id).with_for_update(of=t.ledger), rows=rows)


def _sequences(rows: Rows) -> Statement:
    p, asked = t.producer_sequence.c, rows.source.c
    same = and_(p.topic_id == asked.topic_id, p.producer == asked.producer)
    query = select(p.topic_id, p.producer, p.sequence_id).join(rows.source, same)
    return Statement(sql=query.order_by(p.topic_id, p.producer).with_for_update(of=t.producer_sequence), rows=rows)


def _segments(rows: Rows) -> Statement:
    names = rows.columns
    return Statement(sql=insert(t.segment).from_select(names, select(*(rows.source.c[n] for n in names))), rows=rows)


def _grown(rows: Rows) -> Statement:
    new = rows.source.c
    changed = update(t.ledger).where(t.ledger.c.ledger_id == new.ledger_id)
    return Statement(sql=changed.values({name: new[name] for name in GROWS}), rows=rows)


def _advanced(rows: Rows) -> Statement:
    new = rows.source.c
    picked = select(*(new[name] for name in rows.columns)).where(true())  # without it SQLite reads ON as a join's
    put = inserting(rows.dialect, t.producer_sequence).from_select(rows.columns, picked)
    return Statement(
        sql=put.on_conflict_do_update(
            index_elements=["topic_id", "producer"],
            set_={"sequence_id": put.excluded.sequence_id},
            where=t.producer_sequence.c.sequence_id < put.excluded.sequence_id,
        ),
        rows=rows,
    )
