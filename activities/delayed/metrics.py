"""Prometheus counters of seals and merges of index buckets. No label names a topic."""

from typing import Final

from temporalio import activity

from logstore.delayed.services.bucket_merger import IndexMergeResult
from logstore.delayed.services.log_sealer import SealResult

_DESCRIPTIONS: Final = {
    "sexton_delayed_sealed_buckets_total": "Buckets that were sealed",
    "sexton_delayed_sealed_messages_total": "Messages in buckets that were sealed",
    "sexton_delayed_dropped_buckets_total": "Buckets that were dropped, because their messages need no index any more",
    "sexton_delayed_merges_total": "Merges of two buckets, by outcome",
    "sexton_delayed_merged_messages_total": "Messages in buckets that merges wrote",
    "sexton_delayed_merge_milliseconds_total": "Time that merges took",
    "sexton_delayed_loads_total": "Segments of snapshots that merges have read",
    "sexton_delayed_load_milliseconds_total": "Time that reading them took",
    "sexton_delayed_alarms_total": "Snapshots of buckets that could not be read, and that are listed all the same",
}


def count_seal(result: SealResult) -> None:
    _add_to_counter("sexton_delayed_sealed_buckets_total", result.buckets)
    _add_to_counter("sexton_delayed_sealed_messages_total", result.messages)
    _add_to_counter("sexton_delayed_dropped_buckets_total", result.dropped)


def count_merge(result: IndexMergeResult, duration_s: float) -> None:
    """Count a merge by outcome: MERGED, OVERTAKEN (the list has changed) or DAMAGED (a snapshot is unreadable)."""
    outcome = "MERGED" if result.switched else "OVERTAKEN" if result.damaged is None else "DAMAGED"
    _add_to_counter("sexton_delayed_merges_total", 1, outcome=outcome)
    _add_to_counter("sexton_delayed_merged_messages_total", result.messages)
    _add_to_counter("sexton_delayed_merge_milliseconds_total", round(1_000 * duration_s))
    _add_to_counter("sexton_delayed_loads_total", result.loads)
    _add_to_counter("sexton_delayed_load_milliseconds_total", round(1_000 * result.load_s))
    _add_to_counter("sexton_delayed_alarms_total", int(result.damaged is not None))


def _add_to_counter(name: str, amount: int, **labels: str) -> None:
    if amount:
        activity.metric_meter().create_counter(name, _DESCRIPTIONS[name]).add(amount, labels)
