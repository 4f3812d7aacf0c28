"""Something in a cluster that a scan could not read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScanProblem:
    """Znode that a scan could not read. A scan with a problem is incomplete."""

    path: str
    reason: str  # a sentence
