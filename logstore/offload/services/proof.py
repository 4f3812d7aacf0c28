"""Asking storage whether a published tiered copy still stands, before its ledger loses its other copy.

What was true when the copy was published may have been lost since: a bucket's lifecycle rule, a stray delete.
"""

import hashlib
from typing import Final

from logstore.errors import CorruptData, MissingData
from logstore.offload.places import place_of
from logstore.offload.tiered import TieredIndex, data_key, index_key
from logstore.ports.catalog import Published
from logstore.ports.objects import Buckets, ObjectStore
from logstore.units import between_units

_READ_BACK: Final = 8 << 20  # bytes at a time


def prove_published(buckets: Buckets, copy: Published) -> TieredIndex:
    """Read the copy's index and ask for its data: both there, of this very ledger, attempt, length and content.

    The content is that which was read back when it was published if the store's mark of it is the same one; of a copy
    that was published without it, or bears another mark, all is read and its digest compared.

    Raises:
        MissingData: One of them is not in storage.
        CorruptData: One of them is not what the catalog says, or its context does not say where to look.
        StoreUnavailable: Storage did not answer.
    """
    ledger_id = copy.statement.ledger_id
    uuid, place = place_of(ledger_id, copy.context)
    objects, key, index_name = buckets(place), data_key(uuid, ledger_id), index_key(uuid, ledger_id)
    stored, data = objects.get(index_name), objects.head(key)
    if stored is None or data is None:
        raise MissingData(f"ledger {ledger_id}: its tiered copy {uuid} is LIVE and not in storage")
    index = TieredIndex.from_json(stored.body, name=index_name)
    expected = (copy.statement, uuid, copy.entries)
    found = (index.statement, index.uuid, index.entries)
    if found != expected:
        raise CorruptData(f"{index_name}: expected {expected}, found {found}")
    if data[0].size_bytes != index.size_bytes:
        raise CorruptData(f"{key}: expected {index.size_bytes} bytes, found {data[0].size_bytes}")
    if data[1] != copy.statement.to_metadata():
        raise CorruptData(f"{key}: expected {copy.statement.to_metadata()}, found {dict(data[1])}")
    if not index.etag or data[0].etag != index.etag:
        _read_back(objects, key, index)
    return index


def _read_back(objects: ObjectStore, key: str, index: TieredIndex) -> None:
    """Where the store's mark of the content is not that of publication, or none was kept, the content decides."""
    found = stored_digest(objects, key, index.size_bytes)
    if found != index.sha256:
        raise CorruptData(f"{key}: expected SHA-256 {index.sha256}, found {found} in an object of the same length")


def stored_digest(objects: ObjectStore, key: str, size_bytes: int) -> str:
    """SHA-256 of what the store holds now, hexadecimal, read in parts; of less where it holds less."""
    digest, at = hashlib.sha256(), 0
    while at < size_bytes and (part := objects.get_range(key, at, _READ_BACK)):
        between_units()
        digest.update(part)
        at += len(part)
    return digest.hexdigest()
