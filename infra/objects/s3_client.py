"""Clients of S3 stores, and access to buckets by the location in an offload context."""

import socket
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config

from infra.objects.list_and_delete_parser import use_fast_list_and_delete_parser
from infra.objects.s3_responses import reject_foreign_responses, translate_s3_errors
from infra.objects.s3_store import S3ObjectStore
from infra.telemetry.s3_spans import trace_s3_calls
from logstore.errors import StoreUnavailable
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.object_storage import ObjectInfo

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client


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
