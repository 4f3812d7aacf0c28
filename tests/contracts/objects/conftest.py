"""The stores that the suite holds to the port: the fake, and a real SeaweedFS with a bucket per test."""

import uuid
from typing import TYPE_CHECKING

import pytest

from infra.objects.s3_store import S3ObjectStore, create_s3_client
from infra.stack.embedded_stack import StackAddresses
from logstore.ports.object_storage import ObjectStore
from tests.fakes.object_store import FakeObjectStore

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PART_BYTES = 5 << 20  # the least that S3 takes


@pytest.fixture(scope="session")
def seaweed(servers: StackAddresses) -> "S3Client":
    """A client of the run's server."""
    return create_s3_client(servers.s3, servers.region, servers.access_key, servers.secret_key, pool_size=40)


@pytest.fixture
def s3_store(seaweed: "S3Client") -> S3ObjectStore:
    """A bucket of the test's own."""
    bucket = f"test-{uuid.uuid4().hex}"
    seaweed.create_bucket(Bucket=bucket)
    return S3ObjectStore(seaweed, bucket, part_bytes=PART_BYTES)


@pytest.fixture(params=["fake", pytest.param("seaweed", marks=pytest.mark.external_service)])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty store, each kind in turn."""
    if request.param == "fake":
        fake = FakeObjectStore()
        fake.part_bytes = PART_BYTES
        return fake
    found: S3ObjectStore = request.getfixturevalue("s3_store")
    return found
