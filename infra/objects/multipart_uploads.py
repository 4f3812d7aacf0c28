"""Multipart uploads of files of any size, with one part in memory, and listings of unfinished uploads."""

import io
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from botocore.exceptions import ClientError

from infra.objects.bucket_listing import to_microseconds
from infra.objects.s3_responses import RequestRetries, error_code, error_status, translate_s3_errors
from logstore.errors import OutcomeUnknown, SextonError, StoreUnavailable
from logstore.ports.object_storage import OpenUpload

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        ListMultipartUploadsOutputTypeDef,
        ListPartsOutputTypeDef,
    )

_log = logging.getLogger(__name__)

PART_BYTES = 16 << 20
_MAX_PARTS = 10_000  # Source: S3 User Guide, "Multipart upload limits"; all parts but the last have at least 5 MiB


@dataclass(frozen=True, slots=True)
class StoredParts:
    """Parts of an unfinished upload. An upload without parts has neither bytes nor a time."""

    size_bytes: int
    newest_us: int | None  # `None` also if the store does not say when it got a part


class MultipartUploads:
    """Multipart uploads to one bucket. Thread-safe."""

    def __init__(self, client: "S3Client", bucket: str, *, retries: RequestRetries, part_bytes: int) -> None:
        self._client, self._bucket = client, bucket
        self._retries, self._part_bytes = retries, part_bytes

    def upload_file(self, key: str, file: BinaryIO, metadata: Mapping[str, str], proceed: Callable[[], None]) -> bool:
        """Upload the file unless the key is taken. Return whether this call stored the file.

        `False` means that the key is taken. An earlier attempt may have stored this file under the key. `proceed` is
        called before each request, and raises an error to stop the upload.
        """

        def begin_upload() -> str:
            proceed()
            return self._client.create_multipart_upload(Bucket=self._bucket, Key=key, Metadata=dict(metadata))[
                "UploadId"
            ]

        upload_id = self._retries.request(self._describe("begin upload of", key), begin_upload)
        try:
            part_bytes = max(self._part_bytes, math.ceil(file.seek(0, io.SEEK_END) / _MAX_PARTS))
            file.seek(0)
            parts = [
                self._retries.call(partial(self._upload_part_once, key, upload_id, number, body, proceed))
                for number, body in enumerate(iter(partial(file.read, part_bytes), b""), start=1)
            ]
            if self._retries.call(lambda: self._complete_once(key, upload_id, parts, proceed)):
                return True
        except Exception:
            self._try_to_abort(key, upload_id)
            raise
        self._try_to_abort(key, upload_id)
        return False

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort the upload. The store then refuses further parts and the completion. Idempotent."""

        def abort() -> None:
            try:
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
            except ClientError as error:
                if error_code(error) != "NoSuchUpload":
                    raise

        self._retries.request(self._describe("abort upload of", key), abort)

    def _describe(self, verb: str, key: str) -> str:
        return f"{verb} {self._bucket}/{key}"

    def _upload_part_once(
        self, key: str, upload_id: str, number: int, body: bytes, proceed: Callable[[], None]
    ) -> "CompletedPartTypeDef":
        proceed()
        operation = self._describe(f"put part {number} of", key)
        with translate_s3_errors(operation):
            try:
                response = self._client.upload_part(
                    Bucket=self._bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=body
                )
            except ClientError as error:
                if error_code(error) != "NoSuchUpload":
                    raise
                raise OutcomeUnknown(f"{operation}: the upload was ended by somebody else") from error
        return {"PartNumber": number, "ETag": response["ETag"]}

    def _complete_once(
        self, key: str, upload_id: str, parts: list["CompletedPartTypeDef"], proceed: Callable[[], None]
    ) -> bool:
        """Complete the upload. Return whether this request created the object.

        `NoSuchUpload` means that an earlier attempt has completed the upload, or that the upload was aborted.
        """
        proceed()
        with translate_s3_errors(self._describe("complete", key)):
            try:
                self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=key,
                    UploadId=upload_id,
                    MultipartUpload={"Parts": parts},
                    IfNoneMatch="*",
                )
            except ClientError as error:
                if error_status(error) != 412 and error_code(error) != "NoSuchUpload":
                    raise
                return False
        return True

    def _try_to_abort(self, key: str, upload_id: str) -> None:
        try:
            self.abort_upload(key, upload_id)
        except SextonError as error:
            _log.warning("%s: upload %s was not aborted, its parts are left: %s", key, upload_id, error)

    def list_unfinished(self, prefix: str) -> Iterator[tuple[OpenUpload, str]]:
        key_marker = upload_marker = ""
        operation = f"list uploads {self._bucket}/{prefix}"
        while True:
            page = self._retries.request(operation, partial(self._list_page, prefix, key_marker, upload_marker))
            for upload in page.get("Uploads", ()):
                started_us = to_microseconds(upload.get("Initiated"))
                yield OpenUpload(key=upload["Key"], started_us=started_us), upload["UploadId"]
            if not page.get("IsTruncated"):
                return
            key_marker, upload_marker = page.get("NextKeyMarker", ""), page.get("NextUploadIdMarker", "")
            if not key_marker:
                raise StoreUnavailable(f"{operation}: truncated, yet names no way to its rest")

    def _list_page(self, prefix: str, key_marker: str, upload_marker: str) -> "ListMultipartUploadsOutputTypeDef":
        return self._client.list_multipart_uploads(
            Bucket=self._bucket, Prefix=prefix, KeyMarker=key_marker, UploadIdMarker=upload_marker
        )

    def read_parts(self, key: str, upload_id: str) -> StoredParts | None:
        """Return size and time of the parts that the store has, or `None` if the upload has ended."""
        sizes: list[int] = []
        times_us: list[int | None] = []
        marker = 0
        operation = self._describe("list parts of", key)
        while True:
            page = self._retries.request(operation, partial(self._list_parts_page, key, upload_id, marker))
            if page is None:
                return None
            for part in page.get("Parts", ()):
                sizes.append(part["Size"])
                times_us.append(to_microseconds(part.get("LastModified")))
            if not page.get("IsTruncated"):
                break
            next_marker = int(page.get("NextPartNumberMarker", 0))
            if next_marker <= marker:
                raise StoreUnavailable(f"{operation}: truncated, yet names no way to its rest")
            marker = next_marker
        known_times_us = [time_us for time_us in times_us if time_us is not None]
        has_all_times = len(known_times_us) == len(times_us)
        return StoredParts(sum(sizes), max(known_times_us, default=None) if has_all_times else None)

    def _list_parts_page(self, key: str, upload_id: str, marker: int) -> "ListPartsOutputTypeDef | None":
        try:
            return self._client.list_parts(Bucket=self._bucket, Key=key, UploadId=upload_id, PartNumberMarker=marker)
        except ClientError as error:
            if error_code(error) != "NoSuchUpload":
                raise
            return None
