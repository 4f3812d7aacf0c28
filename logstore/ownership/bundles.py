"""Bundles: the hash range of topics cut into N parts, and the lease of the one owner of each.

Their number is fixed when a catalog is created, so a topic never changes its bundle.

Source: Pulsar's `NamespaceBundleFactory` (CRC-32 of the topic's name over 0 to 2**32 - 1) and `NamespaceBundle`
(the form of a range, the last of which includes its upper end).

A counter per bundle is raised once the owner's node stands, and every write under the lease compares it for equality:
a later raise has fenced every earlier owner.

Source: fencing tokens (M. Kleppmann, "How to do distributed locking"); PIP-57 has none.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Final, NewType

from logstore.errors import InvalidInput
from logstore.names import TopicName

BundleId = NewType("BundleId", int)
"""0 to N - 1, ascending by hash range."""

MAX_BUNDLES: Final = 16_384
"""Most bundles of a catalog: the names of all of them fit one answer of ZooKeeper, 1 MiB by default."""

_BITS = 32
_LAST = 2**_BITS - 1


def check_bundles(count: int) -> int:
    """Validate a number of bundles and return it.

    Raises:
        InvalidInput: Not 1 to `MAX_BUNDLES`.
    """
    if not 1 <= count <= MAX_BUNDLES:
        raise InvalidInput("bundles", expected=f"1 to {MAX_BUNDLES}", found=count)
    return count


def bundle_of(topic: TopicName, *, bundles: int) -> BundleId:
    """The bundle that the topic is in, where there are `bundles` of them.

    Raises:
        InvalidInput: No valid number of bundles.
    """
    hashed = zlib.crc32(topic.encoded.encode("ascii"))
    return BundleId(hashed * check_bundles(bundles) >> _BITS)


def bundle_name(bundle: BundleId, *, bundles: int) -> str:
    """Its hash range, as `0x00000000_0x04000000`: lower inclusive, upper exclusive but for the last bundle's.

    Raises:
        InvalidInput: The number of bundles is not valid, or there is no such bundle.
    """
    if not 0 <= bundle < check_bundles(bundles):
        raise InvalidInput("bundle", expected=f"0 to {bundles - 1}", found=bundle)
    upper = min(_begin(bundle + 1, bundles), _LAST)
    return f"0x{_begin(bundle, bundles):08x}_0x{upper:08x}"


def parse_bundle(name: str, *, bundles: int) -> BundleId:
    """Take back what `bundle_name` wrote for the same number of bundles.

    Raises:
        InvalidInput: No valid number of bundles, or the range of none of them: a name that was written for another
            number of bundles is refused, never rounded.
    """
    try:
        bundle = BundleId(int(name[:10], 16) * check_bundles(bundles) >> _BITS)
    except ValueError:
        bundle = BundleId(0)
    if not 0 <= bundle < bundles or bundle_name(bundle, bundles=bundles) != name:
        raise InvalidInput("bundle", expected=f"the hash range of one of {bundles} bundles", found=name)
    return bundle


def _begin(bundle: int, bundles: int) -> int:
    """The lowest hash of a bundle, or 2**32 of the one after the last: the inverse of `bundle_of`, rounded up."""
    return -(-(bundle << _BITS) // bundles)


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
    """The right to write for a bundle, for as long as no worker raises its fence again."""

    bundle: BundleId
    fence: int  # the bundle's counter as this owner raised it, 1 or more
    worker_id: str

    def __str__(self) -> str:
        return f"bundle {self.bundle}, fence {self.fence} of worker {self.worker_id}"
