"""Sole writer of the table `record_log`, which has one row, and of staged blocks.

A stamp distinguishes this catalog from an older copy of the catalog. A stamp is pending until the next manifest is
settled. A writer adds a stamp only after the previous manifest is settled. So a pending stamp belongs to the next
manifest, or to none.

A rebuilt catalog adopts uploads before any other write. Otherwise a new append could get the position of an append that
the lost catalog had committed. Only a `ReplicaFollower` writes to a replica database.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, case, delete, func, insert, literal, or_, select, text, update

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import lost_row_error, read_catalog_row
from logstore.catalog.deletion.run_rows import NO_CLAIM_COLUMNS, build_claim_columns
from logstore.errors import CatalogAdopting
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.records import KnownManifest, RecordLogState
from logstore.records.manifest import Block, IdCeilings
from logstore.records.record_kinds import RecordKind

_L, _O, _B = t.record_log.c, t.record_outbox.c, t.record_staged.c

READY: Final = "READY"
REPLICA: Final = "REPLICA"
ADOPTING: Final = "ADOPTING"
_REPLICA_REFUSAL: Final = (
    "catalog: expected one that may be written to, found a REPLICA, which follows a record log: write to its source;"
    " where that is lost, rebuild a catalog with `sexton records rebuild`"
)
_KNOWN_MANIFEST: Final = select(
    _L.manifest, _L.stamp, _L.pending, _L.state, t.catalog.c.catalog_id, t.catalog.c.epoch
).join(t.catalog, literal(True))


def read_log_row(connection: Connection) -> Row[Any]:
    row = connection.execute(select(t.record_log)).one_or_none()
    if row is None:
        raise lost_row_error(t.record_log.name)
    return row


def require_ready_catalog(connection: Connection) -> None:
    state = _read_state(connection)
    if state == REPLICA:
        raise CatalogAdopting(_REPLICA_REFUSAL)
    if state != READY:
        raise CatalogAdopting(
            f"catalog: expected one that is complete, found one that is {state}: it was rebuilt, and takes in what "
            "storage holds; wait until `sexton records rebuild` has ended, or run it again"
        )


def require_not_replica(connection: Connection) -> None:
    if _read_state(connection) == REPLICA:
        raise CatalogAdopting(_REPLICA_REFUSAL)


def _read_state(connection: Connection) -> str:
    state = connection.execute(select(_L.state)).scalar()
    if state is None:
        raise lost_row_error(t.record_log.name)
    return str(state)


def read_known_manifest(connection: Connection) -> KnownManifest:
    row = connection.execute(_KNOWN_MANIFEST).one_or_none()
    if row is None:
        read_log_row(connection)
        raise lost_row_error(t.catalog.name)
    return KnownManifest(
        catalog_id=row.catalog_id,
        epoch=row.epoch,
        manifest=row.manifest,
        stamp=row.stamp,
        pending_stamps=frozenset(row.pending),
        is_replica=row.state == REPLICA,
    )


def read_log_state(connection: Connection, *, now_us: int) -> RecordLogState:
    row = read_log_row(connection)
    catalog = read_catalog_row(connection)
    next_ids = IdCeilings(
        ledger=catalog.next_ledger_id,
        topic=_read_next_topic_id(connection),
        transaction=connection.execute(select(func.max(t.transaction_coordinator.c.next_sequence))).scalar() or 0,
    )
    oldest_us = connection.execute(select(_O.at_us).order_by(_O.version).limit(1)).scalar()
    staged = connection.execute(select(_B.facts, _B.oldest_us).order_by(_B.manifest, _B.block_id)).all()
    times_us = [time_us for time_us in (oldest_us, *(block.oldest_us for block in staged)) if time_us is not None]
    oldest_cursor = select(func.min(_O.at_us)).where(_O.kind == RecordKind.CURSOR.value)
    return RecordLogState(
        catalog_id=catalog.catalog_id,
        epoch=catalog.epoch,
        bundles=catalog.bundles,
        manifest=row.manifest,
        stamp=row.stamp,
        pending_stamps=frozenset(row.pending),
        is_adopting=row.state != READY,
        is_replica=row.state == REPLICA,
        ceilings=IdCeilings(ledger=row.ledger_ceiling, topic=row.topic_ceiling, transaction=row.transaction_ceiling),
        next_ids=next_ids,
        outbox_changes=connection.execute(select(func.count()).select_from(t.record_outbox)).scalar_one(),
        oldest_change_us=min(times_us, default=None),
        oldest_cursor_change_us=connection.execute(oldest_cursor).scalar(),
        now_us=now_us,
        staged_blocks=tuple(Block.from_fields(json.loads(block.facts)) for block in staged),
    )


def _read_next_topic_id(connection: Connection) -> int:
    if connection.dialect.name == "sqlite":
        last_id = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = 'topic'")).scalar()
        return int(last_id or 0) + 1
    row = connection.execute(text("SELECT last_value, is_called FROM topic_topic_id_seq")).one()
    return int(row.last_value) + int(row.is_called)


def claim_record_log(connection: Connection, claim: Claim, *, now_us: int) -> bool:
    read_log_row(connection)
    free = or_(_L.claim_workflow == claim.workflow_id, func.coalesce(_L.claim_until_us, 0) <= now_us)
    return bool(
        connection.execute(update(t.record_log).where(free).values(**build_claim_columns(claim, now_us))).rowcount
    )


def release_record_log_claim(connection: Connection, workflow_id: str) -> None:
    connection.execute(update(t.record_log).where(_L.claim_workflow == workflow_id).values(**NO_CLAIM_COLUMNS))


def add_pending_stamp(connection: Connection, stamp: str, *, now_us: int) -> None:
    """Add a pending stamp. The next settled manifest removes all pending stamps.

    Stamps do not expire, because a paused writer may still store its manifest.
    """
    require_not_replica(connection)
    row = connection.execute(select(_L.pending).with_for_update()).one()
    connection.execute(update(t.record_log).values(pending={**row.pending, stamp: now_us}))


def is_manifest_settled(connection: Connection, number: int) -> bool:
    """Lock the row of `record_log`. Return whether the manifest with this number or a newer manifest is settled."""
    manifest = connection.execute(select(_L.manifest).with_for_update()).scalar()
    if manifest is None:
        raise lost_row_error(t.record_log.name)
    return bool(number <= manifest)


def store_manifest_and_raise_ceilings(
    connection: Connection, *, number: int, stamp: str, ceilings: IdCeilings, now_us: int
) -> None:
    raised = {
        "ledger_ceiling": _max_of(_L.ledger_ceiling, ceilings.ledger),
        "topic_ceiling": _max_of(_L.topic_ceiling, ceilings.topic),
        "transaction_ceiling": _max_of(_L.transaction_ceiling, ceilings.transaction),
    }
    newest: dict[str, Any] = {"manifest": number, "stamp": stamp, "pending": {}, "flushed_us": now_us}
    connection.execute(update(t.record_log).values(**newest, **raised))


def _max_of(column: ColumnElement[int], value: int) -> ColumnElement[int]:
    return case((column < value, value), else_=column)


def stage_blocks(connection: Connection, number: int, blocks: Sequence[Block]) -> None:
    """Save blocks that the last manifest of the flush will name. The caller then removes the flushed outbox rows."""
    if not blocks:
        return
    oldest_us = connection.execute(select(_O.at_us).order_by(_O.version).limit(1)).scalar()
    rows = [
        {"block_id": block.block_id, "manifest": number, "oldest_us": oldest_us, "facts": json.dumps(asdict(block))}
        for block in blocks
    ]
    connection.execute(insert(t.record_staged), rows)


def unstage_blocks(connection: Connection) -> None:
    """Remove all staged blocks: a manifest names them now, or they are not needed."""
    connection.execute(delete(t.record_staged))


def mark_rebuild_complete(connection: Connection, rebuild: str) -> None:
    connection.execute(update(t.record_log).where(_L.rebuild == rebuild).values(rebuild=None))


def is_adopting(connection: Connection) -> bool:
    return bool(connection.execute(select(_L.state)).scalar() == ADOPTING)


def mark_adoption_complete(connection: Connection) -> None:
    connection.execute(update(t.record_log).where(_L.state == ADOPTING).values(state=READY))
