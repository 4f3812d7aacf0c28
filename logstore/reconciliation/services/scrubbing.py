"""A scrub's look at one stored object: read as a whole, compared with its digest, and doubted before it is reported.

A finding is data loss, and makes an operator act. So bytes that differ are read as a whole a second time, and whatever
is found counts only if the catalog still names the object: a ledger may be trimmed while it is read.

Source: the scrubs of ZFS and Ceph.
"""

from collections.abc import Callable
from dataclasses import dataclass

from logstore.errors import CorruptData
from logstore.log.ledgers import segment_key
from logstore.log.services.segment_file import SegmentGone, verify_segment
from logstore.offload.services.writing import compute_stored_digest
from logstore.offload.tiered import TieredIndex, data_key, index_key
from logstore.ports.catalog import Segment
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId
from logstore.reconciliation.findings import FindingKind

Spend = Callable[[int], None]
"""Called with the bytes of each read; it may wait, to keep a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is wrong with a stored object that the catalog names."""

    kind: FindingKind  # MISSING_DATA or CORRUPT_DATA
    detail: str


def find_damage(check: Callable[[], None], is_named: Callable[[], bool]) -> Damage | None:
    """Return what is wrong with an object, or None.

    Args:
        check: Reads the object as a whole. `SegmentGone` and `CorruptData` say what is wrong; any other error is
            raised, because it says nothing of the data.
        is_named: Whether the catalog still names the object, asked anew.
    """
    problem: Damage | None = None
    for _ in range(2):  # one bad read may be the network's
        try:
            check()
        except SegmentGone as gone:
            problem = Damage(kind=FindingKind.MISSING_DATA, detail=f"{gone}: absent, asked twice")
        except CorruptData as corrupt:
            problem = Damage(kind=FindingKind.CORRUPT_DATA, detail=f"{corrupt}; read twice")
        else:
            return None
    return problem if is_named() else None


def check_segment(objects: ObjectStore, segment: Segment, spend: Spend) -> None:
    """Read a segment as a whole, and compare it with its row. Of one from before digests only the length is known.

    Raises:
        SegmentGone: There is no such object.
        CorruptData: It is not what its row says.
        StoreUnavailable: The store did not answer.
    """
    key = segment_key(segment.ledger_id, segment.number)
    stored = objects.get(key)
    if stored is None:
        raise SegmentGone(segment.ledger_id, key)
    spend(len(stored.body))
    verify_segment(segment, stored)


def check_copy(objects: ObjectStore, uuid: str, ledger_id: LedgerId, spend: Spend) -> None:
    """Read a tiered copy as a whole, in parts, and compare it with its index.

    Raises:
        SegmentGone: Its data or its index is not there.
        CorruptData: It is not what its index says, or the index is another copy's.
        StoreUnavailable: The store did not answer.
    """
    key, name = data_key(uuid, ledger_id), index_key(uuid, ledger_id)
    stored, data = objects.get(name), objects.head(key)
    if stored is None or data is None:
        raise SegmentGone(ledger_id, name if stored is None else key)
    spend(len(stored.body))
    index = TieredIndex.from_json(stored.body, name=name)
    if (index.uuid, index.statement.ledger_id) != (uuid, ledger_id):
        found = f"{index.uuid} of ledger {index.statement.ledger_id}"
        raise CorruptData(f"{name}: expected the index of copy {uuid} of ledger {ledger_id}, found that of {found}")
    if data[0].size_bytes != index.size_bytes:
        raise CorruptData(f"{key}: expected {index.size_bytes} bytes, found {data[0].size_bytes}")
    digest = compute_stored_digest(objects, key, index.size_bytes, on_part=spend)
    if digest != index.sha256:
        raise CorruptData(f"{key}: expected SHA-256 {index.sha256}, found {digest}")
