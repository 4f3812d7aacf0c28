"""Bucket with the objects of offloads. Only an apply of a plan removes anything.

A listing is complete or raises an error, and yet it may lack an object. Only a HEAD proves that an object is absent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infra.objects.multipart_uploads import PART_BYTES, MultipartUploads
from infra.objects.s3_store import BucketAddress, S3ObjectStore, read_store_clock_s
from logstore.errors import CorruptData, InvalidInput
from logstore.ports.object_storage import DeleteReport, OpenUpload
from logstore.pulsar.cluster_findings import RemovalPart
from logstore.pulsar.offload_objects import OffloadKey, OffloadObject, parse_offload_key


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """Multipart upload with the parts that the store has. Times are by the store's clock."""

    key: str
    upload_id: str
    size_bytes: int
    changed_us: int | None  # time of its start or of its newest part; `None`: unknown

    def to_part(self) -> RemovalPart:
        return {
            "key": self.key,
            "upload_id": self.upload_id,
            "size_bytes": self.size_bytes,
            "changed_us": self.changed_us,
        }


class OffloadStore:
    """Objects and unfinished uploads of one bucket. Thread-safe.

    Every method may raise `StoreUnavailable` or `ServiceRefused`.
    """

    def __init__(self, objects: S3ObjectStore) -> None:
        self.objects = objects
        self._uploads = MultipartUploads(objects.client, objects.bucket, retries=objects.retries, part_bytes=PART_BYTES)

    @property
    def bucket(self) -> str:
        return self.objects.bucket

    def read_clock_us(self) -> int:
        return round(self.objects.retries.call(lambda: read_store_clock_s(self.objects)) * 1_000_000)

    def list_uploads(self, prefix: str) -> Iterator[OpenUpload]:
        """Yield the unfinished uploads to keys with the prefix, page by page. A key may have several uploads."""
        return (upload for upload, _ in self._uploads.list_unfinished(prefix))

    def read_object(self, key: OffloadKey) -> OffloadObject | None:
        """Return an object with its metadata, or `None` if the store confirms that it does not exist."""
        head = self.objects.head(str(key))
        if head is None:
            return None
        info, metadata = head
        return OffloadObject(
            key=key,
            size_bytes=info.size_bytes,
            modified_us=info.modified_us,
            metadata=metadata,
            etag=info.etag,
            version_id=info.version_id,
        )

    def read_uploads(self, key: OffloadKey) -> list[UnfinishedUpload]:
        """Return the unfinished uploads to exactly this key, with their parts."""
        uploads = []
        for upload, upload_id in self._uploads.list_unfinished(str(key)):
            parts = self._uploads.read_parts(upload.key, upload_id) if upload.key == str(key) else None
            if parts is None:
                continue
            times_us = [upload.started_us, parts.newest_us if parts.size_bytes else upload.started_us]
            known_us = [time_us for time_us in times_us if time_us is not None]
            changed_us = max(known_us) if len(known_us) == len(times_us) else None
            uploads.append(
                UnfinishedUpload(
                    key=upload.key, upload_id=upload_id, size_bytes=parts.size_bytes, changed_us=changed_us
                )
            )
        return uploads

    def list_version_ids(self, key: OffloadKey) -> Sequence[str]:
        """Return the ids of all versions of an object, without delete markers."""
        return self.objects.list_version_ids(str(key))

    def delete(self, parts: Sequence[RemovalPart]) -> DeleteReport:
        """Delete objects. An object with a version id is deleted in this version only, and for good."""
        versions = [(str(part["key"]), str(part["version_id"])) for part in parts if part["version_id"] is not None]
        others = [str(part["key"]) for part in parts if part["version_id"] is None]
        return _merge_reports(self.objects.delete_versions(versions), self.objects.delete(others))

    def has_part(self, part: RemovalPart) -> bool:
        """Return whether an object exists, in the version of the part if it has one."""
        key = parse_offload_key(str(part["key"]))
        if key is None:
            raise CorruptData(f"{part['key']}: expected the key of an object of an offload")
        if part["version_id"] is not None:
            return part["version_id"] in self.list_version_ids(key)
        return self.read_object(key) is not None

    def has_upload(self, part: RemovalPart) -> bool:
        """Return whether an upload, or a part of it, exists."""
        return self._uploads.read_parts(str(part["key"]), str(part["upload_id"])) is not None

    def abort_upload(self, part: RemovalPart) -> None:
        """Abort one upload. An upload that has ended counts as aborted."""
        self._uploads.abort_upload(str(part["key"]), str(part["upload_id"]))


def _merge_reports(left: DeleteReport, right: DeleteReport) -> DeleteReport:
    return DeleteReport(
        deleted=left.deleted | right.deleted,
        failed={**left.failed, **right.failed},
        unanswered=left.unanswered | right.unanswered,
    )


def open_offload_store(address: BucketAddress | None) -> OffloadStore:
    """Return the bucket without a request.

    Raises:
        InvalidInput: The cluster has no address of a bucket.
    """
    if address is None:
        raise InvalidInput("pulsar_offload_bucket", expected="the bucket of the cluster's offloads", found="nothing")
    return OffloadStore(address.store())
