"""The audit log in SQL: each destructive act, its actor and its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from sqlalchemy import ColumnElement, Connection, func, insert, select

from infra.catalog import tables as t
from infra.catalog.engine.database import OnDatabase, writes
from infra.telemetry import current_trace_id
from logstore.ports.catalog import Cause
from logstore.positions import TopicId

_SAMPLE: Final = 20
_MOST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedLedgers:
    """The ledgers that an act was about: how many, the lowest and the highest id, and the first few of them."""

    ledgers: int
    first: int
    last: int
    sample: Sequence[int]

    @classmethod
    def from_ids(cls, ids: Sequence[int]) -> Self:
        """Of these ids: at least one, ascending."""
        return cls(ledgers=len(ids), first=ids[0], last=ids[-1], sample=list(ids[:_SAMPLE]))

    @classmethod
    def from_query(cls, connection: Connection, ids: ColumnElement[int], *where: ColumnElement[bool]) -> Self | None:
        """Of the ids in a column, as far as they meet the conditions; None where there are none.

        Text or bytes of a damaged row, which SQLite orders behind every number, are none.
        """
        where = (*where, ids <= _MOST)
        count, first, last = connection.execute(
            select(func.count(ids.distinct()), func.min(ids), func.max(ids)).where(*where)
        ).one()
        if not count:
            return None
        some = select(ids).where(*where).distinct().order_by(ids).limit(_SAMPLE)
        return cls(ledgers=count, first=first, last=last, sample=list(connection.execute(some).scalars()))


_AUDIT = insert(t.audit)


class SqlAuditLog(OnDatabase):
    """The `AuditLog` port."""

    @writes("catalog.record_act")
    def record(self, connection: Connection, act: str, cause: Cause, *, detail: Mapping[str, object]) -> None:
        """See `AuditLog.record`."""
        audit(connection, act, cause, at_us=self._db.now_us(connection), topic_id=None, topic=None, detail=detail)


def audit(
    connection: Connection,
    act: str,
    cause: Cause,
    *,
    at_us: int,
    topic_id: TopicId | None,
    topic: str | None,
    detail: Mapping[str, Any],
    run_id: str | None = None,
    span: AuditedLedgers | None = None,
) -> None:
    """Write a row, in the transaction of the act itself: the only place that does.

    A detail that names a `ledger` is found by it, an act on a span by its ends (inclusive); where the sample is all of
    the span, it concerns those ledgers alone. The trace of the act, if it is traced, is added as `trace_id`.

    Args:
        connection: In the writing transaction of the act.
        act: What was done, in kebab-case.
        cause: The actor and the reason.
        at_us: The database's clock.
        topic_id: Whose; None where the act is of no topic.
        topic: Its encoded name; None where the act is of several topics, or of none.
        detail: The outcome, as JSON has it.
        run_id: The batch that the act was a step of.
        span: The ledgers that it was about, where it was about several; told in the detail.
    """
    one, trace_id = detail.get("ledger"), current_trace_id()
    told = dict(detail) | ({} if span is None else asdict(span))
    row = {
        "at_us": at_us,
        "act": act,
        "actor": cause.actor,
        "reason": cause.reason,
        "workflow_id": cause.workflow_id,
        "topic_id": topic_id,
        "topic": topic,
        "run_id": run_id,
        "first_ledger": span.first if span else one,
        "last_ledger": span.last if span else one,
        "detail": told | ({} if trace_id is None else {"trace_id": trace_id}),
    }
    connection.execute(_AUDIT, row)


def find_audit_time_us(connection: Connection, act: str, topic_id: TopicId) -> int | None:
    """When the act on the topic was first written down, or None."""
    a = t.audit.c
    query = select(func.min(a.at_us)).where(a.topic_id == topic_id, a.act == act)
    found = connection.execute(query).scalar_one_or_none()
    return None if found is None else int(found)
