"""Sweeps of the records bucket: remove old manifests, then blocks that no manifest names.

A writer may be about to name an unnamed block. It stored the block after the newest manifest that it has read, or at
most an hour before. If there is a newer manifest by now, the writer fails. So if an unnamed block is a day older than
the newest manifest, no writer can name it. Ages are compared by the store's clock. Staged blocks of an unfinished flush
stay. They are read from the catalog before the manifests.

Manifests are removed before the blocks that only they named. After a crash a sweep may be repeated.

Source: Apache Iceberg (expire snapshots, remove orphan files). Ages are compared within one store, because files
younger than their longest writer were deleted (iceberg#4194), and because one decision by two clocks left half-deleted
snapshots (icechunk#2310).
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from logstore.errors import StoreUnavailable
from logstore.failpoints import effect
from logstore.ports.object_storage import ObjectInfo, OwnedStore
from logstore.records.manifest import BLOCK_PREFIX, MANIFEST_PREFIX, Block, parse_manifest_number
from logstore.records.services.record_log import MIN_KEPT_MANIFESTS, RecordLog
from logstore.stop_checks import raise_if_stopped

MIN_MANIFEST_AGE_US: Final = 3_600 * 1_000_000
MIN_UNNAMED_BLOCK_AGE_US: Final = 86_400 * 1_000_000
"""Age of an unnamed block, before the newest manifest, from which it is removed."""

_PIN_GRACE_US: Final = 600 * 1_000_000
"""Time for which a pin counts after its end, because clocks differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRecordObjects:
    """Removed objects."""

    manifests: int = 0
    blocks: int = 0
    bytes: int = 0  # size of these blocks


class RecordsBucketSweeper:
    """Sweeps of the records bucket of one catalog."""

    def __init__(self, objects: OwnedStore, log: RecordLog) -> None:
        self._objects, self._log = objects, log

    def remove_old_objects(
        self, now_us: int, *, staged_blocks: Collection[Block] = (), progress: Callable[[], None] = lambda: None
    ) -> SweptRecordObjects:
        """Remove old manifests and old unnamed blocks.

        Args:
            now_us: Current time by the catalog's clock. Pins that have ended do not count.
            staged_blocks: Staged blocks, read from the catalog before this call.
            progress: Function that is called after each manifest read.

        Raises:
            CatalogMismatch: The bucket belongs to another catalog.
            CorruptData, Unsupported: A manifest is unreadable. No block was removed.
            StoreUnavailable: The sweep may be repeated.
        """
        self._log.confirm_ownership()
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
            self._delete(item.key for item in old_manifests.values())
        listed = {number for number, _ in manifests if number <= newest.number}
        remaining = listed.difference(old_manifests) | pinned | {newest.number, newest.moment_number}
        staged_keys = {block.key for block in staged_blocks}
        unnamed = [
            item for item in self._old_unnamed_blocks(newest_us, remaining, progress) if item.key not in staged_keys
        ]
        with effect("records.sweep_blocks"):
            self._delete(item.key for item in unnamed)
        size_bytes = sum(item.size_bytes for item in unnamed)
        return SweptRecordObjects(manifests=len(old_manifests), blocks=len(unnamed), bytes=size_bytes)

    def _old_unnamed_blocks(
        self, newest_us: int, numbers: Iterable[int], progress: Callable[[], None]
    ) -> list[ObjectInfo]:
        """Return old blocks that no manifest names. Read the newest manifest first: it names most blocks."""
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

    def _delete(self, keys: Iterable[str]) -> None:
        report = self._objects.delete(list(keys))
        if report.failed:
            key, reason = next(iter(report.failed.items()))
            raise StoreUnavailable(f"{key}: it could not be deleted: {reason}")


def _is_older(item: ObjectInfo, newest_us: int, age_us: int) -> bool:
    """Return whether an object is this much older than the newest manifest. `False` if its age is unknown."""
    return item.modified_us is not None and item.modified_us < newest_us - age_us
