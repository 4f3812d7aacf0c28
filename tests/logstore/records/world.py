"""One catalog on SQLite, its record log and its primary bucket, with clocks that move when a test says so."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from logstore.catalog import tables as t
from logstore.catalog.log.ledger_rows import remove_ledgers
from logstore.catalog.records.tombstone_rows import insert_ledger_tombstones
from logstore.deletion.retention import RetentionPolicy
from logstore.log.ledger_object_keys import segment_key
from logstore.positions import LedgerId
from logstore.records.block_files import decode_block
from logstore.records.job_results import DefragmentedBlocks, FlushedRecords, RaidedTombstones
from logstore.records.manifest import Block
from logstore.records.newest_versions import read_versions_by_id_range, select_newest_versions
from logstore.records.record_kinds import RecordKind
from logstore.records.services.bucket_upkeep import Defragmenter, RecordsBucketSweeper, SweptRecordObjects
from logstore.records.services.flusher import CHANGES_PER_PAGE, Flusher
from logstore.records.services.record_log import RecordLog
from logstore.records.services.tombstone_raids import Raider
from logstore.retrying_clock import Clock
from tests.contracts.catalog.steps import append, roll
from tests.contracts.catalog.worlds import SqlWorld
from tests.fakes.object_store import FakeObjectStore
from tests.logstore.builders import TOPIC
from tests.migrated_catalogs import create_migrated_sqlite

AGE_S = 86_400.0
"""The eligible age."""

HOUR = 3_600.0


class RecordsWorld(SqlWorld):
    """What processes share that flush, defragment, sweep and raid."""

    def __init__(self, folder: Path, *, eligible_age_s: float = AGE_S) -> None:
        """An empty catalog in the folder, with one topic."""
        super().__init__(create_migrated_sqlite(folder / "catalog.db"))
        self.objects, self.primary = FakeObjectStore(), FakeObjectStore()
        self.offset_us = 0  # of the catalog's clock, from the store's
        self.database.now_us = lambda connection: self.objects.now_us + self.offset_us  # type: ignore[method-assign]
        self.log = RecordLog(self.objects)
        self.slept: list[float] = []
        self.page = CHANGES_PER_PAGE  # changes that a flush takes at one moment
        self.eligible_age_s = eligible_age_s
        self.replica_age_s: float | None = None  # none: as that
        self.topic_id = self.catalog.topics.create_topic(TOPIC, RetentionPolicy()).topic_id

    @property
    def flusher(self) -> Flusher:
        """As a process has it."""
        return Flusher(self.catalog.records, RecordLog(self.objects), clock_bound_s=600, page=self.page)

    @property
    def raider(self) -> Raider:
        """As a process has it."""
        clock = Clock(sleep=self.slept.append)
        parts = (self.catalog.records, self.catalog.tombstones, RecordLog(self.objects), self.primary)
        return Raider(*parts, eligible_age_s=self.eligible_age_s, replica_age_s=self.replica_age_s, clock=clock)

    @property
    def defragmenter(self) -> Defragmenter:
        """As a process has it; with short ranges, so that there are several."""
        return Defragmenter(self.catalog.records, RecordLog(self.objects), range_versions=8)

    def advance(self, *, seconds: float) -> None:
        """Let time pass, by all clocks."""
        self.objects.advance(seconds=seconds)
        self.primary.advance(seconds=seconds)

    def create(self) -> LedgerId:
        """A ledger at the end of the topic's list, with a segment and its object."""
        ledger_id = roll(self, self.topic_id)
        append(self, self.topic_id, ledger_id)
        self.primary.put_if_absent(segment_key(ledger_id, 0), b"x", metadata={})
        return ledger_id

    def touch(self, ledger_id: LedgerId) -> None:
        """A new version of the ledger that stands."""
        self.sql("UPDATE ledger SET generation = generation + 1 WHERE ledger_id = :id", id=ledger_id)

    def end(self, *ledger_ids: LedgerId, durable: bool) -> None:
        """Phase one: the rows go, in one transaction with tombstones if it is durable."""
        gone = t.ledger.c.ledger_id.in_(ledger_ids)

        def work(connection: Any) -> None:
            if durable:
                insert_ledger_tombstones(connection, gone, now_us=self.database.now_us(connection))
            remove_ledgers(connection, gone)

        self.database.write(work)

    def clear(self, *ledger_ids: LedgerId) -> None:
        """Phase two: the objects go."""
        self.primary.delete([segment_key(one, 0) for one in ledger_ids])

    def flush(self) -> FlushedRecords:
        """All changes."""
        return self.flusher.flush(cursors=True)

    def defragment(self) -> DefragmentedBlocks:
        """All kinds."""
        return self.defragmenter.defragment()

    def sweep(self) -> SweptRecordObjects:
        """Manifests and blocks."""
        state = self.catalog.records.read_state()
        return RecordsBucketSweeper(self.objects, RecordLog(self.objects)).remove_old_manifests_and_blocks(
            state.now_us, staged_blocks=state.staged_blocks
        )

    def raid(self, run_id: str = "raid-tombstones") -> RaidedTombstones:
        """All that may go."""
        return self.raider.raid_tombstones(run_id)

    def acknowledge(self, replica_id: str, manifest: int) -> None:
        """A replica has applied this manifest."""
        RecordLog(self.objects).acknowledge_manifest(replica_id, manifest, 1, self.objects.now_us)

    def winners(self, kind: RecordKind = RecordKind.LEDGER) -> pa.Table:
        """What a cold start takes of the newest manifest."""
        manifest = RecordLog(self.objects).read_newest_manifest()
        blocks = [block for block in manifest.blocks if block.kind is kind] if manifest else []
        stored = [self.objects.get(block.key) for block in blocks]
        return _winners(tuple(blocks), tuple(found and found.body for found in stored))

    def returning(self) -> set[int]:
        """Ledgers that a cold start of the newest manifest would bring back: winners that are no tombstones."""
        found = self.winners()
        rows = zip(found.column("id").to_pylist(), found.column("tombstone").to_pylist(), strict=True)
        return {id_ for id_, tombstone in rows if not tombstone}

    def buried(self) -> set[int]:
        """Ledgers with a tombstone in the catalog."""
        return {row.id for row in self.sql("SELECT id FROM tombstone WHERE kind = 'ledger'")}

    def standing(self) -> set[int]:
        """Ledgers with a row."""
        return {row.ledger_id for row in self.sql("SELECT ledger_id FROM ledger")}

    def on_disk(self, ledger_ids: Iterable[int]) -> dict[int, list[bool]]:
        """Of each ledger, its versions in blocks of the newest manifest, oldest first: whether each is a tombstone."""
        wanted = set(ledger_ids)
        manifest = RecordLog(self.objects).read_newest_manifest()
        found: dict[int, list[tuple[int, bool]]] = {one: [] for one in wanted}
        for block in manifest.blocks if manifest else ():
            if block.kind is RecordKind.LEDGER:
                for row in self.log.read_block(block).to_pylist():
                    if row["id"] in wanted:
                        found[row["id"]].append((row["version"], row["tombstone"]))
        return {one: [tombstone for _, tombstone in sorted(rows)] for one, rows in found.items()}


@lru_cache(maxsize=4)  # several invariants ask after each step of a program
def _winners(blocks: tuple[Block, ...], files: tuple[bytes | None, ...]) -> pa.Table:
    file_by_block = dict(zip(blocks, files, strict=True))

    def read(block: Block, ids: tuple[int, int]) -> pa.Table:
        file = file_by_block[block]
        assert file is not None, f"a manifest names {block.key}, and the bucket has no such object"
        return decode_block(block, file, ids=ids)

    tables = [select_newest_versions(part) for part in read_versions_by_id_range(blocks, read, versions_per_range=7)]
    return pa.concat_tables(tables) if tables else pa.table({"id": [], "tombstone": []})
