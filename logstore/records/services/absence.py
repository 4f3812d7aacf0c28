"""Proof of absence at a rebuild: no ledger and no segment is taken for absent on the word of a listing.

A listing that lacks an object is checked by name. HEAD asks for each object whose key is known or follows from what is
known:

1. `meta.json` and all registered segments of a ledger that has a row;
2. the segment that an upload names as the last one registered before it;
3. the numbers that follow the last upload of a ledger that may have taken segments since the last flush;
4. the first segment of the ids that follow those given out before the last flush: rebuilds leave ids out, so these may
   be far above the highest one that the catalog knows. A writer draws a higher number only once number 0 is taken.

While the old catalog may still append, only objects of the first kind are asked for. An append between a listing and a
HEAD is no lie.

What HEAD does not find either is looked for in a second listing, of the ledger alone. Any object that turns up proves
the listing wrong, and nothing is decided by it.

Source: the proof of a deletion (`logstore.deletion.services.primary_copies`; apache/bookkeeper#870).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from logstore.log.ledgers import (
    SHARDS,
    LedgerOwner,
    ledger_prefix,
    meta_key,
    owner_digest_from_key,
    segment_key,
    segment_number_from_key,
)
from logstore.log.services.placement import STRIDE
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId
from logstore.records.adoption import Upload
from logstore.units import raise_if_stopped

PROBED_NUMBERS: Final = STRIDE
"""Segment numbers asked for behind the last upload of a ledger: all that a writer may draw that has lost one race."""

PROBED_IDS: Final = 4
"""Ledger ids of a shard asked for behind the last one listed: 1,024 ids of all shards together, which are given out in
their order."""


class UnlistedObjectError(Exception):
    """An object stands that a listing of its prefix does not show. Its first argument is the key."""


def prove_absent(
    objects: ObjectStore,
    ledger_id: LedgerId,
    owner: LedgerOwner,
    numbers: Collection[int],
    *,
    listed: Collection[int],
    stated: bool,
    is_growing: bool = False,
) -> None:
    """Check that a ledger lacks what a listing did not show of it.

    Args:
        objects: The primary bucket.
        ledger_id: The ledger.
        owner: Whose it is, as the catalog says.
        numbers: Of its registered segments.
        listed: Numbers of the segments that the listing showed.
        stated: Whether it showed a `meta.json`.
        is_growing: Whether writers may still add segments. Segments that are not registered then prove nothing.

    Raises:
        UnlistedObjectError: Something of it stands.
        StoreUnavailable: The store did not answer.
    """
    require_none(objects, () if stated else (meta_key(ledger_id, owner),))
    require_none(objects, (segment_key(ledger_id, number) for number in numbers if number not in listed))
    for found in objects.list(ledger_prefix(ledger_id)):
        number = segment_number_from_key(found.key)
        is_unlisted = number is not None and number not in listed and (number in numbers or not is_growing)
        if (owner_digest_from_key(found.key) and not stated) or is_unlisted:
            raise UnlistedObjectError(found.key)


def require_none(objects: ObjectStore, keys: Iterable[str]) -> None:
    """Check by HEAD that none of the keys is taken.

    Raises:
        UnlistedObjectError: One is.
        StoreUnavailable: The store did not answer.
    """
    for key in keys:
        raise_if_stopped()
        if objects.head(key) is not None:
            raise UnlistedObjectError(key)


def unlisted_uploads(
    ledger_id: LedgerId, last_segment: int, listed: Collection[int], uploads: Sequence[Upload]
) -> Iterator[str]:
    """Return keys that uploads of a ledger may have, and that a listing did not show.

    Args:
        ledger_id: The ledger.
        last_segment: The highest number that the catalog knows; -1: none.
        listed: Numbers of the segments that the listing showed.
        uploads: Those above `last_segment` that could be read. Confirmations have no entries, and stand far above.
    """
    named = {upload.behind.last_segment for upload in uploads if upload.behind}
    last = max([last_segment, *(upload.number for upload in uploads if upload.entries)])
    following = range(last + 1, last + 1 + PROBED_NUMBERS)
    for number in sorted({number for number in named if number > last_segment}.union(following).difference(listed)):
        yield segment_key(ledger_id, number)


def probe_ids(objects: ObjectStore, shard: int, first: LedgerId, listed: Collection[LedgerId]) -> None:
    """Look for ledgers of a shard that neither the catalog knows nor a listing shows.

    Args:
        objects: The primary bucket.
        shard: 0 to 255.
        first: The lowest id that is asked for; the catalog knows none from there on.
        listed: Ids without a row that the listing showed.

    Raises:
        UnlistedObjectError: There is one.
        StoreUnavailable: The store did not answer.
    """
    ledger_id, misses = LedgerId(first + (shard - first) % SHARDS), 0
    while misses < PROBED_IDS:
        if ledger_id in listed:
            misses = 0
        else:
            require_none(objects, [segment_key(ledger_id, 0)])
            misses += 1
        ledger_id = LedgerId(ledger_id + SHARDS)
