"""What seals and merges count for Prometheus; see `activities.deletion.metrics` for what a counter is worth.

No label names a topic. What is pending, and how many buckets there are, workers read from SQL.
"""

from typing import Final

from temporalio import activity

from logstore.delayed.services.merging import MergeResult
from logstore.delayed.services.sealing import SealResult

_ABOUT: Final = {
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


def sealed(done: SealResult) -> None:
    """Count a topic that was sealed, once the catalog has committed it."""
    _add("sexton_delayed_sealed_buckets_total", done.buckets)
    _add("sexton_delayed_sealed_messages_total", done.messages)
    _add("sexton_delayed_dropped_buckets_total", done.dropped)


def merged(done: MergeResult, took_s: float) -> None:
    """A merge ended: MERGED, OVERTAKEN by another change of the list, or stopped by a DAMAGED snapshot."""
    outcome = "MERGED" if done.switched else "OVERTAKEN" if done.damaged is None else "DAMAGED"
    _add("sexton_delayed_merges_total", 1, outcome=outcome)
    _add("sexton_delayed_merged_messages_total", done.messages)
    _add("sexton_delayed_merge_milliseconds_total", round(1_000 * took_s))
    _add("sexton_delayed_loads_total", done.loads)
    _add("sexton_delayed_load_milliseconds_total", round(1_000 * done.load_s))
    _add("sexton_delayed_alarms_total", int(done.damaged is not None))


def _add(name: str, amount: int, **labels: str) -> None:
    if amount:
        activity.metric_meter().create_counter(name, _ABOUT[name]).add(amount, labels)
