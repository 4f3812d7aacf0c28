"""The audit log in SQL: who destroyed what, and why."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, insert, select

from infra.catalog import tables as t
from infra.catalog.engine.database import Database
from infra.telemetry import current_trace_id
from logstore.failpoints import effect
from logstore.ports.catalog import Cause
from logstore.positions import TopicId


class SqlAuditLog:
    """The `AuditLog` port."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def record(self, act: str, cause: Cause, *, detail: Mapping[str, object]) -> None:
        """See `AuditLog.record`."""

        def work(connection: Connection) -> None:
            audit(connection, act, cause, at_us=self._db.now_us(connection), topic_id=None, topic=None, detail=detail)

        with effect("catalog.record_act"):
            self._db.write(work)


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
) -> None:
    """Write a row, in the transaction of the act itself.

    A detail that names a `ledger`, or its `first` and `last` one (inclusive), is found by these; one that has a
    `sample` of no fewer than `ledgers` ids concerns those alone. The trace of the act, if it is traced, is added to it
    as `trace_id`.

    Args:
        connection: In the writing transaction of the act.
        act: What was done, in kebab-case.
        cause: Who and why.
        at_us: The database's clock.
        topic_id: Whose; None where the act is of no topic.
        topic: Its encoded name; None where the act is of several topics, or of none.
        detail: The outcome, as JSON has it.
        run_id: The batch that the act was a step of.
    """
    one, trace_id = detail.get("ledger"), current_trace_id()
    connection.execute(
        insert(t.audit).values(
            at_us=at_us,
            act=act,
            actor=cause.actor,
            reason=cause.reason,
            workflow_id=cause.workflow_id,
            topic_id=topic_id,
            topic=topic,
            run_id=run_id,
            first_ledger=detail.get("first", one),
            last_ledger=detail.get("last", one),
            detail=dict(detail) | ({} if trace_id is None else {"trace_id": trace_id}),
        )
    )


def audited_us(connection: Connection, act: str, topic_id: TopicId) -> int | None:
    """When the act on the topic was first written down, or None."""
    a = t.audit.c
    query = select(func.min(a.at_us)).where(a.topic_id == topic_id, a.act == act)
    found = connection.execute(query).scalar_one_or_none()
    return None if found is None else int(found)
