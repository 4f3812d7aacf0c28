"""Addresses of the catalog and of its buckets, which executors get within tasks."""

from dataclasses import dataclass, field
from functools import cache

from infra.objects import S3ObjectStore, create_s3_client


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAddresses:
    database_url: str = field(repr=False)
    primary: BucketAddress
    tiered: tuple[BucketAddress, ...]  # every bucket with this catalog's marker, at the configured store
    application: str

    @property
    def stores(self) -> tuple[BucketAddress, ...]:
        return (self.primary, *self.tiered)
