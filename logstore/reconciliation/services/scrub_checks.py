"""Check of one stored object by a scrub: the whole object is read and compared with its digest.

A finding means data loss, so an object that differs is read a second time. The object is reported only if the catalog
still names it, because its ledger may have been trimmed meanwhile.

Source: the scrubs of ZFS and Ceph.
"""

from collections.abc import Callable
from dataclasses import dataclass

from logstore.errors import CorruptData
from logstore.log.ledger_object_keys import segment_key
from logstore.log.services.segment_reader import SegmentGone, verify_segment_body
from logstore.offload.services.tiered_copy_upload import compute_stored_digest
from logstore.offload.tiered_copy import TieredIndex, data_key, index_key
from logstore.ports.catalog.log import Segment
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId
from logstore.reconciliation.findings import FindingKind

SpendBytes = Callable[[int], None]
"""Function that counts the bytes of each read, and may wait to keep a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDamage:
    kind: FindingKind  # MISSING_DATA or CORRUPT_DATA
    detail: str


def find_damage(check: Callable[[], None], is_named: Callable[[], bool]) -> ObjectDamage | None:
    """Return the damage of an object, or `None`.

    `check` raises `SegmentGone` or `CorruptData` for damage. Any other error of `check` is raised here, because it says
    nothing about the data. `is_named` returns whether the catalog still names the object.
    """
    problem: ObjectDamage | None = None
    for _ in range(2):  # one bad read may be the network's
        try:
            check()
        except SegmentGone as gone:
            problem = ObjectDamage(kind=FindingKind.MISSING_DATA, detail=f"{gone}: absent, asked twice")
        except CorruptData as corrupt:
            problem = ObjectDamage(kind=FindingKind.CORRUPT_DATA, detail=f"{corrupt}; read twice")
        else:
            return None
    return problem if is_named() else None


def require_undamaged_segment(objects: ObjectStore, segment: Segment, spend_bytes: SpendBytes) -> None:
    """Read a whole segment, and compare length and digest with the segment's row.

    If the row has no digest, compare only the length. Raise `SegmentGone` or `CorruptData` for damage.
    """
    key = segment_key(segment.ledger_id, segment.number)
    stored = objects.get(key)
    if stored is None:
        raise SegmentGone(segment.ledger_id, key)
    spend_bytes(len(stored.body))
    verify_segment_body(segment, stored)


def require_undamaged_copy(objects: ObjectStore, uuid: str, ledger_id: LedgerId, spend_bytes: SpendBytes) -> None:
    """Read the data of a tiered copy in parts, and compare length and digest with the index.

    Raise `SegmentGone` or `CorruptData` for damage, also if the index belongs to another copy.
    """
    key, name = data_key(uuid, ledger_id), index_key(uuid, ledger_id)
    stored_index, data = objects.get(name), objects.head(key)
    if stored_index is None or data is None:
        raise SegmentGone(ledger_id, name if stored_index is None else key)
    spend_bytes(len(stored_index.body))
    index = TieredIndex.from_json(stored_index.body, name=name)
    if (index.uuid, index.statement.ledger_id) != (uuid, ledger_id):
        other = f"{index.uuid} of ledger {index.statement.ledger_id}"
        raise CorruptData(f"{name}: expected the index of copy {uuid} of ledger {ledger_id}, found that of {other}")
    if data[0].size_bytes != index.size_bytes:
        raise CorruptData(f"{key}: expected {index.size_bytes} bytes, found {data[0].size_bytes}")
    digest = compute_stored_digest(objects, key, index.size_bytes, on_part=spend_bytes)
    if digest != index.sha256:
        raise CorruptData(f"{key}: expected SHA-256 {index.sha256}, found {digest}")
