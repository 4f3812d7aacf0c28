"""Proof of absence at a rebuild: no ledger or segment counts as absent because of a listing alone.

HEAD asks for objects that a listing lacks, if their keys are known or can be derived:

1. `meta.json` and all registered segments of a ledger with a row.
2. The segment that an upload names as the last registered one.
3. The numbers after the last upload of a ledger that may have new segments.
4. The first segment of the ids after those given out before the last flush. Rebuilds skip ids, so they may be far above
   the highest known id. A writer draws a higher number only once number 0 is taken.

While the old catalog may still append, HEAD asks only for objects of item 1. Then an append after the listing proves
nothing.

Objects that HEAD does not find are looked for in a second listing, of the ledger alone. Any object found proves the
first listing wrong, and nothing is decided by it.

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
"""Probed segment numbers after the last upload of a ledger: all that a writer may draw after one lost race."""

PROBED_IDS_PER_SHARD: Final = 4
"""Probed ledger ids of a shard after the last one listed: 1,024 consecutive ids of all shards together."""


class UnlistedObjectError(Exception):
    """An object exists that a listing of its prefix does not show. The first argument is its key."""


def prove_absent(
    objects: ObjectStore,
    ledger_id: LedgerId,
    owner: LedgerOwner,
    numbers: Collection[int],
    *,
    listed: Collection[int],
    has_statement: bool,
    is_growing: bool = False,
) -> None:
    """Check that a ledger lacks what a listing did not show of it.

    Args:
        objects: The primary bucket.
        ledger_id: The ledger.
        owner: Owner of the ledger in the catalog.
        numbers: Numbers of its registered segments.
        listed: Numbers of the listed segments.
        has_statement: Whether a `meta.json` was listed.
        is_growing: Whether writers may still add segments. Then unregistered segments prove nothing.

    Raises:
        UnlistedObjectError: An object of the ledger exists.
        StoreUnavailable: The store did not answer.
    """
    require_no_objects(objects, () if has_statement else (meta_key(ledger_id, owner),))
    require_no_objects(objects, (segment_key(ledger_id, number) for number in numbers if number not in listed))
    for item in objects.list(ledger_prefix(ledger_id)):
        number = segment_number_from_key(item.key)
        is_unlisted = number is not None and number not in listed and (number in numbers or not is_growing)
        if (owner_digest_from_key(item.key) and not has_statement) or is_unlisted:
            raise UnlistedObjectError(item.key)


def require_no_objects(objects: ObjectStore, keys: Iterable[str]) -> None:
    """Check by HEAD that no key has an object.

    Raises:
        UnlistedObjectError: A key has an object.
        StoreUnavailable: The store did not answer.
    """
    for key in keys:
        raise_if_stopped()
        if objects.head(key) is not None:
            raise UnlistedObjectError(key)


def unlisted_uploads(
    ledger_id: LedgerId, last_segment: int, listed: Collection[int], uploads: Sequence[Upload]
) -> Iterator[str]:
    """Yield unlisted keys that uploads of a ledger may have.

    Args:
        ledger_id: The ledger.
        last_segment: Highest number in the catalog; -1: none.
        listed: Numbers of the listed segments.
        uploads: Readable uploads above `last_segment`. Confirmations have no entries and much higher numbers.
    """
    stated = {upload.behind.last_segment for upload in uploads if upload.behind}
    last = max([last_segment, *(upload.number for upload in uploads if upload.entries)])
    following = range(last + 1, last + 1 + PROBED_NUMBERS)
    for number in sorted({number for number in stated if number > last_segment}.union(following).difference(listed)):
        yield segment_key(ledger_id, number)


def probe_ids(objects: ObjectStore, shard: int, first: LedgerId, listed: Collection[LedgerId]) -> None:
    """Look for ledgers of a shard that are neither in the catalog nor listed.

    Args:
        objects: The primary bucket.
        shard: 0 to 255.
        first: Lowest probed id. The catalog has none from there on.
        listed: Listed ids without a row.

    Raises:
        UnlistedObjectError: There is such a ledger.
        StoreUnavailable: The store did not answer.
    """
    ledger_id, misses = LedgerId(first + (shard - first) % SHARDS), 0
    while misses < PROBED_IDS_PER_SHARD:
        if ledger_id in listed:
            misses = 0
        else:
            require_no_objects(objects, [segment_key(ledger_id, 0)])
            misses += 1
        ledger_id = LedgerId(ledger_id + SHARDS)
