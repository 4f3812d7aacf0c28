"""The record log beside the bare thing: `python -m tests.benchmarks.records_speed [NAME…]`; names are in `MEASURES`.

Speeds are of CPU seconds of one core, so that what else the machine does matters little. Buckets are in memory: what is
measured is what the work itself costs. About two minutes.
"""

import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logstore.records.block_files import encode_block
from logstore.records.job_results import RaidedTombstones
from logstore.records.manifest import Block, IdCeilings
from logstore.records.newest_versions import KEY_COLUMNS, select_newest_versions
from logstore.records.record_kinds import RecordKind
from logstore.records.services.manifest_publication import publish_manifest, read_settled_head
from logstore.records.services.record_log import RecordLog
from logstore.records.services.tombstone_raids import Raider
from logstore.records.tombstone_rules import estimate_tombstone_sizes
from logstore.retrying_clock import Clock
from tests.benchmarks.graves import START_US, Numbers, versions
from tests.benchmarks.raid_foreground import beside_writers
from tests.logstore.records.world import RecordsWorld
from tests.migrated_catalogs import create_migrated_sqlite

_VERSIONS: Final = 5_000_000
_BLOCK: Final = 100_000
_TOMBSTONES: Final = 500_000
_ROUNDS: Final = 3
_DAY_US: Final = 86_400_000_000


