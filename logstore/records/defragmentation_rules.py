"""Rules of defragmentation: which blocks are rewritten, and which record versions stay.

Only the newest record version of a record can be needed. The newest record version is needed in two cases:

- The catalog has the record or its tombstone.
- An older record version of the record stays in another block. Without the newest one, the older one would count.

Source: Aerospike's defragmentation (`defrag-lwm-pct`, 50 %).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.records.block_files import MAX_VERSIONS_PER_BLOCK
from logstore.records.manifest import Block
from logstore.records.newest_versions import VersionsRankedByRecord

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Mask = npt.NDArray[np.bool_]

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
