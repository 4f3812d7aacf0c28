"""The tiered copy of ledgers: two keys of one attempt, verified by their own metadata, removed data first.

Between any two calls here the process may die. The index is deleted last, so what is left of a half-deleted copy still
says whose it is; deleting an absent key counts as done, so all of it may repeat.
"""

from collections.abc import Callable, Mapping, Sequence

from logstore.deletion.intents import CopyVerdict, DeletionIntent, StoredCopy, find_ownership_problem
from logstore.deletion.services.absence import judge_deletion
from logstore.deletion.services.shared_requests import delete, removal, unconfirmed
from logstore.errors import SextonError, StoreUnavailable, UploadOpen
from logstore.failpoints import effect
from logstore.log.ledgers import parse_meta_fields
from logstore.offload.tiered import CopyLocation, data_key, index_key, parse_copy_location, upload_ends_us
from logstore.ports.objects import Buckets, ObjectInfo, ObjectStore, RemovalResult
from logstore.units import raise_if_stopped

_Seen = tuple[ObjectInfo, Mapping[str, str]]


class TieredCopies:
    """`CopyStorage` over tiered buckets; each intent's offload context says where its copy stands."""

    def __init__(self, buckets: Buckets, *, now_us: Callable[[], int]) -> None:
        """Work on buckets by location.

        Args:
            buckets: Where copies stand.
            now_us: The catalog's clock, by which an upload's end was set.
        """
        self._buckets = buckets
        self._now_us = now_us

    def prepare_inspection(self, _intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        """See `CopyStorage`; each copy has a prefix of its own, which nothing orders."""
        return self.inspect

    def inspect(self, intent: DeletionIntent) -> StoredCopy:
        """List the attempt's prefix, and ask both objects whose they are.

        Absence is proved by two independent reads: an empty listing, and a HEAD of each key that finds nothing.

        Raises:
            UploadOpen: An upload may still be going, and could put back what is deleted now.
            StoreUnavailable: Storage did not answer, or LIST and HEAD contradict each other.
        """
        self._check_upload(intent)
        uuid, location = parse_copy_location(intent.ledger_id, intent.context)
        objects, keys = self._buckets(location), (data_key(uuid, intent.ledger_id), index_key(uuid, intent.ledger_id))
        listed = {found.key for found in objects.list(keys[0])}
        unknown = sorted(listed.difference(keys))
        if unknown:
            detail = f"found {unknown[0]!r}, which no offload writes"
            return StoredCopy(verdict=CopyVerdict.FOREIGN, objects=len(listed), detail=detail)
        seen = {key: found for key in keys if (found := objects.head(key))}
        if bool(listed) != bool(seen):
            raise StoreUnavailable(f"{keys[0]}: LIST finds {sorted(listed)}, HEAD {sorted(seen)}; asking again")
        uploads = _uploads(objects, intent, keys)
        foreign = next(
            (reason for key, found in seen.items() if (reason := find_ownership_problem(intent, key, found[1]))), None
        )
        return _stored(keys, seen, uploads, foreign, location)

    def check_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        """See `CopyStorage`; each bucket is asked once."""
        doubted: dict[int, SextonError] = {}
        locations = {one.row_id: parse_copy_location(one.ledger_id, one.context)[1] for one in absent}
        for location in sorted(set(locations.values())):
            here = [one for one in absent if locations[one.row_id] == location]
            doubted |= unconfirmed(self._buckets(location), here)
        return doubted

    def statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """What the index says of whose the copy is; where none stands, what the data says of itself.

        Raises:
            StoreUnavailable: Storage did not answer.
        """
        uuid, location = parse_copy_location(intent.ledger_id, intent.context)
        objects = self._buckets(location)
        stored = objects.get(index_key(uuid, intent.ledger_id))
        if stored is not None:
            told = parse_meta_fields(stored.body)
            return parse_meta_fields(told["statement"].encode()) if "statement" in told else told
        seen = objects.head(data_key(uuid, intent.ledger_id))
        return dict(seen[1]) if seen else None

    def _check_upload(self, intent: DeletionIntent) -> None:
        ends_us = upload_ends_us(intent.context)
        left_us = 0 if ends_us is None else ends_us - self._now_us()
        if left_us > 0:
            message = f"ledger {intent.ledger_id}: its upload {intent.context['uuid']} may go on"
            raise UploadOpen(f"{message} for {left_us / 1e6:.0f} s", after_s=left_us / 1e6)

    def remove(
        self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> Mapping[int, RemovalResult]:
        """Free what died in mid-upload, then delete every copy's data, then the index of those that lost it."""
        done: dict[int, RemovalResult] = {}
        for location in sorted({copy.location for copy in copies.values() if copy.location}):
            here = {row: copy for row, copy in copies.items() if copy.location == location}
            done |= _remove(self._buckets(location).begin_removal(), here, on_progress)
        return done


def _uploads(objects: ObjectStore, intent: DeletionIntent, keys: tuple[str, str]) -> tuple[str, ...]:
    """Keys with parts of an upload that died; a copy that was published had none."""
    if upload_ends_us(intent.context) is None:
        return ()
    found = {one.key for one in objects.open_uploads(keys[0])}
    return tuple(key for key in sorted(keys) if key in found)


def _stored(
    keys: tuple[str, str],
    seen: Mapping[str, _Seen],
    uploads: tuple[str, ...],
    foreign: str | None,
    location: CopyLocation,
) -> StoredCopy:
    if foreign:
        return StoredCopy(verdict=CopyVerdict.FOREIGN, objects=len(seen), detail=foreign)
    if not seen and not uploads:
        return StoredCopy(verdict=CopyVerdict.ABSENT)
    return StoredCopy(
        verdict=CopyVerdict.OWN,
        data_keys=tuple(key for key in keys[:1] if key in seen),
        meta_keys=tuple(key for key in keys[1:] if key in seen),
        size_bytes=sum(found[0].size_bytes for found in seen.values()),
        objects=len(seen),
        location=location,
        uploads=uploads,
    )


def _remove(
    objects: ObjectStore, copies: Mapping[int, StoredCopy], on_progress: Callable[[int], None]
) -> dict[int, RemovalResult]:
    for key in (key for copy in copies.values() for key in copy.uploads):
        raise_if_stopped()
        with effect("tiered.abort_uploads"):
            objects.abort_uploads(key)
    with effect("tiered.delete_data"):
        data = delete(objects, copies.values(), lambda copy: copy.data_keys, on_progress)
    left = judge_deletion(objects, data, {row: copy.data_keys for row, copy in copies.items()})
    whole = {row: copy for row, copy in copies.items() if not left[row]}
    with effect("tiered.delete_index"):
        index = delete(objects, whole.values(), lambda copy: copy.meta_keys, on_progress)
    index_left = judge_deletion(objects, index, {row: copy.meta_keys for row, copy in whole.items()})
    return {row: removal(copy, left[row] or index_left[row]) for row, copy in copies.items()}
