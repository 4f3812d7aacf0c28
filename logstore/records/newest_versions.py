"""Rule of the newest record version: a record has the content with the highest `(epoch, version)`.

No clock is compared. To bound memory, callers read one range of ids at a time. All record versions of a record have the
same id, and so are in one range.

Defragmentation needs the newest record version of a record in two cases:

- The catalog has the record or its tombstone.
- An older record version of the record stays in another block. Without the newest one, the older one would count.

No other record version is needed.

Source: Aerospike's conflict resolution by last-update-time, and its defragmentation (`defrag-lwm-pct`, 50 %). Sexton
uses the order of flushes instead of times (ADR 15).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from logstore.records.block_files import MAX_VERSIONS_PER_BLOCK
from logstore.records.manifest import Block

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Numbers = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]


KEY_COLUMNS: Final = ("id", "sub", "epoch", "version", "tombstone")
"""Columns that the functions of this module need."""

VERSIONS_PER_RANGE: Final = 2_000_000
"""Approximate number of record versions in memory at once."""

_DENSITY_UNIT: Final = 1 << 96
"""Factor that scales densities (record versions per id) to integers, so that sums of densities are exact."""


def select_newest_versions(versions: "pa.Table | Sequence[pa.Table]") -> "pa.Table":
    """Return the newest record version of each record, including tombstones, ascending by `id` and `sub`.

    `versions` has record versions of one kind in any order, with at least `KEY_COLUMNS`. Sorted tables take less time.
    If two record versions of a record have equal `(epoch, version)`, their content is equal too.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    table = versions if isinstance(versions, pa.Table) else pa.concat_tables(list(versions))
    return table.combine_chunks().take(pa.array(VersionsRankedByRecord(table).newest_rows))


@dataclass(frozen=True, slots=True)
class SplitNewestVersions:
    """Newest record versions of the records of one kind. Each table ascends by `id` and `sub`."""

    live: "pa.Table"  # newest record versions that are no tombstones
    tombstones: "pa.Table"  # newest record versions that are tombstones
    covered: "pa.Table"  # newest record version with content, if any, of each record in `tombstones`


def split_newest_versions(versions: "pa.Table") -> SplitNewestVersions:
    """Return the newest record version of each record, and the newest content that each tombstone covers.

    The result also has tombstones that cover no record version in `versions`. Without such a tombstone, adoption could
    adopt remaining objects of the ledger, and a replica could keep the ledger.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.compute as pc  # noqa: PLC0415

    newest = select_newest_versions(versions)
    is_tombstone = pa.array(_tombstone_mask(newest))
    tombstones = newest.filter(is_tombstone)
    has_tombstone = pc.is_in(versions.column("id"), value_set=tombstones.column("id").combine_chunks())
    older = versions.filter(pc.and_(has_tombstone, pa.array(~_tombstone_mask(versions))))
    return SplitNewestVersions(
        live=newest.filter(pc.invert(is_tombstone)), tombstones=tombstones, covered=select_newest_versions(older)
    )


def mask_ids_with_content(ids: "Numbers", versions: "pa.Table") -> "Mask":
    """Return for each id whether `versions` has a record version with content.

    `ids` are ids of tombstones, ascending. `versions` may be in any order. An id is never used again, so content with
    the id always belongs to the deleted record. The result is therefore true even if this content has a higher
    `(epoch, version)` than the tombstone.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    live_ids = versions.column("id").to_numpy()[~_tombstone_mask(versions)]
    mask = np.zeros(len(ids), dtype=bool)
    positions = np.searchsorted(ids, live_ids)
    positions, live_ids = positions[positions < len(ids)], live_ids[positions < len(ids)]
    mask[positions[ids[positions] == live_ids]] = True
    return mask


