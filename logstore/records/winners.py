"""Which version of a record counts: of all that stand in the blocks of one manifest, the newest.

One rule, by `(epoch, version)` and no clock, for every reader: the cold start takes the winners, the defragmentation
drops what is superseded, and the raid keeps a tombstone while it covers a version of its record. Of two topics
with one name `select_newest` in `infra/catalog/records/version_rows.py` takes the newer one.

Everything works on columns. Memory is bounded by working range by range of ids: no record is in two ranges.

Source: Aerospike's conflict resolution by last-update-time, here by order of flushes; ADR 15.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from logstore.records.manifest import Block

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Numbers = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

KEYS: Final = ("id", "sub", "epoch", "version", "tombstone")
"""The columns that the rule looks at."""

RANGE_VERSIONS: Final = 2_000_000
"""About how many versions are looked at together."""

_PART: Final = 1 << 96
"""Versions an id are counted in whole parts, so that what a block adds is taken away again exactly."""


def winners(versions: "pa.Table | Sequence[pa.Table]") -> "pa.Table":
    """The newest version of each record, ascending by id and sub; tombstones are among them.

    Args:
        versions: Of one kind, with at least the columns of `KEYS`, in any order. Sorted parts one after the other are
            fastest. Versions of one record with equal `(epoch, version)` are equal: one of them is taken.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    table = versions if isinstance(versions, pa.Table) else pa.concat_tables(list(versions))
    return table.combine_chunks().take(pa.array(Ranked(table).newest))


@dataclass(frozen=True, slots=True)
class Parted:
    """What counts of some versions of one kind; each table ascends by id and sub."""

    live: "pa.Table"  # winners that are no tombstones
    ended: "pa.Table"  # winners that are
    covered: "pa.Table"  # of the records of these, the newest version that is no tombstone, where there is one


def parted(versions: "pa.Table") -> Parted:
    """The winners, and what the tombstones among them cover.

    A tombstone that covers nothing counts as well: storage may hold objects of its ledger, which adoption would take
    in, and a replica may not have seen it yet. The next raid judges that.

    Args:
        versions: As for `winners`.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.compute as pc  # noqa: PLC0415

    found = winners(versions)
    over = pa.array(_flags(found))
    ended = found.filter(over)
    behind = pc.is_in(versions.column("id"), value_set=ended.column("id").combine_chunks())
    older = versions.filter(pc.and_(behind, pa.array(~_flags(versions))))
    return Parted(live=found.filter(pc.invert(over)), ended=ended, covered=winners(older))


def covered(ids: "Numbers", versions: "pa.Table") -> "Mask":
    """Of each of the ids, whether a version of its record that is no tombstone is among the versions.

    A tombstone is needed while it covers one: whatever its `(epoch, version)`, because ids are never used again, and a
    version that seems to be newer is no reason to forget the tombstone.

    Args:
        ids: Of records whose sub is empty, ascending.
        versions: Of their kind, with the columns id and tombstone, in any order.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    alive = versions.column("id").to_numpy()[~_flags(versions)]
    found = np.zeros(len(ids), dtype=bool)
    at = np.searchsorted(ids, alive)
    at, alive = at[at < len(ids)], alive[at < len(ids)]
    found[at[ids[at] == alive]] = True
    return found


class Ranked:
    """Versions of one kind, seen by record: which one of each is the newest, and which ones stand behind it."""

    def __init__(self, versions: "pa.Table") -> None:
        """Rank the rows of a table with the columns of `KEYS`."""
        import numpy as np  # noqa: PLC0415 - start-up time

        keys = _record_keys(versions)
        self.order = keys.argsort(kind="stable")  # rows of one record stand together; sorted parts are merged
        keys = keys[self.order]
        first = np.ones(len(keys), dtype=bool)
        first[1:] = keys[1:] != keys[:-1]
        self.starts: npt.NDArray[np.intp] = np.flatnonzero(first)
        self._rows = len(keys)
        self.newest = self.order[self._newest(versions)] if len(keys) else self.order

    @property
    def record(self) -> "npt.NDArray[np.intp]":
        """Of each row of the table, the number of its record: records are numbered by id and sub, from 0."""
        import numpy as np  # noqa: PLC0415 - start-up time

        numbers = np.empty(self._rows, dtype=np.intp)
        numbers[self.order] = np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=self._rows))
        return numbers

    def _newest(self, versions: "pa.Table") -> "npt.NDArray[np.intp]":
        """Where in the order the newest row of each record stands."""
        import numpy as np  # noqa: PLC0415 - start-up time

        last = np.append(self.starts[1:], self._rows) - 1
        if len(last) == self._rows:
            return last
        ages = _ages(versions)
        if (ages[1:] >= ages[:-1]).all():
            return last  # the rows stood in the order of their flushes, and the sort kept it
        ages = ages[self.order]
        counts = last - self.starts + 1
        hits = np.flatnonzero(ages == np.repeat(np.maximum.reduceat(ages, self.starts), counts))
        last[np.repeat(np.arange(len(counts)), counts)[hits]] = hits  # of equal ones the last stays
        return last


