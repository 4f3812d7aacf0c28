"""Defragmentation of the record log: blocks with few needed record versions are rewritten, and small blocks are merged.

Each kind of records is read twice, by ranges of ids. First, the needed record versions of each block are counted.
Second, the needed record versions of the chosen blocks are written to new blocks. A flush may run at the same time. A
crash leaves blocks that no manifest names. `RecordsBucketSweeper` removes these blocks.

Source: Aerospike's defragmentation; ADR 15.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.catalog.records.outbox import RecordOutbox
from logstore.records.defragmentation_rules import BlockUsage, IdRangeSurvey, select_blocks_to_rewrite
from logstore.records.job_results import DefragmentedBlocks
from logstore.records.manifest import Block
from logstore.records.newest_versions import (
    KEY_COLUMNS,
    VERSIONS_PER_RANGE,
    overlapping_blocks,
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
from logstore.records.services.record_log import RecordLog
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Mask = npt.NDArray[np.bool_]

_MAX_BLOCK_LEAD_US: Final = 3_600 * 1_000_000
"""Maximum time by which new blocks may be older than the newest manifest. Unnamed blocks are removed after a day."""


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
