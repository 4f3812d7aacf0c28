"""Uploads in parts: a file of any size with one part in memory, and what uploads that died have left."""

import io
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from botocore.exceptions import ClientError

from infra.objects.answers import code_of, status_of, translated
from infra.objects.listing import micros
from infra.objects.retries import Retries
from logstore.errors import OutcomeUnknown, SextonError, StoreUnavailable
from logstore.ports.objects import OpenUpload

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, ListMultipartUploadsOutputTypeDef

_log = logging.getLogger(__name__)

PART_BYTES = 16 << 20
_MOST_PARTS = 10_000  # Source: S3 User Guide, "Multipart upload limits"; 5 MiB is the least for all but the last


class PartedUploads:
    """Uploads in parts of one bucket; any number of threads may use one instance."""

    def __init__(self, client: "S3Client", bucket: str, *, retries: Retries, part_bytes: int) -> None:
        self._client, self._bucket = client, bucket
        self._retries, self._part_bytes = retries, part_bytes

    def put(self, key: str, file: BinaryIO, metadata: Mapping[str, str], proceed: Callable[[], None]) -> bool:
        """Upload the file; False when the key is taken, perhaps by an earlier try of this very call.

        Raises:
            StoreUnavailable: No answer; whatever was sent is aborted if the store answers to that.
            OutcomeUnknown: Somebody else ended this upload.
        """
        upload_id = self._retries.ask(lambda: self._begin(key, metadata, proceed))
        try:
            parts = [
                self._retries.ask(partial(self._part, key, upload_id, number, body, proceed))
                for number, body in enumerate(self._parts(file), start=1)
            ]
            if self._retries.ask(lambda: self._complete(key, upload_id, parts, proceed)):
                return True
        except Exception:
            self._try_to_abort(key, upload_id)
            raise
        self._try_to_abort(key, upload_id)
        return False

    def abort(self, key: str, upload_id: str) -> None:
        """End the upload: what is sent to it later is refused, and so is its completion."""
        self._retries.ask(lambda: self._abort(key, upload_id))

    def _what(self, verb: str, key: str) -> str:
        return f"{verb} {self._bucket}/{key}"

    def _parts(self, file: BinaryIO) -> Iterator[bytes]:
        size = max(self._part_bytes, -(-file.seek(0, io.SEEK_END) // _MOST_PARTS))
        file.seek(0)
        while part := file.read(size):
            yield part

    def _begin(self, key: str, metadata: Mapping[str, str], proceed: Callable[[], None]) -> str:
        proceed()
        with translated(self._what("begin upload of", key)):
            begun = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, Metadata=dict(metadata))
        return begun["UploadId"]

    def _part(
        self, key: str, upload_id: str, number: int, body: bytes, proceed: Callable[[], None]
    ) -> "CompletedPartTypeDef":
        proceed()
        what = self._what(f"put part {number} of", key)
        with translated(what):
            try:
                sent = self._client.upload_part(
                    Bucket=self._bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=body
                )
            except ClientError as error:
                if code_of(error) != "NoSuchUpload":
                    raise
                raise OutcomeUnknown(f"{what}: the upload was ended by somebody else") from error
        return {"PartNumber": number, "ETag": sent["ETag"]}

    def _complete(
        self, key: str, upload_id: str, parts: list["CompletedPartTypeDef"], proceed: Callable[[], None]
    ) -> bool:
        """Whether this call made the object; without such an upload, an earlier try made it, or it was aborted."""
        proceed()
        with translated(self._what("complete", key)):
            try:
                self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=key,
                    UploadId=upload_id,
                    MultipartUpload={"Parts": parts},
                    IfNoneMatch="*",
                )
            except ClientError as error:
                if status_of(error) != 412 and code_of(error) != "NoSuchUpload":
                    raise
                return False
        return True

    def _try_to_abort(self, key: str, upload_id: str) -> None:
        try:
            self.abort(key, upload_id)
        except SextonError as error:
            _log.warning("%s: upload %s was not aborted, its parts are left: %s", key, upload_id, error)

    def _abort(self, key: str, upload_id: str) -> None:
        with translated(self._what("abort upload of", key)):
            try:
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
            except ClientError as error:
                if code_of(error) != "NoSuchUpload":
                    raise

    def unfinished(self, prefix: str) -> Iterator[tuple[OpenUpload, str]]:
        """Each upload that was neither completed nor aborted, with its id, for keys with the prefix."""
        key_marker = upload_marker = ""
        while True:
            page = self._retries.ask(partial(self._page, prefix, key_marker, upload_marker))
            for each in page.get("Uploads", ()):
                yield OpenUpload(key=each["Key"], started_us=micros(each.get("Initiated"))), each["UploadId"]
            if not page.get("IsTruncated"):
                return
            key_marker, upload_marker = page.get("NextKeyMarker", ""), page.get("NextUploadIdMarker", "")
            if not key_marker:
                raise StoreUnavailable(f"list uploads {self._bucket}/{prefix}: truncated, yet names no way to its rest")

    def _page(self, prefix: str, key_marker: str, upload_marker: str) -> "ListMultipartUploadsOutputTypeDef":
        with translated(f"list uploads {self._bucket}/{prefix}"):
            return self._client.list_multipart_uploads(
                Bucket=self._bucket, Prefix=prefix, KeyMarker=key_marker, UploadIdMarker=upload_marker
            )
