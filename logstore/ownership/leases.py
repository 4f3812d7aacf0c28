"""What an owner holds, and what its writes carry.

A counter per bundle is raised once the owner's node stands, and every write under the lease compares it for equality:
whoever raised it later has fenced whoever came before.

Source: fencing tokens (M. Kleppmann, "How to do distributed locking"); PIP-57 has none.
"""

from dataclasses import dataclass

from logstore.ownership.bundles import BundleId


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write for a bundle, for as long as nobody raises its fence again."""

    bundle: BundleId
    fence: int  # the bundle's counter as this owner raised it, 1 or more
    worker_id: str

    def __str__(self) -> str:
        return f"bundle {self.bundle}, fence {self.fence} of worker {self.worker_id}"
