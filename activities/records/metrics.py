"""Prometheus counters of the record log. If the worker dies before it counts a change, the counters miss the change."""

from typing import Final

from temporalio import activity

from logstore.records.job_results import DefragmentedBlocks, FlushedRecords, RaidedTombstones, ShippedBlocks

RAID_SECONDS: Final = "sexton_tombstones_raid_seconds"

HISTOGRAM_BOUNDS_S: Final = {RAID_SECONDS: (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 43_200.0)}
"""Upper bounds of histogram buckets by metric, in seconds, inclusive. Temporal's default bounds are in milliseconds."""


def count_flush(flushed: FlushedRecords) -> None:
    """Count a flush. A record that no block can hold is counted as refused in each flush."""
    _add_to_counter("sexton_records_flushes_total", "Manifests that flushes put", flushed.flushes)
    _add_to_counter(
        "sexton_records_flushed_total", "Versions of records that were written into blocks", flushed.records
    )
    _add_to_counter("sexton_records_flushed_tombstones_total", "Of these, tombstones", flushed.tombstones)
    _add_to_counter("sexton_records_flushed_bytes_total", "Bytes of blocks that flushes wrote", flushed.bytes)
    _add_to_counter(
        "sexton_records_refused_total", "Records that a flush left out, because no block can hold them", flushed.refused
    )


def count_defragmentation(defragmented: DefragmentedBlocks) -> None:
    _add_to_counter(
        "sexton_records_defragmented_blocks_total", "Blocks that were rewritten or joined", defragmented.rewritten
    )
    _add_to_counter("sexton_records_dropped_total", "Versions that defragmentation dropped", defragmented.dropped)
    _add_to_counter(
        "sexton_records_unlinked_blocks_total", "Objects of blocks that were deleted", defragmented.unlinked
    )


def count_raid(raided: RaidedTombstones) -> None:
    _add_to_counter("sexton_tombstones_raids_total", "Raids that came to their end", 1)
    _add_to_counter("sexton_tombstones_removed_total", "Tombstones that raids removed", raided.removed)
    _add_to_counter("sexton_tombstones_kept_total", "Tombstones that were old enough and stayed", raided.kept)
    seconds = activity.metric_meter().create_histogram_float(RAID_SECONDS, "How long a raid took", "s")
    seconds.record(max(0.0, raided.seconds))


def count_shipment(shipped: ShippedBlocks) -> None:
    _add_to_counter("sexton_records_shipped_blocks_total", "Blocks that were copied into replicas", shipped.blocks)
    _add_to_counter("sexton_records_shipped_bytes_total", "Bytes of these", shipped.bytes)
    failures = int(bool(shipped.error))
    _add_to_counter("sexton_records_ship_failures_total", "Replicas that could not be brought up to date", failures)


def _add_to_counter(name: str, description: str, count: int) -> None:
    if count:
        activity.metric_meter().create_counter(name, description).add(count)
