"""Inspection and removal of tiered copies: the data object and the index object of one upload.

All calls may be repeated, because an absent key counts as deleted. The index is deleted last, so that a half-deleted
copy still states its ledger owner.
"""

from collections.abc import Callable, Mapping, Sequence

from logstore.deletion.intents import CopyVerdict, DeletionIntent, StoredCopy, find_ownership_problem
from logstore.deletion.services.absence_proofs import sample_and_find_unconfirmed_keys
from logstore.deletion.services.shared_store_requests import (
    delete_keys_of_copies,
    find_foreign_bucket_errors_by_row,
    to_removal_result,
)
from logstore.errors import SextonError, StoreUnavailable, UploadOpen
from logstore.failpoints import effect
from logstore.log.ledgers import parse_meta_fields_or_unreadable
from logstore.offload.tiered_copy import (
    CopyLocation,
    data_key,
    index_key,
    parse_uuid_and_location,
    upload_requests_end_us,
)
from logstore.ports.object_storage import BucketAtLocation, CopyRemovalResult, ObjectInfo, ObjectStore
from logstore.stop_checks import raise_if_stopped


class TieredCopyStorage:
    """`CopyStorage` over tiered buckets. `now_us` returns the catalog's time, to compare with ends of uploads."""

    def __init__(self, buckets: BucketAtLocation, *, now_us: Callable[[], int]) -> None:
        self._buckets = buckets
        self._now_us = now_us

    def prepare_inspection(self, _intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        return self.inspect_copy  # prefixes of copies have no order, so that no listing is shared

    def inspect_copy(self, intent: DeletionIntent) -> StoredCopy:
        """LIST the copy's prefix, and HEAD the data and the index. The copy is absent if LIST and HEAD find no object.

        Raises:
            UploadOpen: An upload may still run, and could store deleted objects again.
        """
        self._require_upload_ended(intent)
        uuid, location = parse_uuid_and_location(intent.ledger_id, intent.context)
        objects, keys = self._buckets(location), (data_key(uuid, intent.ledger_id), index_key(uuid, intent.ledger_id))
        listed_keys = {item.key for item in objects.list(keys[0])}
        unknown = sorted(listed_keys.difference(keys))
        if unknown:
            detail = f"found {unknown[0]!r}, which no offload writes"
            return StoredCopy(verdict=CopyVerdict.FOREIGN, objects=len(listed_keys), detail=detail)
        object_by_key = {key: stored for key in keys if (stored := objects.head(key))}
        if bool(listed_keys) != bool(object_by_key):
            raise StoreUnavailable(
                f"{keys[0]}: LIST finds {sorted(listed_keys)}, HEAD {sorted(object_by_key)}; asking again"
            )
        uploads = _list_dead_uploads(objects, intent, keys)
        problems = (find_ownership_problem(intent, key, metadata) for key, (_, metadata) in object_by_key.items())
        return _to_stored_copy(keys, object_by_key, uploads, next(filter(None, problems), None), location)

    def prove_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        doubts: dict[int, SextonError] = {}
        location_by_row = {
            intent.row_id: parse_uuid_and_location(intent.ledger_id, intent.context)[1] for intent in absent
        }
        for location in sorted(set(location_by_row.values())):
            intents = [intent for intent in absent if location_by_row[intent.row_id] == location]
            doubts |= find_foreign_bucket_errors_by_row(self._buckets(location), intents)
        return doubts

    def read_statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """Read the statement in the index, or else the metadata of the data object."""
        uuid, location = parse_uuid_and_location(intent.ledger_id, intent.context)
        objects = self._buckets(location)
        stored = objects.get(index_key(uuid, intent.ledger_id))
        if stored is not None:
            index = parse_meta_fields_or_unreadable(stored.body)
            return parse_meta_fields_or_unreadable(index["statement"].encode()) if "statement" in index else index
        data = objects.head(data_key(uuid, intent.ledger_id))
        return dict(data[1]) if data else None

    def _require_upload_ended(self, intent: DeletionIntent) -> None:
        ends_us = upload_requests_end_us(intent.context)
        remaining_us = 0 if ends_us is None else ends_us - self._now_us()
        if remaining_us > 0:
            message = f"ledger {intent.ledger_id}: its upload {intent.context['uuid']} may go on"
            raise UploadOpen(f"{message} for {remaining_us / 1e6:.0f} s", after_s=remaining_us / 1e6)

    def remove_copies(
        self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> Mapping[int, CopyRemovalResult]:
        removals: dict[int, CopyRemovalResult] = {}
        for location in sorted({copy.location for copy in copies.values() if copy.location}):
            copies_there = {row: copy for row, copy in copies.items() if copy.location == location}
            removals |= _remove_from_bucket(self._buckets(location).begin_removal(), copies_there, on_progress)
        return removals


def _list_dead_uploads(objects: ObjectStore, intent: DeletionIntent, keys: tuple[str, str]) -> tuple[str, ...]:
    """Return the keys of unfinished multipart uploads. If the copy was published, there are none."""
    if upload_requests_end_us(intent.context) is None:
        return ()
    open_keys = {upload.key for upload in objects.list_open_uploads(keys[0])}
    return tuple(key for key in sorted(keys) if key in open_keys)


def _to_stored_copy(
    keys: tuple[str, str],
    object_by_key: Mapping[str, tuple[ObjectInfo, Mapping[str, str]]],
    uploads: tuple[str, ...],
    ownership_problem: str | None,
    location: CopyLocation,
) -> StoredCopy:
    if ownership_problem:
        return StoredCopy(verdict=CopyVerdict.FOREIGN, objects=len(object_by_key), detail=ownership_problem)
    if not object_by_key and not uploads:
        return StoredCopy(verdict=CopyVerdict.ABSENT)
    return StoredCopy(
        verdict=CopyVerdict.OWN,
        data_keys=tuple(key for key in keys[:1] if key in object_by_key),
        meta_keys=tuple(key for key in keys[1:] if key in object_by_key),
        size_bytes=sum(info.size_bytes for info, _ in object_by_key.values()),
        objects=len(object_by_key),
        location=location,
        uploads=uploads,
    )


def _remove_from_bucket(
    objects: ObjectStore, copies: Mapping[int, StoredCopy], on_progress: Callable[[int], None]
) -> dict[int, CopyRemovalResult]:
    for key in (key for copy in copies.values() for key in copy.uploads):
        raise_if_stopped()
        with effect("tiered.abort_uploads"):
            objects.abort_uploads(key)
    with effect("tiered.delete_data"):
        data_report = delete_keys_of_copies(objects, copies.values(), lambda copy: copy.data_keys, on_progress)
    unconfirmed_data = sample_and_find_unconfirmed_keys(
        objects, data_report, {row: copy.data_keys for row, copy in copies.items()}
    )
    without_data = {row: copy for row, copy in copies.items() if not unconfirmed_data[row]}
    with effect("tiered.delete_index"):
        index_report = delete_keys_of_copies(objects, without_data.values(), lambda copy: copy.meta_keys, on_progress)
    unconfirmed_index = sample_and_find_unconfirmed_keys(
        objects, index_report, {row: copy.meta_keys for row, copy in without_data.items()}
    )
    return {
        row: to_removal_result(copy, unconfirmed_data[row] or unconfirmed_index[row]) for row, copy in copies.items()
    }
