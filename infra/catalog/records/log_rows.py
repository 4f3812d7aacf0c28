"""The row of the record log, and the blocks that are staged for its next manifest: nothing else writes them.

Its stamps tell this catalog from an older copy of itself. Those that were begun stay pending until a manifest is
settled that the catalog did not know. A writer begins a stamp for one number, and only once the catalog knows the
manifest before that: so all that are pending then are for this number or an earlier one, and can win neither any more.

A catalog that was rebuilt takes in what storage holds before anything is written. Until then an append would get the
place of one that was answered before the loss, and a ledger could be taken for one that no row needs. A replica's
database is written by the record log that it follows, and by nothing else.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Connection, Row, case, delete, func, insert, literal, or_, select, text, update

from infra.catalog import tables as t
from infra.catalog.deletion.runs import UNCLAIMED, claim_columns
from infra.catalog.identity.catalog_row import lost_row_error, read_catalog_row
from logstore.errors import CatalogAdopting
from logstore.ports.catalog import Claim, KnownManifest, RecordLogState
from logstore.records.kinds import RecordKind
from logstore.records.manifest import Block, Ceilings

_L, _O, _B = t.record_log.c, t.record_outbox.c, t.record_staged.c

READY: Final = "READY"
REPLICA: Final = "REPLICA"
ADOPTING: Final = "ADOPTING"
_REPLICA: Final = (
    "catalog: expected one that may be written to, found a REPLICA, which follows a record log: write to its source;"
    " where that is lost, rebuild a catalog with `sexton records rebuild`"
)
_KNOWN: Final = select(_L.manifest, _L.stamp, _L.pending, _L.state, t.catalog.c.catalog_id, t.catalog.c.epoch).join(
    t.catalog, literal(True)
)


def read_log_row(connection: Connection) -> Row[Any]:
    """Return the only row of `record_log`, which the first migration of that table inserts.

    Raises:
        CorruptData: The row is lost.
    """
    row = connection.execute(select(t.record_log)).one_or_none()
    if row is None:
        raise lost_row_error(t.record_log.name)
    return row


def require_ready(connection: Connection) -> None:
    """Refuse a write to a catalog that is not complete, or that is a replica.

    Raises:
        CatalogAdopting: It was rebuilt, and adoption has not ended; or it is a replica.
        CorruptData: The row of `record_log` is lost.
    """
    state = _read_state(connection)
    if state == REPLICA:
        raise CatalogAdopting(_REPLICA)
    if state != READY:
        raise CatalogAdopting(
            f"catalog: expected one that is complete, found one that is {state}: it was rebuilt, and takes in what "
            "storage holds; wait until `sexton records rebuild` has ended, or run it again"
        )


def require_no_replica(connection: Connection) -> None:
    """Refuse what no replica may do: an ordinary write, or a manifest of its own.

    Raises:
        CatalogAdopting: The database is a replica's.
        CorruptData: The row of `record_log` is lost.
    """
    if _read_state(connection) == REPLICA:
        raise CatalogAdopting(_REPLICA)


def _read_state(connection: Connection) -> str:
    state = connection.execute(select(_L.state)).scalar()
    if state is None:
        raise lost_row_error(t.record_log.name)
    return str(state)


def known_of(connection: Connection) -> KnownManifest:
    """The newest manifest as the catalog knows it, by one statement."""
    row = connection.execute(_KNOWN).one_or_none()
    if row is None:
        read_log_row(connection)
        raise lost_row_error(t.catalog.name)
    return KnownManifest(
        catalog_id=row.catalog_id,
        epoch=row.epoch,
        manifest=row.manifest,
        stamp=row.stamp,
        pending=frozenset(row.pending),
        replica=row.state == REPLICA,
    )


def state_of(connection: Connection, *, now_us: int) -> RecordLogState:
    """How the catalog stands to its record log."""
    row = read_log_row(connection)
    catalog = read_catalog_row(connection)
    next_ids = Ceilings(
        ledger=catalog.next_ledger_id,
        topic=_next_topic(connection),
        transaction=connection.execute(select(func.max(t.transaction_coordinator.c.next_sequence))).scalar() or 0,
    )
    oldest = connection.execute(select(_O.at_us).order_by(_O.version).limit(1)).scalar()
    staged = connection.execute(select(_B.facts, _B.oldest_us).order_by(_B.manifest, _B.block_id)).all()
    ages = [one for one in (oldest, *(row.oldest_us for row in staged)) if one is not None]
    oldest_of_cursors = select(func.min(_O.at_us)).where(_O.kind == RecordKind.CURSOR.value)
    return RecordLogState(
        catalog_id=catalog.catalog_id,
        epoch=catalog.epoch,
        bundles=catalog.bundles,
        manifest=row.manifest,
        stamp=row.stamp,
        pending=frozenset(row.pending),
        adopting=row.state != READY,
        replica=row.state == REPLICA,
        ceilings=Ceilings(ledger=row.ledger_ceiling, topic=row.topic_ceiling, transaction=row.transaction_ceiling),
        next_ids=next_ids,
        outbox=connection.execute(select(func.count()).select_from(t.record_outbox)).scalar_one(),
        oldest_us=min(ages, default=None),
        oldest_cursor_us=connection.execute(oldest_of_cursors).scalar(),
        now_us=now_us,
        staged=tuple(Block.of(json.loads(row.facts)) for row in staged),
    )


def _next_topic(connection: Connection) -> int:
    """The id that the next topic gets, whatever became of those before it."""
    if connection.dialect.name == "sqlite":
        last = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = 'topic'")).scalar()
        return int(last or 0) + 1
    row = connection.execute(text("SELECT last_value, is_called FROM topic_topic_id_seq")).one()
    return int(row.last_value) + int(row.is_called)


def take_claim(connection: Connection, claim: Claim, *, now_us: int) -> bool:
    """Take or renew the claim, unless another workflow's is alive; whether it is this one's."""
    read_log_row(connection)
    free = or_(_L.claim_workflow == claim.workflow_id, func.coalesce(_L.claim_until_us, 0) <= now_us)
    return bool(connection.execute(update(t.record_log).where(free).values(**claim_columns(claim, now_us))).rowcount)


def let_claim_go(connection: Connection, workflow_id: str) -> None:
    """Release the claim if it is that workflow's."""
    connection.execute(update(t.record_log).where(_L.claim_workflow == workflow_id).values(**UNCLAIMED))


