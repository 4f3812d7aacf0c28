"""`ObjectStore` over one bucket of S3 or of a compatible store."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

from botocore.exceptions import ClientError

from infra.objects.bucket_listing import BucketListing, to_microseconds
from infra.objects.bulk_delete import BulkDelete
from infra.objects.key_rules import require_possible_key, require_supported_metadata, require_writable_key
from infra.objects.multipart_uploads import PART_BYTES, MultipartUploads
from infra.objects.request_retries import DeleteRate, RequestRetries
from infra.objects.s3_responses import error_code, error_status, is_throttle, translate_s3_errors
from logstore.errors import AlreadyExists, CorruptData, InvalidInput, StoreUnavailable
from logstore.ports.object_storage import DeleteReport, ObjectInfo, OpenUpload, StoredObject

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class S3ObjectStore:
    """`ObjectStore` over one bucket. Thread-safe.

    `retries` bounds the retries of requests. Botocore retries nothing, so that each attempt has a span.
    """

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        *,
        retries: RequestRetries | None = None,
        rate: DeleteRate | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._client, self.bucket = client, bucket
        self._retries = retries or RequestRetries()
        self._part_bytes = part_bytes
        self._multipart = MultipartUploads(client, bucket, retries=self._retries, part_bytes=part_bytes)
        self._bulk_delete = BulkDelete(client, bucket, retries=self._retries, rate=rate or DeleteRate())

    @property
    def client(self) -> "S3Client":
        return self._client

    @property
    def retries(self) -> RequestRetries:
        return self._retries

    @property
    def endpoint(self) -> str:
        return self._client.meta.endpoint_url

    @property
    def region(self) -> str:
        return self._client.meta.region_name

    def for_bucket(self, bucket: str) -> "S3ObjectStore":
        """Return another bucket of the same store, with the same client and a separate rate of deletes."""
        return S3ObjectStore(self._client, bucket, retries=self._retries)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        require_writable_key(key)
        require_supported_metadata(metadata)
        if not self._retries.call(lambda: self._put_or_verify_same_once(key, body, metadata)):
            raise self._taken_error(key)

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], require_may_proceed: Callable[[], None]
    ) -> None:
        require_writable_key(key)
        require_supported_metadata(metadata)
        if file.seek(0, io.SEEK_END) <= self._part_bytes:
            file.seek(0)
            body = file.read()

            def put() -> bool:
                require_may_proceed()
                return self._put_or_verify_same_once(key, body, metadata)

            is_stored = self._retries.call(put)
        else:
            is_stored = self._multipart.upload_file(key, file, metadata, require_may_proceed) or self._holds_file(
                key, file, metadata
            )
        if not is_stored:
            raise self._taken_error(key)

    def list_open_uploads(self, prefix: str) -> list[OpenUpload]:
        return sorted((upload for upload, _ in self._multipart.list_unfinished(prefix)), key=lambda upload: upload.key)

    def abort_uploads(self, key: str) -> None:
        for upload, upload_id in list(self._multipart.list_unfinished(key)):
            if upload.key == key:
                self._multipart.abort_upload(key, upload_id)

    def get(self, key: str) -> StoredObject | None:
        require_possible_key(key)
        return self._retries.call(lambda: self._get_once(key))

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        require_possible_key(key)
        if start < 0 or length < 1:
            raise InvalidInput("range", expected="start of at least 0, length of at least 1", found=(start, length))
        return self._retries.call(lambda: self._get_range_once(key, start, length, expected_metadata or {}))

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        require_possible_key(key)
        return self._retries.call(lambda: self._head_once(key))

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        listing = BucketListing(self._client, self.bucket, self._retries, prefix=prefix, start_after=start_after)
        return listing.iterate_objects(first_page)

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        return BucketListing(self._client, self.bucket, self._retries, prefix=prefix, start_after="").list_folder()

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        return self._bulk_delete.delete(keys)

    def _describe(self, verb: str, key: str) -> str:
        return f"{verb} {self.bucket}/{key}"

    def _put_or_verify_same_once(self, key: str, body: bytes, metadata: Mapping[str, str]) -> bool:
        with translate_s3_errors(self._describe("put", key)):
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=key, Body=body, Metadata=dict(metadata), IfNoneMatch="*"
                )
            except ClientError as error:
                if error_status(error) != 412:
                    raise
            else:
                return True
        return self._holds_object(key, body, metadata)

    def _holds_object(self, key: str, body: bytes, metadata: Mapping[str, str]) -> bool:
        """Return whether the key has exactly this body and metadata. An earlier attempt may have stored the object."""
        head = self._head_once(key)
        if head is None:  # the object was deleted meanwhile, or (SeaweedFS) a folder has this name
            raise StoreUnavailable(f"{self._describe('put', key)}: refused as taken, yet no object is there")
        info, stored_metadata = head
        if info.size_bytes != len(body) or stored_metadata != metadata:
            return False
        stored = self._get_once(key)
        return stored is not None and stored.body == body

    def _holds_file(self, key: str, file: BinaryIO, metadata: Mapping[str, str]) -> bool:
        head = self.head(key)
        if head is None:
            raise StoreUnavailable(f"{self._describe('put', key)}: refused as taken, yet no object is there")
        info, stored_metadata = head
        if info.size_bytes != file.seek(0, io.SEEK_END) or stored_metadata != metadata:
            return False
        file.seek(0)
        offset = 0
        while part := file.read(PART_BYTES):
            if self.get_range(key, offset, len(part)) != part:
                return False
            offset += len(part)
        return True

    def _taken_error(self, key: str) -> AlreadyExists:
        return AlreadyExists(f"{self._describe('put', key)}: the key holds another object")

    def _get_once(self, key: str) -> StoredObject | None:
        with translate_s3_errors(self._describe("get", key)):
            try:
                response = self._client.get_object(Bucket=self.bucket, Key=key)
                return StoredObject(key=key, body=response["Body"].read(), metadata=response["Metadata"])
            except ClientError as error:
                _require_no_such_key(error)
                return None

    def _get_range_once(self, key: str, start: int, length: int, expected_metadata: Mapping[str, str]) -> bytes | None:
        with translate_s3_errors(self._describe("get", key)):
            try:
                response = self._client.get_object(
                    Bucket=self.bucket, Key=key, Range=f"bytes={start}-{start + length - 1}"
                )
                body = response["Body"].read()
            except ClientError as error:
                if error_code(error) == "InvalidRange":
                    return b""
                _require_no_such_key(error)
                return None
        if not expected_metadata.items() <= response["Metadata"].items():
            stated = {name: response["Metadata"].get(name) for name in expected_metadata}
            raise CorruptData(f"{self.bucket}/{key}: expected an object of {dict(expected_metadata)}, found {stated}")
        if response["ResponseMetadata"]["HTTPStatusCode"] != 206:
            return body[start : start + length]  # a store may ignore the range and send the whole object
        content_range = response["ContentRange"]
        if not content_range.startswith(f"bytes {start}-"):
            operation = self._describe("get", key)
            raise StoreUnavailable(f"{operation}: expected the bytes from {start} on, found {content_range!r}")
        return body

    def _head_once(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        with translate_s3_errors(self._describe("head", key)):
            try:
                response = self._client.head_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if is_throttle(error) or error_status(error) >= 500:
                    raise
            else:
                info = ObjectInfo(
                    key=key,
                    size_bytes=response["ContentLength"],
                    modified_us=to_microseconds(response.get("LastModified")),
                    etag=response["ETag"],
                    version_id=response.get("VersionId"),
                )
                return info, response["Metadata"]
        # The response to a HEAD has no body with an error code. The response to a GET of one byte has a body.
        if self._get_range_once(key, 0, 1, {}) is not None:
            raise StoreUnavailable(f"{self._describe('head', key)}: refused, and yet the object can be read")
        return None


def _require_no_such_key(error: ClientError) -> None:
    if error_code(error) != "NoSuchKey":
        raise error
