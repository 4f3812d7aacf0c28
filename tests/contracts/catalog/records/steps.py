"""The steps that tests of the outbox are told in."""

from collections.abc import Mapping
from typing import Any

from logstore.records.manifest import IdCeilings
from logstore.records.record_kinds import RecordKind, block_schema
from tests.contracts.catalog.worlds import SqlWorld

Key = tuple[str, int, str]
Version = Mapping[str, Any]


def flush(world: SqlWorld, *, cursors: bool = True) -> dict[Key, Version]:
    """What has changed, by kind, id and sub; it is settled as the manifest after the newest one that is known."""
    records = world.catalog.records
    found, taken = drawn(world, cursors=cursors)
    state = records.read_state()
    stamp = f"stamp-{state.manifest + 1}"
    records.add_pending_stamp(stamp)
    records.settle_manifest(number=state.manifest + 1, stamp=stamp, ceilings=state.ceilings, outbox_rows=taken)
    return found


def drawn(world: SqlWorld, *, cursors: bool = True) -> tuple[dict[Key, Version], list[int]]:
    """What has changed, by kind, id and sub, and the outbox rows that are covered by it; nothing is settled."""
    found: dict[Key, Version] = {}
    with world.catalog.records.read_changes(cursors=cursors) as changes:
        for kind, batch in changes.iterate_version_batches():
            assert batch.schema == block_schema(kind)
            rows = batch.to_pylist()
            assert [(row["id"], row["sub"]) for row in rows] == sorted((row["id"], row["sub"]) for row in rows)
            for row in rows:
                key = (kind.value, row["id"], row["sub"])
                assert key not in found, "a record has one version a flush"
                found[key] = row
        return found, list(changes.outbox_rows)


def recorded(world: SqlWorld) -> set[Key]:
    """The records that have outbox rows."""
    return {(row.kind, row.id, row.sub) for row in world.sql("SELECT kind, id, sub FROM record_outbox")}


def of(kind: RecordKind, record_id: int, sub: str = "") -> Key:
    """The key of a record."""
    return (kind.value, record_id, sub)


def high() -> IdCeilings:
    """Ceilings above those of a new catalog."""
    return IdCeilings(ledger=5_000_000, topic=6_000_000, transaction=7_000_000)
