"""Bounds of the reads a second on the ZooKeeper of a Pulsar cluster."""

from typing import Final

READS_PER_S: Final = 20_000
"""Default. One server answers some 5,000 asynchronous reads of one client a second."""

MIN_READS_PER_S: Final = 100
"""A batch of reads then waits for 20 s at most, and does not notice a stop meanwhile."""
