"""Sweeping the records bucket: manifests that are not needed any more, and then blocks that no manifest names.

A block that no manifest names may be one that a writer is about to name. Such a writer has read a manifest that was the
newest, and puts its own under the next number: it stored the block after that manifest was put, or at most an hour
before, and it fails once there is another one. So a block that is a day older than the newest manifest, by the clock of
the store that keeps both, belongs to no manifest, however long a writer was paused. But those of a flush that goes on
page by page are known to the catalog until a manifest names them: they are asked for before manifests are read, and
stay.

Dying anywhere, and repeating it, is harmless: manifests go first, and what they alone named goes then or the next time.

Source: Apache Iceberg (expire snapshots, remove orphan files); field cases 85 and 98.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from logstore.errors import StoreUnavailable
from logstore.failpoints import effect
from logstore.ports.objects import ObjectInfo, OwnedStore
from logstore.records.manifest import BLOCKS, PREFIX, Block, number_of
from logstore.records.services.record_log import KEPT, RecordLog
from logstore.units import raise_if_stopped

MANIFEST_AGE_US: Final = 3_600 * 1_000_000
"""Manifests stay for so long after they were put."""

BLOCK_AGE_US: Final = 86_400 * 1_000_000
"""Blocks that no manifest names stay until the newest manifest is so much younger."""

_GRACE_US: Final = 600 * 1_000_000
"""Pins count for so much longer than they say: clocks differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What was removed."""

    manifests: int = 0
    blocks: int = 0
    bytes: int = 0  # of those blocks


class Sweeper:
    """Sweeps the records bucket of one catalog."""

    def __init__(self, objects: OwnedStore, log: RecordLog) -> None:
        """Work on the bucket of that log."""
        self._objects, self._log = objects, log

    def sweep(
        self, now_us: int, *, staged: Collection[Block] = (), progress: Callable[[], None] = lambda: None
    ) -> Swept:
        """Remove what is not needed.

        Args:
            now_us: By the catalog's clock: pins that have run out then do not count.
            staged: Blocks that the catalog knew to be staged before this was called.
            progress: Called after each manifest that was read.

        Raises:
            CatalogMismatch: The bucket is not the catalog's.
            CorruptData, Unsupported: A manifest cannot be read: no block is removed.
            StoreUnavailable: Repeating is fine.
        """
        self._log.confirm()
        newest = self._log.newest()
        newest_us = self._log.put_us(newest.key) if newest else None
        if newest is None or newest_us is None:
            return Swept()
        found = [(number, one) for one in self._objects.list(PREFIX) if (number := number_of(one.key)) is not None]
        pinned = {one.manifest for one in self._log.pins(now_us=now_us - _GRACE_US)}
        spared = {number for number, _ in found[-KEPT:]} | pinned | {newest.moment}
        gone = [
            (number, one) for number, one in found if number not in spared and _older(one, newest_us, MANIFEST_AGE_US)
        ]
        with effect("records.sweep_manifests"):
            self._delete(one.key for _, one in gone)
        listed = {number for number, _ in found if number <= newest.number}
        left = (listed - {number for number, _ in gone}) | pinned | {newest.number, newest.moment}
        kept = {one.key for one in staged}
        unnamed = [one for one in self._unnamed(newest_us, left, progress) if one.key not in kept]
        with effect("records.sweep_blocks"):
            self._delete(one.key for one in unnamed)
        return Swept(manifests=len(gone), blocks=len(unnamed), bytes=sum(one.size_bytes for one in unnamed))

    def _unnamed(self, newest_us: int, numbers: Iterable[int], progress: Callable[[], None]) -> list[ObjectInfo]:
        """Old blocks that none of the manifests names; the newest is looked at first, because it names most of them."""
        unnamed = {one.key: one for one in self._objects.list(BLOCKS) if _older(one, newest_us, BLOCK_AGE_US)}
        for number in sorted(numbers, reverse=True):
            if not unnamed:
                break
            raise_if_stopped()
            manifest = self._log.manifest(number)
            for block in manifest.blocks if manifest else ():
                unnamed.pop(block.key, None)
            progress()
        return list(unnamed.values())

    def _delete(self, keys: Iterable[str]) -> None:
        report = self._objects.delete(list(keys))
        if report.failed:
            key, why = next(iter(report.failed.items()))
            raise StoreUnavailable(f"{key}: it could not be deleted: {why}")


def _older(one: ObjectInfo, newest_us: int, age_us: int) -> bool:
    """An object of an unknown age stays."""
    return one.modified_us is not None and one.modified_us < newest_us - age_us
