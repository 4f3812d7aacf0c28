"""Counters of the record log for Prometheus: what this very call did, counted once it was done.

A worker that dies between the two leaves it out for ever. Labels are those of the activity alone.
"""

from typing import Final

from temporalio import activity

from logstore.records.jobs import DefragmentedBlocks, FlushedRecords, RaidedTombstones, ShippedBlocks

RAID_SECONDS: Final = "sexton_tombstones_raid_seconds"

BUCKETS: Final = {RAID_SECONDS: (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 43_200.0)}
"""Upper bounds by metric, inclusive, in seconds; the SDK's own are for milliseconds."""


def flushed(done: FlushedRecords) -> None:
    """Count a flush, and again what it left out, at each flush."""
    _add("sexton_records_flushes_total", "Manifests that flushes put", done.flushes)
    _add("sexton_records_flushed_total", "Versions of records that were written into blocks", done.records)
    _add("sexton_records_flushed_tombstones_total", "Of these, tombstones", done.tombstones)
    _add("sexton_records_flushed_bytes_total", "Bytes of blocks that flushes wrote", done.bytes)
    _add("sexton_records_refused_total", "Records that a flush left out, because no block can hold them", done.refused)


def defragmented(done: DefragmentedBlocks) -> None:
    """Count a pass over all blocks."""
    _add("sexton_records_defragmented_blocks_total", "Blocks that were rewritten or joined", done.rewritten)
    _add("sexton_records_dropped_total", "Versions that defragmentation dropped", done.dropped)
    _add("sexton_records_unlinked_blocks_total", "Objects of blocks that were deleted", done.unlinked)


def raided(done: RaidedTombstones) -> None:
    """Count a raid that was completed."""
    _add("sexton_tombstones_raids_total", "Raids that came to their end", 1)
    _add("sexton_tombstones_removed_total", "Tombstones that raids removed", done.removed)
    _add("sexton_tombstones_kept_total", "Tombstones that were old enough and stayed", done.kept)
    seconds = activity.metric_meter().create_histogram_float(RAID_SECONDS, "How long a raid took", "s")
    seconds.record(max(0.0, done.seconds))


def shipped(done: ShippedBlocks) -> None:
    """Count what one replica was sent."""
    _add("sexton_records_shipped_blocks_total", "Blocks that were copied into replicas", done.blocks)
    _add("sexton_records_shipped_bytes_total", "Bytes of these", done.bytes)
    _add("sexton_records_ship_failures_total", "Replicas that could not be brought up to date", int(bool(done.error)))


def _add(name: str, about: str, count: int) -> None:
    if count:
        activity.metric_meter().create_counter(name, about).add(count)
