"""Dead letters back into the queue of phase two, in SQL: checked, changed, claimed and audited in one transaction."""

import hashlib
from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, func, select

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.deletion.intent_rows import redrive_rows
from infra.catalog.deletion.intents import state_of
from infra.catalog.deletion.runs import SEVERAL_TOPICS, done_before, open_run
from infra.catalog.engine.database import Database
from infra.catalog.engine.many import any_of
from logstore.deletion.intents import DeletionState
from logstore.errors import InvalidInput, PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.ports.catalog import Cause, Claim, Detached

_P = t.pending_deletion.c
_MOST_IDS = 10_000  # all or nothing: one transaction, one answer
_MOST_NAMED = 10  # in a refusal
_UNKNOWN = "unknown"


class SqlRedrives:
    """The `Redrives` port."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def preview(self, row_ids: Sequence[int] | None) -> int:
        """See `Redrives.preview`."""

        def work(connection: Connection) -> int:
            count = select(func.count()).where(_wanted(connection, row_ids, lock=False))
            return int(connection.execute(count).scalar_one())

        return self._db.read(work)

    def redrive(self, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: Cause) -> Detached:
        """See `Redrives.redrive`."""

        def work(connection: Connection) -> Detached:
            request = _fingerprint(row_ids)
            done = done_before(connection, batch_id, request)
            return done or self._redrive(connection, row_ids, batch_id, claim=claim, cause=cause, request=request)

        with effect("catalog.redrive"):
            return self._db.write(work)

    def _redrive(
        self,
        connection: Connection,
        row_ids: Sequence[int] | None,
        batch_id: str,
        *,
        claim: Claim,
        cause: Cause,
        request: str,
    ) -> Detached:
        now = self._db.now_us(connection)
        wanted = _wanted(connection, row_ids, lock=True)
        again = redrive_rows(connection, wanted, batch_id=batch_id)
        result = Detached(batch_id=batch_id, ledgers=0, intents=again)
        if result.intents:
            open_run(connection, result, SEVERAL_TOPICS, claim, now, request=request)
            _audit(connection, result, cause, at_us=now)
        return result


def _wanted(connection: Connection, row_ids: Sequence[int] | None, *, lock: bool) -> ColumnElement[bool]:
    if row_ids is None:
        return _P.state == DeletionState.DEAD_LETTERED.value  # a state that a newer build wrote is named or left alone
    if not 0 < len(set(row_ids)) <= _MOST_IDS:
        raise InvalidInput("deletion ids", expected=f"1 to {_MOST_IDS:,} ids", found=len(set(row_ids)))
    rows = _P.row_id.in_(any_of(connection.dialect.name, row_ids))
    query = select(_P.row_id, _P.state).where(rows).order_by(_P.row_id)
    found = connection.execute(query.with_for_update() if lock else query).all()
    _require_dead_letters(row_ids, {row.row_id: row.state for row in found})
    return rows


def _require_dead_letters(row_ids: Sequence[int], states: Mapping[int, str]) -> None:
    wrong = {row: states.get(row, _UNKNOWN) for row in sorted(set(row_ids))}
    wrong = {row: state for row, state in wrong.items() if not _is_dead(state)}
    if not wrong:
        return
    named = ", ".join(f"{row} {state}" for row, state in list(wrong.items())[:_MOST_NAMED])
    more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
    if set(wrong.values()) == {_UNKNOWN}:
        raise UnknownObject("deletion ids", expected="ids that `sexton deletion list` shows", found=f"{named}{more}")
    raise PreconditionFailed(f"deletions: expected dead letters, found {named}{more}; nothing was changed")


def _is_dead(state: str) -> bool:
    return state != _UNKNOWN and state_of(state) is DeletionState.DEAD_LETTERED


def _audit(connection: Connection, result: Detached, cause: Cause, *, at_us: int) -> None:
    audit(
        connection,
        "redrive",
        cause,
        at_us=at_us,
        topic_id=SEVERAL_TOPICS,
        topic=None,
        run_id=result.batch_id,
        detail={"rows": result.intents},
        span=Span.selected(connection, _P.ledger_id, _P.batch_id == result.batch_id),
    )


def _fingerprint(row_ids: Sequence[int] | None) -> str:
    ids = "all" if row_ids is None else ",".join(str(row) for row in sorted(set(row_ids)))
    return hashlib.sha256(f"redrive/{ids}".encode()).hexdigest()