class VersionsRankedByRecord:
    """Record versions of one kind, ordered by record.

    `order` has the row numbers in the order of the columns `id` and `sub`. `starts` has the position in `order` of each
    record's first row. `newest_rows` has the row number of each record's newest record version.
    """

    def __init__(self, versions: "pa.Table") -> None:
        import numpy as np  # noqa: PLC0415 - start-up time

        keys = _record_keys(versions)
        self.order = keys.argsort(kind="stable")  # a stable sort only merges parts that are sorted
        keys = keys[self.order]
        is_first = np.ones(len(keys), dtype=bool)
        is_first[1:] = keys[1:] != keys[:-1]
        self.starts: npt.NDArray[np.intp] = np.flatnonzero(is_first)
        self._rows = len(keys)
        self.newest_rows = self.order[self._newest_positions_in_order(versions)] if len(keys) else self.order

    @property
    def record_numbers(self) -> "npt.NDArray[np.intp]":
        """Number of each row's record. Records are numbered from 0, in the order of `id` and `sub`."""
        import numpy as np  # noqa: PLC0415 - start-up time

        numbers = np.empty(self._rows, dtype=np.intp)
        numbers[self.order] = np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=self._rows))
        return numbers

    def _newest_positions_in_order(self, versions: "pa.Table") -> "npt.NDArray[np.intp]":
        import numpy as np  # noqa: PLC0415 - start-up time

        last = np.append(self.starts[1:], self._rows) - 1
        if len(last) == self._rows:
            return last
        recency = _recency_numbers(versions)
        if (recency[1:] >= recency[:-1]).all():
            return last  # rows are in the order of flushes, and the sort is stable
        recency = recency[self.order]
        counts = last - self.starts + 1
        hits = np.flatnonzero(recency == np.repeat(np.maximum.reduceat(recency, self.starts), counts))
        # If several rows of a record have equal `(epoch, version)`, the last row counts.
        last[np.repeat(np.arange(len(counts)), counts)[hits]] = hits
        return last


def _record_keys(versions: "pa.Table") -> "Numbers":
    """Return a number for each row. The numbers have the order of `(id, sub)`."""
    import numpy as np  # noqa: PLC0415 - start-up time

    ids: Numbers = versions.column("id").to_numpy()
    sub_ranks, subs = _rank_subs(versions)
    if subs <= 1 or not len(ids):
        return ids
    low, high = int(ids.min()), int(ids.max())
    ids = ids - low if (high - low + 1) * subs < 2**62 else np.unique(ids, return_inverse=True)[1].astype(np.int64)
    keys: Numbers = ids * subs + sub_ranks
    return keys


def _rank_subs(versions: "pa.Table") -> "tuple[Numbers, int]":
    import numpy as np  # noqa: PLC0415 - start-up time
    import pyarrow.compute as pc  # noqa: PLC0415 - start-up time

    column = versions.column("sub").combine_chunks()
    if not len(column) or pc.max(pc.binary_length(column)).as_py() == 0:
        return np.zeros(len(column), dtype=np.int64), 1
    encoded = column.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), dtype=np.int64)
    ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    return ranks[encoded.indices.to_numpy(zero_copy_only=False)], len(ranks)


def _recency_numbers(versions: "pa.Table") -> "Numbers":
    """Return a number for each row. The numbers have the order of `(epoch, version)`."""
    import numpy as np  # noqa: PLC0415 - start-up time

    epochs: Numbers = versions.column("epoch").to_numpy()
    numbers: Numbers = versions.column("version").to_numpy()
    first, last = int(epochs.min()), int(epochs.max())
    if first == last:
        return numbers
    low, high = int(numbers.min()), int(numbers.max())
    if (last - first + 1) * (high - low + 1) < 2**62:
        epochs = (epochs - first) * (high - low + 1)
        return epochs + (numbers - low)
    order = np.lexsort((numbers, epochs))
    rising = (np.diff(epochs[order]) != 0) | (np.diff(numbers[order]) != 0)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.concatenate(([0], rising.cumsum()))
    return ranks


def _tombstone_mask(versions: "pa.Table") -> "Mask":
    mask: Mask = versions.column("tombstone").to_numpy()
    return mask


