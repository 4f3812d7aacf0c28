"""What an owner holds, and what its writes carry.

A counter per bundle is raised once the owner's node stands, and every write under the lease compares it for equality:
whoever raised it later has fenced whoever came before.

Source: fencing tokens (M. Kleppmann, "How to do distributed locking"); PIP-57 has none.
"""

import re
from dataclasses import dataclass

from logstore.errors import InvalidInput
from logstore.ownership.bundles import BundleId

_WORKER_ID = re.compile(r"(?!\.\.?$)[A-Za-z0-9._@-]{1,128}")


def checked_worker_id(worker_id: str) -> str:
    """The worker id, if it can name a queue of Temporal and a node of ZooKeeper.

    Raises:
        InvalidInput: It cannot.
    """
    if not _WORKER_ID.fullmatch(worker_id):
        raise InvalidInput(
            "worker id", expected="1 to 128 of A-Z, a-z, 0-9, dot, @, underscore, hyphen", found=worker_id
        )
    return worker_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write for a bundle, for as long as nobody raises its fence again."""

    bundle: BundleId
    fence: int  # the bundle's counter as this owner raised it, 1 or more
    worker_id: str

    def __str__(self) -> str:
        return f"bundle {self.bundle}, fence {self.fence} of worker {self.worker_id}"
