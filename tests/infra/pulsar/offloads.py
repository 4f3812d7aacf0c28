"""Objects and uploads of offloads, written as a broker's jcloud offloader writes them."""

import uuid
from collections.abc import Mapping

from infra.objects.s3_store import BucketAddress, create_s3_client
from infra.pulsar.offload_store import OffloadStore
from infra.stack.embedded_stack import StackAddresses
from logstore.pulsar.offload_objects import OffloadKey, OffloadRole

TOPIC = "t/ns/persistent/a"
CLUSTER = "here"


def create_offload_bucket(servers: StackAddresses) -> BucketAddress:
    """An empty bucket of the test's own on the run's SeaweedFS."""
    keys = servers.access_key, servers.secret_key
    address = BucketAddress("offloads", f"test-{uuid.uuid4().hex}", servers.s3, servers.region, *keys)
    create_s3_client(address.endpoint, address.region, *keys).create_bucket(Bucket=address.bucket)
    return address


def state(role: str, *, managed_ledger: str = TOPIC, cluster: str = CLUSTER) -> dict[str, str]:
    """User metadata of an object."""
    return {
        "role": role,
        "managedledgername": managed_ledger,
        "pulsarclustername": cluster,
        "s3managedledgeroffloaderformatversion": "1",
    }


def put_objects(
    store: OffloadStore,
    attempt: OffloadKey,
    roles: tuple[OffloadRole, ...] = tuple(OffloadRole),
    *,
    metadata: Mapping[str, str] | None = None,
    managed_ledger: str = TOPIC,
    cluster: str = CLUSTER,
) -> None:
    """Write the objects of an attempt: 100 bytes of data and 20 of an index."""
    for role in roles:
        body = b"d" * 100 if role is OffloadRole.DATA else b"i" * 20
        stated = state(role.value, managed_ledger=managed_ledger, cluster=cluster) if metadata is None else metadata
        key = str(OffloadKey(attempt.uuid, attempt.ledger_id, role))
        store.objects.client.put_object(Bucket=store.bucket, Key=key, Body=body, Metadata=dict(stated))


def begin_upload(store: OffloadStore, attempt: OffloadKey, *, parts: int = 1) -> str:
    """Begin the upload of the data, as of a broker that dies after `parts` parts of 1,000 bytes. Return its id."""
    client, bucket, key = store.objects.client, store.bucket, str(attempt)
    upload = client.create_multipart_upload(Bucket=bucket, Key=key, Metadata=state("data"))["UploadId"]
    for number in range(1, parts + 1):
        client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=b"p" * 1_000)
    return upload