def split_into_id_ranges(
    blocks: Sequence[Block], *, versions_per_range: int = VERSIONS_PER_RANGE
) -> list[tuple[int, int]]:
    """Return ascending ranges of ids that cover all blocks without a gap. Both ends of a range are inclusive.

    A range has about `versions_per_range` record versions if the ids in each block are spread evenly.
    """
    if not blocks:
        return []
    density_changes: dict[int, int] = {}  # key: the first id of a block, or the id after its last id
    for block in blocks:
        density = block.records * _DENSITY_UNIT // (block.last_id - block.first_id + 1)
        density_changes[block.first_id] = density_changes.get(block.first_id, 0) + density
        density_changes[block.last_id + 1] = density_changes.get(block.last_id + 1, 0) - density
    edges = sorted(density_changes)
    id_ranges, start, weight, density, max_weight = [], edges[0], 0, 0, versions_per_range * _DENSITY_UNIT
    for left, right in pairwise(edges):
        density += density_changes[left]
        position = left
        while density and weight + density * (right - position) >= max_weight:
            position = min(right, position + max(1, (max_weight - weight) // density))
            id_ranges.append((start, position - 1))
            start, weight = position, 0
        weight += density * (right - position)
    return [*id_ranges, (start, edges[-1] - 1)] if start < edges[-1] else id_ranges


def read_versions_by_id_range(
    blocks: Sequence[Block],
    read: "Callable[[Block, tuple[int, int]], pa.Table]",
    *,
    versions_per_range: int = VERSIONS_PER_RANGE,
) -> "Iterator[pa.Table]":
    """Yield all record versions of blocks of one kind, one ascending range of ids at a time.

    `read` returns the record versions of a block with ids in a range, both ends inclusive. A range has about
    `versions_per_range` record versions.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    for ids in split_into_id_ranges(blocks, versions_per_range=versions_per_range):
        tables = [read(block, ids) for block in overlapping_blocks(blocks, ids)]
        if tables:
            yield pa.concat_tables(tables)


def overlapping_blocks(blocks: Sequence[Block], ids: tuple[int, int]) -> list[Block]:
    """Return the blocks that may have an id of the range. Both ends of the range are inclusive."""
    return [block for block in blocks if block.first_id <= ids[1] and block.last_id >= ids[0]]


SMALL_BLOCK_BYTES: Final = 1 << 20
"""Small blocks are below this size, and have fewer record versions than half of `MAX_VERSIONS_PER_BLOCK`."""


@dataclass(frozen=True, slots=True)
class BlockUsage:
    block: Block
    needed_versions: int  # record versions of the block that are needed


def select_blocks_to_rewrite(usages: Sequence[BlockUsage]) -> list[Block]:
    """Return the blocks of one kind to rewrite together: small blocks, and blocks in which most rows are not needed."""
    sparse = [usage.block for usage in usages if 2 * usage.needed_versions < usage.block.records]
    small = [usage.block for usage in usages if is_small_block(usage.block) and usage.block not in sparse]
    return [*sparse, *(small if len(small) > 1 or sparse else [])]


def is_small_block(block: Block) -> bool:
    return block.size_bytes < SMALL_BLOCK_BYTES and 2 * block.records < MAX_VERSIONS_PER_BLOCK


class IdRangeSurvey:
    """Record versions of one kind with ids in one range.

    `versions` has `logstore.records.newest_versions.KEY_COLUMNS`. `block_numbers` has the index of each row's block.
    """

    def __init__(self, versions: "pa.Table", block_numbers: "npt.NDArray[np.intp]") -> None:
        self._ranked, self._block_numbers = VersionsRankedByRecord(versions), block_numbers
        self.rows = versions.num_rows

    @property
    def newest_rows(self) -> "npt.NDArray[np.intp]":
        """Row number of each record's newest record version, in the order of the columns `id` and `sub`."""
        return self._ranked.newest_rows

    def count_needed_rows(self, exists: "Mask", blocks: int) -> "npt.NDArray[np.intp]":
        """Return the number of needed rows of each block. `blocks` is the number of blocks.

        `exists` says for each row of `newest_rows` whether the catalog has the record or its tombstone.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        if not self.rows:
            return np.zeros(blocks, dtype=np.intp)
        ordered, starts = self._block_numbers[self._ranked.order], self._ranked.starts
        in_several_blocks = np.minimum.reduceat(ordered, starts) != np.maximum.reduceat(ordered, starts)
        needed_rows = self.newest_rows[exists | in_several_blocks]
        counts: npt.NDArray[np.intp] = np.bincount(self._block_numbers[needed_rows], minlength=blocks)
        return counts

    def needed_row_mask(self, exists: "Mask", is_rewritten: "Mask") -> "Mask":
        """Return for each row whether its block is rewritten and the row is needed.

        `is_rewritten` says for each block whether it is rewritten.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        is_needed = np.zeros(self.rows, dtype=bool)
        if not self.rows:
            return is_needed
        in_rewritten = is_rewritten[self._block_numbers]
        has_other_block = np.logical_or.reduceat(~in_rewritten[self._ranked.order], self._ranked.starts)
        is_needed[self.newest_rows[exists | has_other_block]] = True
        return is_needed & in_rewritten
