"""Bundles: equal parts of the hash range of topic names, and the lease of a bundle owner.

The number of bundles is fixed when a catalog is created, so a topic never changes its bundle.

Each bundle has a counter, the fence. A bundle owner raises the fence after its node exists in ZooKeeper. A write under
a lease requires that the fence still has the lease's counter, so each bundle owner fences all earlier bundle owners.

Source: Pulsar's `NamespaceBundleFactory` (CRC-32 of the topic's name over 0 to 2**32 - 1) and `NamespaceBundle` (form
of a range; the last range includes its upper end). Fencing tokens: M. Kleppmann, "How to do distributed locking".
PIP-57 has no fencing tokens.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Final, NewType

from logstore.errors import InvalidInput
from logstore.validated_names import TopicName

BundleId = NewType("BundleId", int)
"""Number of a bundle, counted from 0, in the order of the hash ranges."""

MAX_BUNDLES: Final = 16_384
"""Maximum number of bundles of a catalog. Their names fit into one answer of ZooKeeper (by default 1 MiB)."""

_HASH_BITS = 32
_MAX_HASH = 2**_HASH_BITS - 1


def check_bundle_count(count: int) -> int:
    if not 1 <= count <= MAX_BUNDLES:
        raise InvalidInput("bundles", expected=f"1 to {MAX_BUNDLES}", found=count)
    return count


def bundle_of_topic(topic: TopicName, *, bundle_count: int) -> BundleId:
    hashed = zlib.crc32(topic.encoded.encode("ascii"))
    return BundleId(hashed * check_bundle_count(bundle_count) >> _HASH_BITS)


def bundle_name(bundle: BundleId, *, bundle_count: int) -> str:
    """Return a bundle's hash range, as `0x00000000_0x04000000`. Only the last bundle includes its upper end."""
    if not 0 <= bundle < check_bundle_count(bundle_count):
        raise InvalidInput("bundle", expected=f"0 to {bundle_count - 1}", found=bundle)
    upper = min(_lowest_hash(bundle + 1, bundle_count), _MAX_HASH)
    return f"0x{_lowest_hash(bundle, bundle_count):08x}_0x{upper:08x}"


def parse_bundle_name(name: str, *, bundle_count: int) -> BundleId:
    """Return the bundle whose `bundle_name` is `name`. Raise `InvalidInput` if no bundle has this name."""
    try:
        bundle = BundleId(int(name[:10], 16) * check_bundle_count(bundle_count) >> _HASH_BITS)
    except ValueError:
        bundle = BundleId(0)
    if not 0 <= bundle < bundle_count or bundle_name(bundle, bundle_count=bundle_count) != name:
        raise InvalidInput("bundle", expected=f"the hash range of one of {bundle_count} bundles", found=name)
    return bundle


def _lowest_hash(bundle: int, bundle_count: int) -> int:
    """Return the lowest hash of a bundle, rounded up. For `bundle_count`, return 2**32."""
    return -((-bundle << _HASH_BITS) // bundle_count)


_WORKER_ID_FORM = re.compile(r"(?!\.\.?$)[A-Za-z0-9._@-]{1,128}")


def check_worker_id(worker_id: str) -> str:
    """Return the worker id, or raise `InvalidInput` if it cannot name a Temporal task queue and a ZooKeeper node."""
    if not _WORKER_ID_FORM.fullmatch(worker_id):
        raise InvalidInput(
            "worker id", expected="1 to 128 of A-Z, a-z, 0-9, dot, @, underscore, hyphen", found=worker_id
        )
    return worker_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Right to write for a bundle, valid until a worker raises the bundle's fence again."""

    bundle: BundleId
    fence: int  # counter after this worker has raised the fence, 1 or more
    worker_id: str

    def __str__(self) -> str:
        return f"bundle {self.bundle}, fence {self.fence} of worker {self.worker_id}"
