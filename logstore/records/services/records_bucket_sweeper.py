"""Removal of old manifests from the records bucket, and of old blocks that no manifest names.

A writer reads the newest manifest. The blocks of the writer are at most an hour older than this manifest. Then the
writer stores the next manifest, which names the blocks, and fails if this number is taken. So no writer can still name
a block that is a day older than the newest manifest. Ages are compared by the store's clock alone. Staged blocks of an
unfinished flush stay.

Manifests are removed before blocks. After a crash the removal may be repeated.

Source: Apache Iceberg (expire snapshots, remove orphan files). Iceberg deleted files of a writer that still ran
(iceberg#4194). In Icechunk, a decision by two clocks left half-deleted snapshots (icechunk#2310).
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

    def _delete(self, keys: Iterable[str]) -> None:
        report = self._objects.delete(list(keys))
        if report.failed:
            key, reason = next(iter(report.failed.items()))
            raise StoreUnavailable(f"{key}: it could not be deleted: {reason}")


def _is_older(item: ObjectInfo, newest_us: int, age_us: int) -> bool:
    return item.modified_us is not None and item.modified_us < newest_us - age_us
