"""Proof that a ledger or segment is absent at a rebuild. A listing alone never proves this.

HEAD requests look for unlisted objects under keys that are known or can be derived:

1. `meta.json` and all registered segments of a ledger with a row.
2. The segment that an upload names as the last registered segment.
3. The segment numbers after the last upload of a ledger that may have new segments.
4. Segment 0 of ledgers whose ids were given out after the last flush. Every rebuild leaves a gap in the ids. The ids
   after the gap may be far above the highest known id. A writer uses a higher segment number only if 0 is taken.

While workers of the old catalog may still append, only item 1 is used: other objects may be newer than the listing.

If HEAD finds no object, the ledger's prefix is listed once more. An unlisted object that HEAD or the second listing
finds proves the first listing wrong. A wrong listing is not used.

Source: `logstore.deletion.services.primary_copies`; apache/bookkeeper#870.
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
from logstore.log.services.segment_placement import FIRST_NUMBER_STRIDE
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId
from logstore.records.adoption_rule import UnregisteredUpload
from logstore.stop_checks import raise_if_stopped

PROBED_NUMBERS: Final = FIRST_NUMBER_STRIDE
"""Segment numbers probed after a ledger's last upload. After one lost race, a writer uses one of these numbers."""

PROBED_IDS_PER_SHARD: Final = 4
"""Number of ids of a shard that are probed after the last listed id. All shards together probe 1,024 ids."""


class UnlistedObjectError(Exception):
    """Object that exists although a listing of its prefix does not show it. The first argument is the object's key."""


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
    """Raise `UnlistedObjectError` if the primary bucket has an unlisted object of the ledger.

    `numbers` are the registered segment numbers, and `listed` are the listed segment numbers. `has_statement` says
    whether a `meta.json` was listed. If `is_growing`, writers may have added unregistered segments since the listing.
    """
    require_no_objects(objects, () if has_statement else (meta_key(ledger_id, owner),))
    require_no_objects(objects, (segment_key(ledger_id, number) for number in numbers if number not in listed))
    for item in objects.list(ledger_prefix(ledger_id)):
        number = segment_number_from_key(item.key)
        is_unlisted = number is not None and number not in listed and (number in numbers or not is_growing)
        if (owner_digest_from_key(item.key) and not has_statement) or is_unlisted:
            raise UnlistedObjectError(item.key)


def require_no_objects(objects: ObjectStore, keys: Iterable[str]) -> None:
    """Raise `UnlistedObjectError` if HEAD finds an object under one of the keys."""
    for key in keys:
        raise_if_stopped()
        if objects.head(key) is not None:
            raise UnlistedObjectError(key)


def possible_unlisted_keys(
    ledger_id: LedgerId, last_segment: int, listed: Collection[int], uploads: Sequence[UnregisteredUpload]
) -> Iterator[str]:
    """Yield keys of segments that may exist although no listing shows them.

    `last_segment` is the highest segment number in the catalog, or -1. `listed` are the listed segment numbers.
    `uploads` are the readable uploads above `last_segment`. Confirmations, which have much higher numbers, are ignored.
    """
    stated = {upload.behind.last_segment for upload in uploads if upload.behind}
    last = max([last_segment, *(upload.number for upload in uploads if upload.entries)])
    following = range(last + 1, last + 1 + PROBED_NUMBERS)
    for number in sorted({number for number in stated if number > last_segment}.union(following).difference(listed)):
        yield segment_key(ledger_id, number)


def require_no_unlisted_newer_ledgers(
    objects: ObjectStore, shard: int, first_probed_id: LedgerId, listed: Collection[LedgerId]
) -> None:
    """Raise `UnlistedObjectError` if HEAD finds a ledger of the shard that is neither in the catalog nor listed.

    `first_probed_id` is the lowest probed id. The catalog must have no ledger with this id or a higher id. `listed` are
    the listed ids of ledgers without a row.
    """
    ledger_id, misses = LedgerId(first_probed_id + (shard - first_probed_id) % SHARDS), 0
    while misses < PROBED_IDS_PER_SHARD:
        if ledger_id in listed:
            misses = 0
        else:
            require_no_objects(objects, [segment_key(ledger_id, 0)])
            misses += 1
        ledger_id = LedgerId(ledger_id + SHARDS)
