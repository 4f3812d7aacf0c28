"""Address of a bucket, from which executors open its object store."""

from dataclasses import dataclass, field
from functools import cache

from infra.objects.s3_client import create_s3_client
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
        return _connect(self)


@cache
def _connect(address: BucketAddress) -> S3ObjectStore:
    keys = address.access_key or None, address.secret_key or None
    client = create_s3_client(address.endpoint or None, address.region, *keys, ca_file=address.ca_file, pool_size=64)
    return S3ObjectStore(client, address.bucket)
