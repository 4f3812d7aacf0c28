"""Time by the clock of a cluster's ZooKeeper, as far as a reader can know it.

ZooKeeper shows its clock in the times of changes only, and a reader changes nothing. The newest change that a reader
has seen is a time which this clock has reached. Ages by this time are never too high.
"""

import time

from infra.pulsar.broker_registrations import BROKERS
from infra.pulsar.znode_reads import ZnodeReader


def read_worker_clock_ms() -> int:
    return round(time.time() * 1_000)


def read_cluster_clock_ms(reader: ZnodeReader, *, newest_change_ms: int = 0) -> int:
    """Return a time that ZooKeeper's clock has reached, in milliseconds since 1970.

    It is the time of the newest change that `reader` or, by `newest_change_ms`, another one has seen. A change in the
    worker's future counts as one of now: ZooKeeper's clock may once have been wrong.
    """
    for _ in reader.read(reader.list_paths([BROKERS])):  # with the usual load manager, a report of a few minutes ago
        pass  # the reader remembers the newest change
    return min(max(reader.newest_change_ms, newest_change_ms), read_worker_clock_ms())
