"""Which blocks are worth rewriting, and what stays of them: rules on columns, without any store.

A version is live while it is the newest of its record, and the record stands in the catalog as a row or a tombstone.
What is superseded may go wherever it is. The newest version of a record that is gone may go only together with all
older ones: if one of those stayed behind, a state that was over would come back.

Source: Aerospike's defragmentation (`defrag-lwm-pct`, 50 %).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.records.blocks import VERSIONS
from logstore.records.manifest import Block
from logstore.records.winners import Ranked

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Mask = npt.NDArray[np.bool_]

SMALL_BYTES: Final = 1 << 20
"""Blocks below it are joined, unless they have half as many versions as a block may have: such versions are small."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a block is needed."""

    block: Block
    live: int  # versions that are live, and those that keep an older version of a record that is gone from returning


def worth_rewriting(usages: Sequence[Usage]) -> list[Block]:
    """The blocks of one kind to be rewritten together: those under half live, and small ones if that joins them."""
    sparse = [one.block for one in usages if 2 * one.live < one.block.records]
    small = [one.block for one in usages if is_small(one.block) and one.block not in sparse]
    return [*sparse, *(small if len(small) > 1 or sparse else [])]


def is_small(block: Block) -> bool:
    """Whether a block should be joined with others."""
    return block.size_bytes < SMALL_BYTES and 2 * block.records < VERSIONS


class Survey:
    """Versions of one kind with ids in one range, of all blocks of the kind, each with the block it stands in."""

    def __init__(self, versions: "pa.Table", part: "npt.NDArray[np.intp]") -> None:
        """Rank them.

        Args:
            versions: With the columns of `logstore.records.winners.KEYS`.
            part: Of each row, the number of its block.
        """
        self._ranked, self._part = Ranked(versions), part
        self.rows = versions.num_rows

    @property
    def newest(self) -> "npt.NDArray[np.intp]":
        """The rows that are the newest of their records, ascending by record."""
        return self._ranked.newest

    def used(self, stands: "Mask", parts: int) -> "npt.NDArray[np.intp]":
        """How many rows of each block are needed, by number of the block.

        Args:
            stands: Of the newest rows, whether their records stand in the catalog.
            parts: How many blocks there are.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        if not self.rows:
            return np.zeros(parts, dtype=np.intp)
        ordered, starts = self._part[self._ranked.order], self._ranked.starts
        spread = np.minimum.reduceat(ordered, starts) != np.maximum.reduceat(ordered, starts)
        found: npt.NDArray[np.intp] = np.bincount(self._part[self.newest[stands | spread]], minlength=parts)
        return found

    def kept(self, stands: "Mask", rewritten: "Mask") -> "Mask":
        """Of all rows, which ones of the blocks that are rewritten stay.

        Args:
            stands: Of the newest rows, whether their records stand in the catalog.
            rewritten: Of each block, whether it is rewritten.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        keep = np.zeros(self.rows, dtype=bool)
        if not self.rows:
            return keep
        here = rewritten[self._part]
        elsewhere = np.logical_or.reduceat(~here[self._ranked.order], self._ranked.starts)
        keep[self.newest[stands | elsewhere]] = True
        return keep & here
