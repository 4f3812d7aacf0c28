"""Audit log in SQL: every destructive act with its actor and reason."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from sqlalchemy import ColumnElement, Connection, func, insert, select

from logstore.catalog import tables as t
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.ports.catalog.deletion import AuditCause
from logstore.positions import TopicId
from logstore.trace_id import current_trace_id

_MAX_SAMPLE_LEDGERS: Final = 20
_MAX_LEDGER_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedLedgers:
    """Summary of the ledgers of an audited act: number, lowest and highest id, and the lowest ids as a sample."""

    ledgers: int
    first: int
    last: int
    sample: Sequence[int]

    @classmethod
    def from_ids(cls, ids: Sequence[int]) -> Self:
        """Summarize ids. `ids` must ascend and must not be empty."""
        return cls(ledgers=len(ids), first=ids[0], last=ids[-1], sample=list(ids[:_MAX_SAMPLE_LEDGERS]))

    @classmethod
    def from_query(cls, connection: Connection, ids: ColumnElement[int], *where: ColumnElement[bool]) -> Self | None:
        """Summarize the ids of rows that satisfy `where`. Ids that SQLite stores as text or bytes are left out."""
        where = (*where, ids <= _MAX_LEDGER_ID)
        count, first, last = connection.execute(
            select(func.count(ids.distinct()), func.min(ids), func.max(ids)).where(*where)
        ).one()
        if not count:
            return None
        sample = select(ids).where(*where).distinct().order_by(ids).limit(_MAX_SAMPLE_LEDGERS)
        return cls(ledgers=count, first=first, last=last, sample=list(connection.execute(sample).scalars()))


_AUDIT = insert(t.audit)


class AuditLogWriter(CatalogAdapter):
    """Writer of audit rows for acts outside the catalog. Methods that change the catalog add their own audit rows."""

    @in_write_transaction("catalog.record_act")
    def record_act(self, connection: Connection, act: str, cause: AuditCause, *, detail: Mapping[str, object]) -> None:
        """Record a destructive act before it happens, or record its result afterwards. `act` is in kebab-case.

        Not idempotent: a repeated call adds an equal row.
        """
        insert_audit_row(
            connection, act, cause, at_us=self._db.now_us(connection), topic_id=None, topic=None, detail=detail
        )


def insert_audit_row(
    connection: Connection,
    act: str,
    cause: AuditCause,
    *,
    at_us: int,
    topic_id: TopicId | None,
    topic: str | None,
    detail: Mapping[str, Any],
    run_id: str | None = None,
    span: AuditedLedgers | None = None,
) -> None:
    """Insert an audit row in the transaction of the act. The current trace's id is added to `detail`.

    A search for a ledger finds the row by `ledger` in `detail`, or by the range of `span`. If the sample of `span` has
    all ledgers, the search finds the row only by the ids in the sample.
    """
    ledger_id, trace_id = detail.get("ledger"), current_trace_id()
    full_detail = dict(detail) | ({} if span is None else asdict(span))
    row = {
        "at_us": at_us,
        "act": act,
        "actor": cause.actor,
        "reason": cause.reason,
        "workflow_id": cause.workflow_id,
        "topic_id": topic_id,
        "topic": topic,
        "run_id": run_id,
        "first_ledger": span.first if span else ledger_id,
        "last_ledger": span.last if span else ledger_id,
        "detail": full_detail | ({} if trace_id is None else {"trace_id": trace_id}),
    }
    connection.execute(_AUDIT, row)


def find_first_act_time_us(connection: Connection, act: str, topic_id: TopicId) -> int | None:
    a = t.audit.c
    query = select(func.min(a.at_us)).where(a.topic_id == topic_id, a.act == act)
    first_us = connection.execute(query).scalar_one_or_none()
    return None if first_us is None else int(first_us)
