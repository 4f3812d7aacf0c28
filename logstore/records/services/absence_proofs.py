"""Proof of absence at a rebuild: a listing alone never proves that a ledger or segment is absent.

HEAD looks for unlisted objects whose keys are known or can be derived:

1. `meta.json` and all registered segments of a ledger with a row.
2. The segment that an upload names as the last registered one.
3. The numbers after the last upload of a ledger that may have new segments.
4. The first segment of the ids after the ids given out before the last flush. Rebuilds skip ids, so these ids may be
   far above the highest known id. A writer uses a higher segment number only if number 0 is taken.

While the old catalog may still append, HEAD looks only for the objects of item 1, because an append after the listing
would prove nothing.

If HEAD finds no object, the ledger alone is listed once more. Any object found proves the first listing wrong. Nothing
is decided by a wrong listing.

Source: the proof of a deletion (`logstore.deletion.services.primary_copies`; apache/bookkeeper#870).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from logstore.log.ledger_object_keys import (
    SHARDS,
    ledger_prefix,
    meta_key,
    owner_digest_from_key,
    segment_key,
    segment_number_from_key,
)
from logstore.log.ledgers import LedgerOwner
from logstore.log.services.segment_placement import STRIDE
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId
from logstore.records.adoption_rule import UnregisteredUpload
from logstore.stop_checks import raise_if_stopped

PROBED_NUMBERS: Final = STRIDE
"""Number of probed segment numbers after the last upload of a ledger: all that a writer may use after one lost race."""

PROBED_IDS_PER_SHARD: Final = 4
"""Number of probed ledger ids of a shard after the last listed id: 1,024 consecutive ids in all shards."""


class UnlistedObjectError(Exception):
    """Object that exists although a listing of its prefix does not show it. The first argument is its key."""


def prove_objects_absent(
    objects: ObjectStore,
    ledger_id: LedgerId,
    owner: LedgerOwner,
    numbers: Collection[int],
    *,
    listed: Collection[int],
    has_statement: bool,
    is_growing: bool = False,
) -> None:
    """Check that the unlisted objects of a ledger do not exist.

    Args:
        objects: The primary bucket.
        ledger_id: The ledger.
        owner: Ledger owner in the catalog.
        numbers: Numbers of the registered segments.
        listed: Numbers of the listed segments.
        has_statement: Whether a `meta.json` was listed.
        is_growing: Whether writers may still add segments. If so, unregistered segments prove nothing.

    Raises:
        UnlistedObjectError: An unlisted object of the ledger exists.
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


def possible_unlisted_keys(
    ledger_id: LedgerId, last_segment: int, listed: Collection[int], uploads: Sequence[UnregisteredUpload]
) -> Iterator[str]:
    """Yield unlisted keys that uploads of a ledger may have.

    Args:
        ledger_id: The ledger.
        last_segment: Highest segment number in the catalog; -1: none.
        listed: Numbers of the listed segments.
        uploads: Readable uploads above `last_segment`. Confirmations have no entries and much higher numbers.
    """
    stated = {upload.behind.last_segment for upload in uploads if upload.behind}
    last = max([last_segment, *(upload.number for upload in uploads if upload.entries)])
    following = range(last + 1, last + 1 + PROBED_NUMBERS)
    for number in sorted({number for number in stated if number > last_segment}.union(following).difference(listed)):
        yield segment_key(ledger_id, number)


def probe_unlisted_ledgers(objects: ObjectStore, shard: int, first: LedgerId, listed: Collection[LedgerId]) -> None:
    """Look for ledgers of a shard that are neither in the catalog nor listed.

    Args:
        objects: The primary bucket.
        shard: 0 to 255.
        first: Lowest probed id. The catalog has no ledger from there on.
        listed: Listed ids without a row.

    Raises:
        UnlistedObjectError: Such a ledger exists.
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