def begin_stamp(connection: Connection, stamp: str, *, now_us: int) -> None:
    """Add a stamp to those that were begun, however long ago: a writer that was paused may still put its manifest.

    So a stamp never leaves because it is old: a catalog that has forgotten the stamp of its newest manifest takes
    itself for an older copy, and refuses. All leave with the next manifest that is settled, and one is begun only once
    its blocks are stored: they pile up only while the store takes blocks and no manifest.

    Raises:
        CatalogAdopting: The catalog is a replica: it puts no manifest.
    """
    require_no_replica(connection)
    row = connection.execute(select(_L.pending).with_for_update()).one()
    connection.execute(update(t.record_log).values(pending={**row.pending, stamp: now_us}))


def knows(connection: Connection, number: int) -> bool:
    """Whether a manifest of that number, or a newer one, was settled; none can be for as long as the transaction."""
    manifest = connection.execute(select(_L.manifest).with_for_update()).scalar()
    if manifest is None:
        raise lost_row_error(t.record_log.name)
    return bool(number <= manifest)


def settle_manifest(connection: Connection, *, number: int, stamp: str, ceilings: Ceilings, now_us: int) -> None:
    """Let the manifest be the newest, which the catalog does not know yet; ceilings only rise."""
    raised = {
        "ledger_ceiling": _higher(_L.ledger_ceiling, ceilings.ledger),
        "topic_ceiling": _higher(_L.topic_ceiling, ceilings.topic),
        "transaction_ceiling": _higher(_L.transaction_ceiling, ceilings.transaction),
    }
    newest: dict[str, Any] = {"manifest": number, "stamp": stamp, "pending": {}, "flushed_us": now_us}
    connection.execute(update(t.record_log).values(**newest, **raised))


def stage_blocks(connection: Connection, number: int, blocks: Sequence[Block]) -> None:
    """Keep what the manifest that ends the flush is to name; the outbox rows of this page are still there."""
    if not blocks:
        return
    oldest_us = connection.execute(select(_O.at_us).order_by(_O.version).limit(1)).scalar()
    rows = [
        {"block_id": one.block_id, "manifest": number, "oldest_us": oldest_us, "facts": json.dumps(asdict(one))}
        for one in blocks
    ]
    connection.execute(insert(t.record_staged), rows)


def unstage_blocks(connection: Connection) -> None:
    """A manifest names them by now, or nothing needs them."""
    connection.execute(delete(t.record_staged))


def _higher(column: Any, value: int) -> Any:  # noqa: ANN401 - a column
    return case((column < value, value), else_=column)


def end_rebuild(connection: Connection, rebuild: str) -> None:
    """Forget the rebuild that has loaded the catalog: it is complete."""
    connection.execute(update(t.record_log).where(_L.rebuild == rebuild).values(rebuild=None))


def is_adopting(connection: Connection) -> bool:
    """Whether the catalog was loaded and is not complete yet."""
    return bool(connection.execute(select(_L.state)).scalar() == ADOPTING)


def end_adoption(connection: Connection) -> None:
    """The catalog is complete: every process may write to it."""
    connection.execute(update(t.record_log).where(_L.state == ADOPTING).values(state=READY))
