"""Asking storage whether a published tiered copy still stands, before its ledger loses its other copy.

What was true when the copy was published may have been lost since: a bucket's lifecycle rule, a stray delete.
"""

from logstore.errors import CorruptData, MissingData
from logstore.places import place_of
from logstore.ports.catalog import Published
from logstore.ports.objects import Buckets
from logstore.tiered import TieredIndex, data_key, index_key


def prove_published(buckets: Buckets, copy: Published) -> TieredIndex:
    """Read the copy's index and ask for its data: both there, of this very ledger, attempt and length.

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
    return index
