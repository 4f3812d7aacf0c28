"""Bucket with the objects of offloads. Nothing is written.

A listing is complete or raises an error, and yet it may lack an object. Only a HEAD proves that an object is absent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from infra.objects.bucket_address import BucketAddress
from infra.objects.multipart_uploads import PART_BYTES, MultipartUploads
from infra.objects.s3_client import read_store_clock_s
from infra.objects.s3_store import S3ObjectStore
from logstore.errors import InvalidInput
from logstore.ports.object_storage import OpenUpload
from logstore.pulsar.offload_objects import OffloadKey, OffloadObject


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """Multipart upload with the parts that the store has. Times are by the store's clock."""

    size_bytes: int
    changed_us: int | None  # time of its start or of its newest part; `None`: unknown


class OffloadStore:
    """Reads of the objects and the unfinished uploads of one bucket. Thread-safe.

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
        return OffloadObject(key=key, size_bytes=info.size_bytes, modified_us=info.modified_us, metadata=metadata)

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
            uploads.append(UnfinishedUpload(size_bytes=parts.size_bytes, changed_us=changed_us))
        return uploads


def open_offload_store(address: BucketAddress | None) -> OffloadStore:
    """Return the bucket without a request.

    Raises:
        InvalidInput: The cluster has no address of a bucket.
    """
    if address is None:
        raise InvalidInput("pulsar_offload_bucket", expected="the bucket of the cluster's offloads", found="nothing")
    return OffloadStore(address.store())
