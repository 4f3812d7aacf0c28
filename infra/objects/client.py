"""How to reach a store: the client with its limits, and buckets by the location that an offload context states."""

import socket
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config

from infra.objects.answers import require_own_answers, translated
from infra.objects.pages import read_pages_fast
from infra.objects.store import S3ObjectStore
from infra.telemetry.s3_spans import observe_client
from logstore.errors import StoreUnavailable
from logstore.offload.tiered import CopyLocation
from logstore.ports.objects import ObjectInfo

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client


def make_client(
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
    """A client without retries of its own, for any number of buckets and threads.

    Args:
        endpoint: The URL of a compatible store, or None for AWS.
        region: The region that signatures name.
        access_key: With `secret_key` the credentials; None leaves them to the environment or the host's role.
        secret_key: See `access_key`.
        ca_file: PEM: the authorities that may sign the store's certificate; empty leaves them to the environment, in
            AWS_CA_BUNDLE, or to those that botocore brings.
        pool_size: Connections kept; give as many as threads will use the client.
        connect_timeout_s: For one attempt.
        read_timeout_s: Between two reads of one attempt.
    """
    core = botocore.session.Session()
    config = Config(
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        max_pool_connections=pool_size,
        retries={"total_max_attempts": 1, "mode": "standard"},  # ours are in Retries
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",  # newer ones are unknown to many compatible stores
        tcp_keepalive=True,
        user_agent=core.user_agent(),  # botocore builds its longer one anew for each request: a sixth of its CPU
    )
    client: S3Client = core.create_client(  # type: ignore[assignment]  # its class is made from a description
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        verify=ca_file or None,
        config=config,
    )
    observe_client(client)
    require_own_answers(client)
    read_pages_fast(client)
    _end_redirects(client, everywhere=endpoint is not None)
    return client


def _end_redirects(client: "S3Client", *, everywhere: bool) -> None:
    """Have botocore follow no redirect where it would never end.

    On each redirect it asks HEAD of the bucket for the region; where that is redirected too, it asks again, until
    Python's stack is used up. Only AWS knows regions, so elsewhere no redirect is followed at all.
    """

    def stay(model: "OperationModel", context: dict[str, Any], **_: object) -> None:
        if everywhere or model.name == "HeadBucket":
            context.setdefault("s3_redirect", {})["redirected"] = True

    client.meta.events.register_last("before-parameter-build.s3", stay)


def clock_s(store: S3ObjectStore) -> float:
    """The store's clock in seconds since 1970, as its answer to a signed listing bears it.

    Raises:
        StoreUnavailable: No answer, or one that bears no date.
        ServiceRefused: The store refuses us.
    """
    what = f"ask bucket {store.bucket} for the time"
    with translated(what):
        answer = store.client.list_objects_v2(Bucket=store.bucket, MaxKeys=1)
    told = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return parsedate_to_datetime(told).timestamp()
    except ValueError:
        raise StoreUnavailable(f"{what}: expected a date in the answer, found {told!r}") from None


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_KNOCK_S = 1.0


class S3Buckets:
    """`Buckets`; clients are made once for each endpoint and region."""

    def __init__(
        self, home: S3ObjectStore, connect: Callable[[str, str], S3ObjectStore], *, own_stack: bool = False
    ) -> None:
        """Resolve locations.

        Args:
            home: A bucket of the configured store.
            connect: Makes a store, whatever its bucket, of endpoint and region with the configured credentials.
            own_stack: Whether the configured store is one that this home starts itself, on ports that may change.
        """
        self._home = home
        self._own_stack = own_stack
        connected = cache(connect)
        self._at_home = cache(home.for_bucket)
        self._elsewhere = cache(lambda bucket, endpoint, region: connected(endpoint, region).for_bucket(bucket))
        self._stand_in = cache(lambda location: _StandIn(home, location))

    def __call__(self, location: CopyLocation) -> S3ObjectStore:
        """The bucket, the same one for each way to write its location; a store that is not there says so when asked."""
        if self._moved(location.endpoint):
            return self._stand_in(location)
        endpoint, region = location.endpoint or self._home.endpoint, location.region or self._home.region
        if (_address(endpoint), region) == (_address(self._home.endpoint), self._home.region):
            return self._at_home(location.bucket)
        return self._elsewhere(location.bucket, endpoint.rstrip("/"), region)

    def _moved(self, endpoint: str) -> bool:
        """Whether no server listens any more where an embedded stack had its own, and this home has another one."""
        if not self._own_stack or not endpoint or _address(endpoint) == _address(self._home.endpoint):
            return False
        host, port = _address(endpoint)[1:3]
        return host in _LOOPBACK and not _listens(host, port)


class _StandIn(S3ObjectStore):
    """The home's own stack, for a context of an earlier build that names the port of an earlier start.

    What it shows is the copy, because keys are unique; what it does not show may stand where the context says.
    """

    def __init__(self, home: S3ObjectStore, location: CopyLocation) -> None:
        super().__init__(home.client, location.bucket, retries=home.retries)
        self._location = location

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """As of any store, except that nothing found is no answer.

        Raises:
            StoreUnavailable: Nothing found.
        """
        found = False
        for item in super().list(prefix, start_after=start_after, first_page=first_page):
            found = True
            yield item
        if not found:
            where = f"{self._location.endpoint}, where nobody listens"
            raise StoreUnavailable(f"{prefix}: its context names {where}, and {self.endpoint} does not show it")


def _address(endpoint: str) -> tuple[str, str, int, str]:
    parts = urlsplit(endpoint.rstrip("/"))
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), parts.path


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_KNOCK_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # perhaps: it is asked, and says so itself
    return True
