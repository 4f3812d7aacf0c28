"""Phase one for primary copies alone: where a tiered copy stands, the ledger stays listed and its primary goes."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, exists, select

from infra.catalog import claims
from infra.catalog import tables as t
from infra.catalog.audits import audit
from infra.catalog.database import Database
from infra.catalog.detach import done_before
from infra.catalog.intents import file_copy_intents, filed_by
from infra.catalog.ledgers import data_list, raise_version
from infra.catalog.many import any_of
from infra.catalog.topics import topic_row
from logstore.failpoints import effect
from logstore.ledgers import CopyKind, CopyState, LedgerState
from logstore.ports.catalog import Cause, Claim, Detached
from logstore.positions import LedgerId, TopicId

_LIVE = CopyState.LIVE.value
_SAMPLE = 20


class PrimaryRemoval:
    """What can go, and its removal; a part of `SqlOffloads`."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def removable(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None) -> list[LedgerId]:
        """See `Offloads.removable`."""
        return self._db.read(lambda c: _removable_ids(c, data_list(c, topic_id), ledger_ids))

    def remove_primaries(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        batch_id: str,
        claim: Claim,
        cause: Cause,
    ) -> Detached:
        """See `Offloads.remove_primaries`."""
        request = _fingerprint(topic_id, ledger_ids)

        def work(connection: Connection) -> Detached:
            topic = topic_row(connection, topic_id, share=True)
            list_id = data_list(connection, topic_id, lock=True)
            done = done_before(connection, batch_id, request)
            if done:
                return done
            now = self._db.now_us(connection)
            stalled = claims.adopt_stalled(
                connection, topic_id, ledger_ids, batch_id=batch_id, now_us=now, copy=CopyKind.LEDGER
            )
            ids = _removable_ids(connection, list_id, ledger_ids)
            doomed = _removable(connection.dialect.name, list_id, ledger_ids)
            filed = file_copy_intents(connection, list_id, CopyKind.LEDGER, doomed, batch_id=batch_id, now_us=now)
            result = Detached(batch_id=batch_id, ledgers=len(ids), intents=filed + stalled)
            if result.intents:
                claims.open_run(connection, result, topic_id, claim, now, request=request)
            if ids:
                raise_version(connection, list_id)
                audit(
                    connection,
                    "remove-primaries",
                    cause,
                    at_us=now,
                    topic_id=topic_id,
                    topic=topic.name,
                    run_id=batch_id,
                    detail={"ledgers": len(ids), "first": ids[0], "last": ids[-1], "sample": ids[:_SAMPLE]},
                )
            return replace(result, filed=filed_by(connection, batch_id, now) if ids else ())

        with effect("catalog.remove_primaries"):
            return self._db.write(work)


def _fingerprint(topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None) -> str:
    ids = "all" if ledger_ids is None else ",".join(str(ledger_id) for ledger_id in sorted(set(ledger_ids)))
    return hashlib.sha256(f"primaries/{topic_id}/{ids}".encode()).hexdigest()


def _removable(dialect: str, list_id: int, ledger_ids: Sequence[LedgerId] | None) -> ColumnElement[bool]:
    """Ledgers of the list of which both copies are LIVE."""
    primary, tiered = t.ledger_copy.alias("primary_copy"), t.ledger_copy.alias("tiered_copy")
    kinds = ((primary, CopyKind.LEDGER), (tiered, CopyKind.OFFLOADED_LEDGER))
    found = (t.ledger.c.list_id == list_id) & t.ledger.c.place.is_not(None)
    found &= t.ledger.c.state == LedgerState.CLOSED.value
    for copy, kind in kinds:
        c = copy.c
        found &= exists().where(c.ledger_id == t.ledger.c.ledger_id, c.kind == kind.value, c.state == _LIVE)
    return found if ledger_ids is None else found & t.ledger.c.ledger_id.in_(any_of(dialect, ledger_ids))


def _removable_ids(connection: Connection, list_id: int, ledger_ids: Sequence[LedgerId] | None) -> list[LedgerId]:
    wanted = _removable(connection.dialect.name, list_id, ledger_ids)
    rows = connection.execute(select(t.ledger.c.ledger_id).where(wanted).order_by(t.ledger.c.ledger_id))
    return [LedgerId(row.ledger_id) for row in rows]
