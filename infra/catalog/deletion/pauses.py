"""Pausing in SQL: no other workflow takes up a paused batch, however long its workers are away."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, func, select, update

from infra.catalog import tables as t
from infra.catalog.deletion.claims import UNCLAIMED
from infra.catalog.engine.many import TEXT, rows_of
from infra.catalog.ownership.fences import FencedWrites
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.failpoints import effect

_R = t.run.c


class Pauses(FencedWrites):
    """Pausing and resuming batches; a part of `SqlDeletions`."""

    def pause(self, batch_id: str) -> None:
        """See `Deletions.pause`."""

        def work(connection: Connection) -> None:
            released = (_R.run_id == batch_id, _R.claim_workflow.is_(None), _R.finished_us.is_(None))
            if connection.execute(select(_R.run_id).where(*released).with_for_update()).first():
                raise PreconditionFailed(f"batch {batch_id}: expected it claimed by its workflow, found it released")
            _change(connection, batch_id, {"paused_us": func.coalesce(_R.paused_us, self._db.now_us(connection))})

        with effect("catalog.pause"):
            self._write(work)

    def resume(self, batch_id: str) -> None:
        """See `Deletions.resume`."""
        with effect("catalog.resume"):
            self._write(lambda connection: _change(connection, batch_id, {"paused_us": None}))

    def release(self, batch_id: str) -> bool:
        """See `Deletions.release`."""
        paused = (_R.run_id == batch_id, _R.paused_us.is_not(None), _R.finished_us.is_(None))

        def work(connection: Connection) -> bool:
            lapsed = {**UNCLAIMED, "claim_until_us": self._db.now_us(connection)}  # without a time it is old: forgotten
            return connection.execute(update(t.run).where(*paused).values(paused_us=None, **lapsed)).rowcount > 0

        with effect("catalog.release"):
            return self._write(work)


def with_pauses(connection: Connection, intents: Sequence[DeletionIntent]) -> list[DeletionIntent]:
    """Say which of them wait for an operator to resume their batch."""
    waiting = {one.batch_id for one in intents if one.state is DeletionState.PENDING and one.handed_to is None}
    asked = rows_of(connection.dialect.name, "asked", {"batch": TEXT})
    query = select(_R.run_id, _R.paused_us, _R.finished_us).where(_R.run_id.in_(select(asked.source.c.batch)))
    found = connection.execute(query, asked.packed([[one] for one in sorted(waiting)]))
    paused = {row.run_id for row in found if row.paused_us is not None and row.finished_us is None}
    return [replace(one, paused=one.batch_id in paused and one.handed_to is None) for one in intents]


def _change(connection: Connection, batch_id: str, values: Mapping[str, Any]) -> None:
    """Change a batch that is not finished."""
    row = connection.execute(select(_R.finished_us).where(_R.run_id == batch_id).with_for_update()).first()
    if row is None:
        raise UnknownObject("batch", expected="a batch that was detached", found=batch_id)
    if row.finished_us is not None:
        raise PreconditionFailed(f"batch {batch_id}: expected it unfinished, found that it is finished")
    connection.execute(update(t.run).where(_R.run_id == batch_id).values(values))