def winning() -> dict[str, Any]:
    """The newest version of each record out of many blocks, beside Arrow's own group-by of the same columns."""
    found = {}
    for name, subs in (("records of an id alone", 0), ("records of an id and a sub", 50)):
        blocks = [_keys(number, subs) for number in range(_VERSIONS // _BLOCK)]
        random = np.random.default_rng(2)
        shuffled = [blocks[at] for at in random.permutation(len(blocks))]
        ours = statistics.median(_cpu(lambda parts=shuffled: select_newest_versions(parts)) for _ in range(_ROUNDS))  # type: ignore[misc]
        bare = statistics.median(_cpu(lambda parts=shuffled: _grouped(parts)) for _ in range(_ROUNDS))  # type: ignore[misc]
        found[name] = {
            "versions_s": round(_VERSIONS / ours),
            "group_by_versions_s": round(_VERSIONS / bare),
            "ratio": round(bare / ours, 2),
        }
        _tell(f"winners, {name}: {_VERSIONS / ours / 1e6:.1f}M versions/s, a group-by {_VERSIONS / bare / 1e6:.1f}M")
    return found


def _keys(number: int, subs: int) -> pa.Table:
    """The keys of one block: each record has two versions or three in all of them."""
    random = np.random.default_rng(number)
    ids = np.sort(random.integers(0, _VERSIONS // (2 * max(subs, 1)), _BLOCK))
    sub = pa.array([""]).take(pa.array(np.zeros(_BLOCK, np.int64)))
    if subs:
        sub = pa.array([str(one) for one in range(subs)]).take(pa.array(random.integers(0, subs, _BLOCK)))
    columns = [ids, sub, np.ones(_BLOCK, np.int64), np.full(_BLOCK, number), np.zeros(_BLOCK, bool)]
    table = pa.table([pa.array(column) for column in columns], names=list(KEY_COLUMNS))
    return table.sort_by([("id", "ascending"), ("sub", "ascending")])


def _grouped(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).group_by(["id", "sub"], use_threads=False).aggregate([("version", "max")])


def raiding() -> dict[str, Any]:
    """A raid over many tombstones, half of which cover a version: from the first mark to the last removal."""
    with tempfile.TemporaryDirectory() as folder:
        world = RecordsWorld(Path(folder))
        ids = np.sort(np.random.default_rng(1).choice(50 * _TOMBSTONES, _TOMBSTONES, replace=False))
        _bury(Path(folder) / "catalog.db", ids)
        _publish(world, [*_stored(world, ids, version=1, tombstone=True), *_stored(world, ids[::2], version=0)])
        world.advance(seconds=2 * 86_400)
        raider = _Timed(world)
        began = time.process_time()
        done = raider.raid_tombstones("bench", progress=raider.look)
        whole_s = time.process_time() - began
        world.database.close()
    assert (done.candidates, done.removed) == (_TOMBSTONES, _TOMBSTONES // 2)
    _tell(
        f"raid: {_TOMBSTONES / raider.scan_s:,.0f} tombstones/s scanned, {_TOMBSTONES / whole_s:,.0f} a second in all"
    )
    return {
        "tombstones": _TOMBSTONES,
        "scan_tombstones_s": round(_TOMBSTONES / raider.scan_s),
        "scan_versions_s": round(done.versions / raider.scan_s),
        "whole_raid_tombstones_s": round(_TOMBSTONES / whole_s),
    }


class _Timed(Raider):
    """A raider that says when its scan began and ended, in CPU seconds."""

    def __init__(self, world: RecordsWorld) -> None:
        parts = (world.catalog.records, world.catalog.tombstones, RecordLog(world.objects), world.primary)
        super().__init__(*parts, eligible_age_s=86_400, clock=Clock(sleep=lambda _: None))
        self.scan_s = 0.0

    def _scan(self, scan: Any, blocks: Any, progress: Any) -> bool:
        began = time.process_time()
        try:
            return super()._scan_new_blocks(scan, blocks, progress)
        finally:
            self.scan_s += time.process_time() - began

    def look(self, _: RaidedTombstones) -> None:
        """Somebody is told."""


def _bury(path: Path, ids: Numbers) -> None:
    """Tombstones in the catalog, in no outbox, as after a flush."""
    connection = sqlite3.connect(path)
    rows = ((one, one % 50, one % 50, START_US) for one in ids.tolist())
    connection.executemany(
        "INSERT INTO tombstone (kind, id, topic_id, list_id, component, generation, epoch, at_us) "
        "VALUES ('ledger', ?, ?, ?, 'MANAGED_LEDGER', 1, 1, ?)",
        rows,
    )
    connection.execute("DELETE FROM record_outbox")
    connection.commit()
    connection.execute("VACUUM")
    connection.close()


def _stored(world: RecordsWorld, ids: Numbers, *, version: int, tombstone: bool = False) -> Iterator[Block]:
    yield from world.log.put_blocks(RecordKind.LEDGER, versions(ids, version=version, tombstone=tombstone))


def _publish(world: RecordsWorld, blocks: Sequence[Block]) -> None:
    found = read_settled_head(world.catalog.records, world.log)
    assert publish_manifest(
        world.catalog.records,
        world.log,
        found,
        blocks=blocks,
        ceilings=IdCeilings(),
        flushed_us=START_US,
        next_ids=None,
    )


def costs() -> dict[str, Any]:
    """Bytes of a tombstone in the catalog on SQLite and in blocks, measured and estimated, beside Aerospike's."""
    random = np.random.default_rng(1)
    ids = np.sort(random.choice(10**8, _BLOCK, replace=False))
    times = START_US + random.integers(0, _DAY_US, _BLOCK)
    file = len(encode_block(RecordKind.LEDGER, versions(ids, version=7, at_us=times)))
    batch = len(encode_block(RecordKind.LEDGER, versions(np.arange(_BLOCK), version=7)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.db"
        create_migrated_sqlite(path)
        before = path.stat().st_size
        _bury(path, ids)
        row = (path.stat().st_size - before) / _BLOCK
    estimate = estimate_tombstone_sizes(_BLOCK, database="sqlite")
    found = {
        "index_bytes_sqlite": round(row, 1),
        "disk_bytes_worst": round(file / _BLOCK, 2),
        "disk_bytes_batch": round(batch / _BLOCK, 2),
        "estimated_index_bytes_sqlite": estimate.index_bytes / _BLOCK,
        "estimated_disk_bytes": estimate.disk_bytes / _BLOCK,
        "aerospike_index_bytes": estimate.aerospike_index_bytes / _BLOCK,
        "aerospike_disk_bytes": estimate.aerospike_disk_bytes / _BLOCK,
    }
    _tell(f"tombstones: {found}")
    return found


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _tell(line: str) -> None:
    """Say how far it is; stdout has the one document."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


MEASURES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "winners": winning,
    "raid": raiding,
    "tombstones": costs,
    "foreground": beside_writers,
}


def main(names: Sequence[str]) -> dict[str, Any]:
    """Each by its name, or all."""
    return {name: MEASURES[name]() for name in names or MEASURES}


if __name__ == "__main__":
    print(json.dumps({"records": main(sys.argv[1:])}, indent=1))  # noqa: T201
