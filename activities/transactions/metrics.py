"""How long broadcasts take, for Prometheus: from a transaction's decision until its last participant was told.

It is recorded after the catalog has committed the end, and only by the call that brought it: a repeated activity adds
nothing. A worker that dies between the two leaves that transaction out for ever. By the catalog's clock at both ends.

One without participants is over once it is decided, and one whose last participant an operator resolved was not told:
neither is recorded. A transaction that is not told yet is in the gauge `sexton_transactions_oldest_decided_seconds`.

Labels are those of the activity alone: no topic, no transaction.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from temporalio import activity

from logstore.ports.catalog import Finished

BROADCAST: Final = "sexton_transactions_broadcast_seconds"

BUCKETS: Final[Mapping[str, Sequence[float]]] = {
    BROADCAST: (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
}
"""Upper bounds by metric, inclusive, in seconds; the SDK's own are for milliseconds."""


def told(finished: Iterable[Finished]) -> None:
    """Transactions are over, and the catalog says so: of them those that this very call ended."""
    took = [one.took_us / 1_000_000 for one in finished if one.took_us is not None]
    if not took:
        return
    about = "From the decision of a transaction until its last participant was told"
    histogram = activity.metric_meter().create_histogram_float(BROADCAST, about, "s")
    for seconds in took:
        histogram.record(max(0.0, seconds))
