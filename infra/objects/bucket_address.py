"""Address of a bucket, from which executors open its object store."""

from dataclasses import dataclass, field
from functools import cache

from infra.objects.request_retries import RequestRetries
from infra.objects.s3_client import FAST_TIMEOUTS, create_s3_client
from infra.objects.s3_store import S3ObjectStore


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
