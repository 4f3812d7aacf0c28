"""Bounds of the reads a second on the ZooKeeper of a Pulsar cluster."""

from typing import Final

READS_PER_S: Final = 2_000
"""Default. A scan must not slow down the brokers, which use the same servers.

One client can read some 5,000 znodes a second from one server. A scan with this rate leaves more than half of that.
"""

MIN_READS_PER_S: Final = 100
"""A scan reads one or two znodes for each ledger. A lower rate would need more than a day for 10,000,000 ledgers."""