def _record_keys(versions: "pa.Table") -> "Numbers":
    """A number for each row: equal for rows of one record, and ascending by id and sub."""
    import numpy as np  # noqa: PLC0415 - start-up time

    ids: Numbers = versions.column("id").to_numpy()
    subs, distinct = _subs(versions)
    if distinct <= 1 or not len(ids):
        return ids
    low, high = int(ids.min()), int(ids.max())
    if (high - low + 1) * distinct < 2**62:
        ids = ids - low
    else:
        ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    keys: Numbers = ids * distinct + subs
    return keys


def _subs(versions: "pa.Table") -> "tuple[Numbers, int]":
    """The rank of each row's sub among all of the table, and how many there are."""
    import numpy as np  # noqa: PLC0415 - start-up time
    import pyarrow.compute as pc  # noqa: PLC0415 - start-up time

    column = versions.column("sub").combine_chunks()
    if not len(column) or pc.max(pc.binary_length(column)).as_py() == 0:
        return np.zeros(len(column), dtype=np.int64), 1
    found = column.dictionary_encode()
    ranks = np.empty(len(found.dictionary), dtype=np.int64)
    ranks[pc.array_sort_indices(found.dictionary).to_numpy()] = np.arange(len(ranks))
    return ranks[found.indices.to_numpy(zero_copy_only=False)], len(ranks)


def _ages(versions: "pa.Table") -> "Numbers":
    """A number for each row that ascends with `(epoch, version)`."""
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


def _flags(versions: "pa.Table") -> "Mask":
    found: Mask = versions.column("tombstone").to_numpy()
    return found


def ranges(blocks: Sequence[Block], *, versions: int = RANGE_VERSIONS) -> list[tuple[int, int]]:
    """Ranges of ids, both ends inclusive, ascending and without a gap, that cover all of the blocks.

    Each has about `versions` versions, if those of a block lie evenly among its ids. One id is never divided.
    """
    if not blocks:
        return []
    changes: dict[int, int] = {}  # of versions an id, in parts of `_PART`, where a block begins or has ended
    for one in blocks:
        density = one.records * _PART // (one.last_id - one.first_id + 1)
        changes[one.first_id] = changes.get(one.first_id, 0) + density
        changes[one.last_id + 1] = changes.get(one.last_id + 1, 0) - density
    edges = sorted(changes)
    found, start, held, density, most = [], edges[0], 0, 0, versions * _PART
    for left, right in pairwise(edges):
        density += changes[left]
        at = left
        while density and held + density * (right - at) >= most:
            at = min(right, at + max(1, (most - held) // density))
            found.append((start, at - 1))
            start, held = at, 0
        held += density * (right - at)
    return [*found, (start, edges[-1] - 1)] if start < edges[-1] else found


def by_range(
    blocks: Sequence[Block],
    read: "Callable[[Block, tuple[int, int]], pa.Table]",
    *,
    versions: int = RANGE_VERSIONS,
) -> "Iterator[pa.Table]":
    """All versions of the blocks, range by range, ascending by range: in memory is one range at a time.

    Args:
        blocks: Of one kind.
        read: The versions of a block with ids in a range, both ends inclusive.
        versions: As in `ranges`.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    for ids in ranges(blocks, versions=versions):
        parts = [read(block, ids) for block in overlapping(blocks, ids)]
        if parts:
            yield pa.concat_tables(parts)


def overlapping(blocks: Sequence[Block], ids: tuple[int, int]) -> list[Block]:
    """Those of the blocks that may hold one of the ids, which are from the first to the last of the two."""
    return [one for one in blocks if one.first_id <= ids[1] and one.last_id >= ids[0]]
