"""Defragmentation of the record log: blocks are rewritten and joined, and blocks without a manifest deleted."""

import logging
from typing import Final

from activities.heartbeats import beating, defined
from activities.records import metrics
from activities.records.values import DefragmentInput
from logstore.ports.catalog import Records
from logstore.records.jobs import DefragmentedBlocks
from logstore.records.services.defragmenting import Defragmented, Defragmenter
from logstore.records.services.sweeping import Sweeper

_LOG: Final = logging.getLogger(__name__)


class RecordDefragmentation:
    """The activity, over its services."""

    def __init__(self, *, records: Records, defragmenter: Defragmenter, sweeper: Sweeper) -> None:
        """Take the catalog's side, what rewrites blocks, and what deletes those that no manifest names."""
        self._records, self._defragmenter, self._sweeper = records, defragmenter, sweeper

    @defined(name="records.defragment")
    def defragment(self, request: DefragmentInput) -> DefragmentedBlocks:
        """Go through all kinds once, then sweep manifests and blocks. Flushes may go on meanwhile.

        Idempotency: what was rewritten is not worth rewriting; blocks of an attempt that died are named by no manifest,
            and are swept a day later. Heartbeat: blocks rewritten so far and versions dropped, every two seconds.
        Raises: CatalogAdopting, CatalogOutdated, CatalogMismatch, MissingData, CorruptData, Unsupported (terminal);
            StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        del request  # who asked is in the workflow's input
        far = Defragmented()

        def told(so_far: Defragmented) -> None:
            nonlocal far
            far = so_far

        with beating(lambda: (far.rewritten, far.dropped)):
            done = self._defragmenter.defragment(progress=told)
            state = self._records.state()
            swept = self._sweeper.sweep(state.now_us, staged=state.staged)
        total = DefragmentedBlocks(
            manifest=done.manifest,
            rewritten=done.rewritten,
            written=done.written,
            dropped=done.dropped,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            manifests=swept.manifests,
            unlinked=swept.blocks,
            unlinked_bytes=swept.bytes,
        )
        metrics.defragmented(total)
        _LOG.info(
            "record log defragmented: %d blocks became %d, %d bytes became %d, %d versions dropped;"
            " %d manifests and %d blocks of %d bytes deleted; the newest manifest is %d",
            *(total.rewritten, total.written, total.bytes_before, total.bytes_after, total.dropped),
            *(total.manifests, total.unlinked, total.unlinked_bytes, total.manifest),
        )
        return total
