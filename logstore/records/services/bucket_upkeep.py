"""Upkeep of the records bucket: defragmentation of blocks, and removal of old manifests and blocks.

Defragmentation rewrites blocks with few needed record versions, and merges small blocks. Each kind of records is read
twice, by ranges of ids. First, the needed record versions of each block are counted. Second, the needed record versions
of the chosen blocks are written to new blocks. A flush may run at the same time. A crash leaves blocks that no manifest
names.

A sweep removes such blocks, and old manifests before them. A writer reads the newest manifest. The blocks of the writer
are at most an hour older than this manifest. Then the writer stores the next manifest, which names the blocks, and
fails if this number is taken. So no writer can still name a block that is a day older than the newest manifest. Ages
are compared by the store's clock alone. Staged blocks of an unfinished flush stay. After a crash the removal may be
repeated.

Source: Aerospike's defragmentation; Apache Iceberg (expire snapshots, remove orphan files); ADR 15. Iceberg deleted
files of a writer that still ran (iceberg#4194). In Icechunk, a decision by two clocks left half-deleted snapshots
(icechunk#2310).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.catalog.records.outbox import RecordOutbox
from logstore.failpoints import effect
from logstore.ports.object_storage import ObjectInfo, OwnedStore
from logstore.records.job_results import DefragmentedBlocks
from logstore.records.manifest import BLOCK_PREFIX, MANIFEST_PREFIX, Block, parse_manifest_number
from logstore.records.newest_versions import (
    KEY_COLUMNS,
    VERSIONS_PER_RANGE,
    BlockUsage,
    IdRangeSurvey,
    overlapping_blocks,
    select_blocks_to_rewrite,
    select_newest_versions,
    split_into_id_ranges,
)
from logstore.records.record_kinds import RecordKind
from logstore.records.services.manifest_publication import (
    MAX_PUBLISH_ATTEMPTS,
    BlockWriter,
    RecordLogHead,
    publish_manifest,
    read_settled_head,
    require_no_adoption,
)
from logstore.records.services.record_log import MIN_KEPT_MANIFESTS, RecordLog, delete_record_objects
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Mask = npt.NDArray[np.bool_]


_MAX_BLOCK_LEAD_US: Final = 3_600 * 1_000_000
"""Maximum time by which new blocks may be older than the newest manifest."""


class Defragmenter:
    """Defragmentation of one record log. Keys of about `range_versions` record versions are in memory at once."""

    def __init__(self, records: RecordOutbox, log: RecordLog, *, range_versions: int = VERSIONS_PER_RANGE) -> None:
        self._records, self._log, self._range_versions = records, log, range_versions

    def defragment(self, *, progress: Callable[[DefragmentedBlocks], None] = lambda _: None) -> DefragmentedBlocks:
        """Defragment each kind once. `progress` gets the totals so far after each range of ids and each kind.

        Raises:
            CatalogAdopting: The catalog is rebuilt and incomplete.
            MissingData, CorruptData, Unsupported: A block is unreadable. No block of the same kind was changed.
            CatalogOutdated, CatalogMismatch: Errors of `read_settled_head`.
            StoreUnavailable, OutcomeUnknown, CatalogBusy: The defragmentation may be repeated.
        """
        total = DefragmentedBlocks()
        for kind in RecordKind:
            raise_if_stopped()
            head = read_settled_head(self._records, self._log)
            require_no_adoption(head.state)
            kind_pass = _KindPass(
                self._records,
                self._log,
                head,
                kind,
                range_versions=self._range_versions,
                progress=partial(progress, total),
            )
            old_blocks = kind_pass.select_blocks()
            if old_blocks:
                total = self._publish_rewrite(head, old_blocks, kind_pass.rewrite(old_blocks), total)
            total = replace(total, manifest=max(total.manifest, head.number))
            progress(total)
        return total

    def _publish_rewrite(
        self, head: RecordLogHead, old: Sequence[Block], new: Sequence[Block], total: DefragmentedBlocks
    ) -> DefragmentedBlocks:
        """Replace old blocks by new blocks, unless the newest manifest lacks an old block or new blocks are too old."""
        for _ in range(MAX_PUBLISH_ATTEMPTS):
            manifest = head.manifest
            if manifest is None or not set(old) <= set(manifest.blocks) or not self._are_recent(head, new):
                return total
            published = publish_manifest(
                self._records,
                self._log,
                head,
                blocks=[*(block for block in manifest.blocks if block not in set(old)), *new],
                ceilings=manifest.ceilings,
                flushed_us=manifest.flushed_us,
                next_ids=manifest.next_ids,
            )
            if published:
                dropped = sum(block.records for block in old) - sum(block.records for block in new)
                return replace(
                    total,
                    manifest=published.number,
                    rewritten=total.rewritten + len(old),
                    written=total.written + len(new),
                    dropped=total.dropped + dropped,
                    bytes_before=total.bytes_before + sum(block.size_bytes for block in old),
                    bytes_after=total.bytes_after + sum(block.size_bytes for block in new),
                )
            raise_if_stopped()
            head = read_settled_head(self._records, self._log)
        return total

    def _are_recent(self, head: RecordLogHead, new: Sequence[Block]) -> bool:
        """Return whether `RecordsBucketSweeper` cannot have removed the new blocks, because they are recent enough."""
        if not new or head.manifest is None:
            return True
        stored_us, newest_us = self._log.stored_at_us(new[0].key), self._log.stored_at_us(head.manifest.key)
        return stored_us is not None and newest_us is not None and newest_us - stored_us < _MAX_BLOCK_LEAD_US


class _RangeKeys(NamedTuple):
    table: "pa.Table"
    blocks: list[Block]
    block_numbers: list[int]  # positions of these blocks among all blocks of the kind
    row_offsets: list[int]  # first row of each block, then the number of all rows

    def survey(self) -> IdRangeSurvey:
        import numpy as np  # noqa: PLC0415 - start-up time

        return IdRangeSurvey(self.table, np.repeat(self.block_numbers, np.diff(self.row_offsets)))


class _KindPass:
    def __init__(
        self,
        records: RecordOutbox,
        log: RecordLog,
        head: RecordLogHead,
        kind: RecordKind,
        *,
        range_versions: int,
        progress: Callable[[], None],
    ) -> None:
        self._records, self._log, self._kind, self._progress = records, log, kind, progress
        self._blocks = [block for block in head.blocks if block.kind is kind]
        self._number_by_block = {block: number for number, block in enumerate(self._blocks)}
        self._id_ranges = split_into_id_ranges(self._blocks, versions_per_range=range_versions)

    def select_blocks(self) -> list[Block]:
        import numpy as np  # noqa: PLC0415 - start-up time

        needed_rows = np.zeros(len(self._blocks), dtype=np.intp)
        for ids in self._id_ranges:
            keys = self._read_keys(ids)
            survey = keys.survey()
            needed_rows += survey.count_needed_rows(self._existence_mask(keys, survey), len(self._blocks))
        usages = zip(self._blocks, needed_rows.tolist(), strict=True)
        return select_blocks_to_rewrite([BlockUsage(block, versions) for block, versions in usages])

    def rewrite(self, old_blocks: Sequence[Block]) -> list[Block]:
        import numpy as np  # noqa: PLC0415 - start-up time

        is_rewritten = np.zeros(len(self._blocks), dtype=bool)
        is_rewritten[[self._number_by_block[block] for block in old_blocks]] = True
        writer = BlockWriter(self._log, self._kind)
        for ids in self._id_ranges:
            if not overlapping_blocks(old_blocks, ids):
                continue
            keys = self._read_keys(ids)
            survey = keys.survey()
            is_needed = survey.needed_row_mask(self._existence_mask(keys, survey), is_rewritten)
            needed = list(self._read_needed(ids, keys, is_needed))
            if needed:
                writer.add_versions(select_newest_versions(needed))
        return writer.store_remaining()

    def _read_keys(self, ids: tuple[int, int]) -> _RangeKeys:
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        self._progress()
        blocks = overlapping_blocks(self._blocks, ids)
        tables = []
        for block in blocks:
            raise_if_stopped()
            tables.append(self._log.read_block(block, KEY_COLUMNS, ids))
        row_offsets = [0, *accumulate(table.num_rows for table in tables)]
        numbers = [self._number_by_block[block] for block in blocks]
        return _RangeKeys(pa.concat_tables(tables), blocks, numbers, row_offsets)

    def _existence_mask(self, keys: _RangeKeys, survey: IdRangeSurvey) -> "Mask":
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        newest_keys = keys.table.select(["id", "sub"]).take(pa.array(survey.newest_rows))
        mask: Mask = self._records.existence_mask(self._kind, newest_keys).to_numpy(zero_copy_only=False)
        return mask

    def _read_needed(self, ids: tuple[int, int], keys: _RangeKeys, is_needed: "Mask") -> "Iterator[pa.Table]":
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        for block, (start, end) in zip(keys.blocks, pairwise(keys.row_offsets), strict=True):
            if is_needed[start:end].any():
                raise_if_stopped()
                yield self._log.read_block(block, ids=ids).filter(pa.array(is_needed[start:end]))


MIN_MANIFEST_AGE_US: Final = 3_600 * 1_000_000
MIN_UNNAMED_BLOCK_AGE_US: Final = 86_400 * 1_000_000
"""An unnamed block is removed if it is older than the newest manifest by more than this."""

_PIN_GRACE_US: Final = 600 * 1_000_000
"""Time for which a pin still protects its manifest after the end of the pin, because clocks differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRecordObjects:
    manifests: int = 0
    blocks: int = 0
    bytes: int = 0  # size of the removed blocks


