"""`ObjectStore` over one bucket of S3 or of a compatible store, its clients, and access to buckets by location."""

import io
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError

from infra.objects.bucket_listing import BucketListing, to_microseconds
from infra.objects.key_rules import require_possible_key, require_supported_metadata, require_writable_key
from infra.objects.multipart_uploads import PART_BYTES, MultipartUploads
from infra.objects.object_deletes import ObjectDeletes, parse_delete_response, record_delete_results
from infra.objects.s3_responses import (
    RequestRetries,
    error_code,
    error_status,
    is_throttle,
    reject_foreign_responses,
    translate_s3_errors,
    use_fast_list_and_delete_parser,
)
from infra.telemetry.client_spans import trace_s3_calls
from logstore.errors import AlreadyExists, CorruptData, InvalidInput, StoreUnavailable
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.object_storage import DeleteReport, ObjectInfo, OpenUpload, StoredObject
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import DeleteObjectsOutputTypeDef, ListObjectVersionsOutputTypeDef

_VERSIONS_PER_REQUEST = 1_000


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
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.client, self.bucket = client, bucket
        self.retries = retries or RequestRetries()
        self._part_bytes = part_bytes
        self._multipart = MultipartUploads(client, bucket, retries=self.retries, part_bytes=part_bytes)
        self._deletes = ObjectDeletes(client, bucket, retries=self.retries)

    @property
    def endpoint(self) -> str:
        return self.client.meta.endpoint_url

    @property
    def region(self) -> str:
        return self.client.meta.region_name

    def for_bucket(self, bucket: str) -> "S3ObjectStore":
        """Return another bucket of the same store, with the same client and a separate rate of deletes."""
        return S3ObjectStore(self.client, bucket, retries=self.retries)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        require_writable_key(key)
        require_supported_metadata(metadata)
        if not self.retries.call(lambda: self._put_or_verify_same_once(key, body, metadata)):
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

            is_stored = self.retries.call(put)
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
        return self.retries.call(lambda: self._get_once(key))

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        require_possible_key(key)
        if start < 0 or length < 1:
            raise InvalidInput("range", expected="start of at least 0, length of at least 1", found=(start, length))
        return self.retries.call(lambda: self._get_range_once(key, start, length, expected_metadata or {}))

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        require_possible_key(key)
        return self.retries.call(lambda: self._head_once(key))

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        listing = BucketListing(self.client, self.bucket, self.retries, prefix=prefix, start_after=start_after)
        return listing.iterate_objects(first_page)

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        return BucketListing(self.client, self.bucket, self.retries, prefix=prefix, start_after="").list_folder()

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        return self._deletes.delete(keys)

    def list_version_ids(self, key: str) -> Sequence[str]:
        """Return the ids of all versions of exactly this key, without delete markers."""
        version_ids: list[str] = []
        key_marker = version_marker = ""
        operation = self._describe("list versions", key)
        while True:
            page = self.retries.request(operation, partial(self._list_versions_page, key, key_marker, version_marker))
            version_ids += [version["VersionId"] for version in page.get("Versions", ()) if version["Key"] == key]
            if not page.get("IsTruncated"):
                return version_ids
            raise_if_stopped()
            key_marker, version_marker = page.get("NextKeyMarker", ""), page.get("NextVersionIdMarker", "")
            if not key_marker:
                raise StoreUnavailable(f"{operation}: truncated, yet names no way to its rest")

    def _list_versions_page(self, key: str, key_marker: str, version_marker: str) -> "ListObjectVersionsOutputTypeDef":
        markers = {"KeyMarker": key_marker, "VersionIdMarker": version_marker} if key_marker else {}
        return self.client.list_object_versions(Bucket=self.bucket, Prefix=key, **markers)  # type: ignore[arg-type]

    def delete_versions(self, versions: Sequence[tuple[str, str]]) -> DeleteReport:
        """Delete versions for good, each as a key and a version id, at most one of a key.

        An absent version counts as deleted. A temporary error of a key counts as no answer.
        """
        report = DeleteReport()
        for start in range(0, len(versions), _VERSIONS_PER_REQUEST):
            raise_if_stopped()
            page = versions[start : start + _VERSIONS_PER_REQUEST]
            operation = f"delete {len(page)} versions of {self.bucket}"
            deleted, errors = parse_delete_response(
                self.retries.request(operation, partial(self._delete_versions_page, page))
            )
            temporary = record_delete_results([key for key, _ in page], deleted, errors, report)
            report.failed.update(temporary)
            report.unanswered.update(temporary)
        return report

    def _delete_versions_page(self, page: Sequence[tuple[str, str]]) -> "DeleteObjectsOutputTypeDef":
        entries = [{"Key": key, "VersionId": version_id} for key, version_id in page]
        return self.client.delete_objects(
            Bucket=self.bucket,
            Delete={"Objects": entries, "Quiet": False},  # type: ignore[typeddict-item]
        )

    def _describe(self, verb: str, key: str) -> str:
        return f"{verb} {self.bucket}/{key}"

    def _put_or_verify_same_once(self, key: str, body: bytes, metadata: Mapping[str, str]) -> bool:
        with translate_s3_errors(self._describe("put", key)):
            try:
                self.client.put_object(Bucket=self.bucket, Key=key, Body=body, Metadata=dict(metadata), IfNoneMatch="*")
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
                response = self.client.get_object(Bucket=self.bucket, Key=key)
                return StoredObject(key=key, body=response["Body"].read(), metadata=response["Metadata"])
            except ClientError as error:
                _require_no_such_key(error)
                return None

    def _get_range_once(self, key: str, start: int, length: int, expected_metadata: Mapping[str, str]) -> bytes | None:
        with translate_s3_errors(self._describe("get", key)):
            try:
                response = self.client.get_object(
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
                response = self.client.head_object(Bucket=self.bucket, Key=key)
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


FAST_TIMEOUTS: Final[dict[str, Any]] = {"connect_timeout_s": 3.0, "read_timeout_s": 5.0}
"""Arguments of `create_s3_client`, for commands whose user waits."""


def create_s3_client(
    endpoint: str | None,
    region: str,
    access_key: str | None,
    secret_key: str | None,
    *,
    ca_file: str = "",
    pool_size: int = 32,
    connect_timeout_s: float = 5.0,
    read_timeout_s: float = 60.0,
) -> "S3Client":
    """Build a thread-safe client without retries.

    Without `endpoint`, the client uses AWS. Without `access_key`, it uses the credentials of the environment or of the
    host's role. An empty `ca_file` means `AWS_CA_BUNDLE`, or else botocore's certificate authorities. `pool_size`
    should be the number of threads.
    """
    core = botocore.session.Session()
    config = Config(
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        max_pool_connections=pool_size,
        retries={"total_max_attempts": 1, "mode": "standard"},  # `RequestRetries` repeats requests instead
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",  # many compatible stores do not know the newer checksums
        tcp_keepalive=True,
        user_agent=core.user_agent(),  # the default is built for each request, which takes a sixth of the CPU time
    )
    client: S3Client = core.create_client(  # type: ignore[assignment]  # botocore builds the class at run time
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        verify=ca_file or None,
        config=config,
    )
    trace_s3_calls(client)
    reject_foreign_responses(client)
    use_fast_list_and_delete_parser(client)
    _disable_redirects(client, for_all_operations=endpoint is not None)
    return client


def _disable_redirects(client: "S3Client", *, for_all_operations: bool) -> None:
    """Disable redirects of HeadBucket, or of all operations.

    After a redirect, botocore sends a HeadBucket to find the region. If this HeadBucket is redirected too, botocore
    would send HeadBuckets for ever. Only AWS needs redirects, because only AWS has regions.
    """

    def mark_as_redirected(model: "OperationModel", context: dict[str, Any], **_: object) -> None:
        if for_all_operations or model.name == "HeadBucket":
            context.setdefault("s3_redirect", {})["redirected"] = True

    client.meta.events.register_last("before-parameter-build.s3", mark_as_redirected)


def read_store_clock_s(store: S3ObjectStore) -> float:
    """Return the time of the store's clock in seconds since 1970, from the `Date` header of a signed listing."""
    operation = f"ask bucket {store.bucket} for the time"
    with translate_s3_errors(operation):
        response = store.client.list_objects_v2(Bucket=store.bucket, MaxKeys=1)
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        raise StoreUnavailable(f"{operation}: expected a date in the answer, found {date!r}") from None


_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_CONNECT_TIMEOUT_S = 1.0


class S3BucketsByLocation:
    """`BucketAtLocation` of S3 stores, with one client per endpoint and region.

    `home` is any bucket of the configured store. `own_stack` says whether the configured store is the embedded server,
    whose port may change.
    """

    def __init__(
        self, home: S3ObjectStore, connect: Callable[[str, str], S3ObjectStore], *, own_stack: bool = False
    ) -> None:
        self._home = home
        self._own_stack = own_stack
        connect_once = cache(connect)
        self._home_bucket = cache(home.for_bucket)
        self._other_bucket = cache(lambda bucket, endpoint, region: connect_once(endpoint, region).for_bucket(bucket))
        self._moved_stack_store = cache(lambda location: _StoreAtFormerPort(home, location))

    def __call__(self, location: CopyLocation) -> S3ObjectStore:
        """Return the bucket without connecting to it. Two spellings of one location give the same instance."""
        if self._has_moved(location.endpoint):
            return self._moved_stack_store(location)
        endpoint, region = location.endpoint or self._home.endpoint, location.region or self._home.region
        if (_parse_endpoint(endpoint), region) == (_parse_endpoint(self._home.endpoint), self._home.region):
            return self._home_bucket(location.bucket)
        return self._other_bucket(location.bucket, endpoint.rstrip("/"), region)

    def _has_moved(self, endpoint: str) -> bool:
        """Return whether the endpoint is an earlier port of the embedded server: local, and without a listener."""
        if not self._own_stack or not endpoint or _parse_endpoint(endpoint) == _parse_endpoint(self._home.endpoint):
            return False
        host, port = _parse_endpoint(endpoint)[1:3]
        return host in _LOOPBACK_HOSTS and not _may_have_listener(host, port)


class _StoreAtFormerPort(S3ObjectStore):
    """Bucket of the embedded store, for an offload context with the port of an earlier start."""

    def __init__(self, home: S3ObjectStore, location: CopyLocation) -> None:
        super().__init__(home.client, location.bucket, retries=home.retries)
        self._location = location

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """Yield the objects. If there are none, raise an error: a store at the former port may have them."""
        is_empty = True
        for item in super().list(prefix, start_after=start_after, first_page=first_page):
            is_empty = False
            yield item
        if is_empty:
            endpoint = f"{self._location.endpoint}, where nobody listens"
            raise StoreUnavailable(f"{prefix}: its context names {endpoint}, and {self.endpoint} does not show it")


def _parse_endpoint(endpoint: str) -> tuple[str, str, int, str]:
    parts = urlsplit(endpoint.rstrip("/"))
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), parts.path


def _may_have_listener(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # a request will find out
    return True


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Address of a bucket. Executors get addresses within tasks, because Spark shows options and properties."""

    role: str
    bucket: str
    endpoint: str = ""  # empty: AWS
    region: str = ""
    access_key: str = field(default="", repr=False)  # empty: the executor's own environment or role
    secret_key: str = field(default="", repr=False)
    ca_file: str = ""  # the same path on every executor; empty: the setting of the executor's environment

    def store(self) -> S3ObjectStore:
        """Return the object store of the bucket. A process has one client for each address."""
        return _connect(self, fails_fast=False)

    def store_that_fails_fast(self) -> S3ObjectStore:
        """Return the object store with short timeouts and one attempt, for commands whose user waits."""
        return _connect(self, fails_fast=True)


@cache
def _connect(address: BucketAddress, *, fails_fast: bool) -> S3ObjectStore:
    keys = address.access_key or None, address.secret_key or None
    timeouts = FAST_TIMEOUTS if fails_fast else {}
    retries = RequestRetries.once() if fails_fast else None
    client = create_s3_client(
        address.endpoint or None, address.region, *keys, ca_file=address.ca_file, pool_size=64, **timeouts
    )
    return S3ObjectStore(client, address.bucket, retries=retries)