class RecordsBucketSweeper:
    def __init__(self, objects: OwnedStore, log: RecordLog) -> None:
        self._objects, self._log = objects, log

    def remove_old_manifests_and_blocks(
        self, now_us: int, *, staged_blocks: Collection[Block] = (), progress: Callable[[], None] = lambda: None
    ) -> SweptRecordObjects:
        """Remove old manifests and old unnamed blocks.

        `now_us` is by the catalog's clock. `staged_blocks` must be read from the catalog before this call. `progress`
        is called after each read of a manifest.

        Raises:
            CatalogMismatch: The bucket belongs to another catalog.
            CorruptData, Unsupported: A manifest is unreadable. No block was removed.
            StoreUnavailable: The call may be repeated.
        """
        self._log.require_ownership_now()
        newest = self._log.read_newest_manifest()
        newest_us = self._log.stored_at_us(newest.key) if newest else None
        if newest is None or newest_us is None:
            return SweptRecordObjects()
        manifests = [
            (number, item)
            for item in self._objects.list(MANIFEST_PREFIX)
            if (number := parse_manifest_number(item.key)) is not None
        ]
        pinned = {pin.manifest for pin in self._log.list_pins(now_us=now_us - _PIN_GRACE_US)}
        protected = {number for number, _ in manifests[-MIN_KEPT_MANIFESTS:]} | pinned | {newest.moment_number}
        old_manifests = {
            number: item
            for number, item in manifests
            if number not in protected and _is_older(item, newest_us, MIN_MANIFEST_AGE_US)
        }
        with effect("records.sweep_manifests"):
            delete_record_objects(self._objects, [item.key for item in old_manifests.values()])
        listed = {number for number, _ in manifests if number <= newest.number}
        remaining = listed.difference(old_manifests) | pinned | {newest.number, newest.moment_number}
        staged_keys = {block.key for block in staged_blocks}
        unnamed = [
            item for item in self._old_unnamed_blocks(newest_us, remaining, progress) if item.key not in staged_keys
        ]
        with effect("records.sweep_blocks"):
            delete_record_objects(self._objects, [item.key for item in unnamed])
        size_bytes = sum(item.size_bytes for item in unnamed)
        return SweptRecordObjects(manifests=len(old_manifests), blocks=len(unnamed), bytes=size_bytes)

    def _old_unnamed_blocks(
        self, newest_us: int, numbers: Iterable[int], progress: Callable[[], None]
    ) -> list[ObjectInfo]:
        """Return old blocks that no manifest names. The newest manifest is read first, because it names most blocks."""
        unnamed = {
            item.key: item
            for item in self._objects.list(BLOCK_PREFIX)
            if _is_older(item, newest_us, MIN_UNNAMED_BLOCK_AGE_US)
        }
        for number in sorted(numbers, reverse=True):
            if not unnamed:
                break
            raise_if_stopped()
            manifest = self._log.read_manifest(number)
            for block in manifest.blocks if manifest else ():
                unnamed.pop(block.key, None)
            progress()
        return list(unnamed.values())


def _is_older(item: ObjectInfo, newest_us: int, age_us: int) -> bool:
    return item.modified_us is not None and item.modified_us < newest_us - age_us
