"""Buckets by the location that a context states, before peers that tell who was asked."""

import socket
from functools import partial
from typing import cast

import pytest

from infra.objects.s3_store import S3BucketsByLocation, S3ObjectStore, create_s3_client
from logstore.deletion.intents import CopyVerdict, DeletionIntent
from logstore.deletion.services.tiered_copies import TieredCopyStorage
from logstore.errors import StoreUnavailable
from logstore.log.ledgers import CopyKind
from logstore.offload.tiered_copy import CopyLocation, data_key, index_key
from logstore.ports.object_storage import BucketAtLocation
from tests.infra.objects.peer import Answer, Peer, Request, fault, listing, scripted
from tests.infra.objects.test_store import NO_WAITS, store_at
from tests.logstore.builders import intent, statement

UUID = "01234567-89ab-4cde-8f01-23456789abcd"


def store(endpoint: str, region: str) -> S3ObjectStore:
    return S3ObjectStore(create_s3_client(endpoint, region, "access", "secret"), "any", retries=NO_WAITS)


def copies(found: S3BucketsByLocation) -> TieredCopyStorage:
    """As the wiring has them, but for the marker that a bucket must carry before it is asked."""
    return TieredCopyStorage(cast("BucketAtLocation", found), now_us=lambda: 0)


def locations(home: Peer, *, own_stack: bool = False) -> S3BucketsByLocation:
    return S3BucketsByLocation(store_at(home), store, own_stack=own_stack)


def empty(request: Request) -> Answer:
    """A store without objects."""
    return listing() if "list-type" in request.query else fault(404, "NoSuchKey")


def holding(row: DeletionIntent, request: Request) -> Answer:
    """A store with the row's tiered copy."""
    keys = data_key(UUID, row.ledger_id), index_key(UUID, row.ledger_id)
    if "list-type" in request.query:
        return listing(*keys)
    metadata = {f"x-amz-meta-{name}": value for name, value in statement(row.ledger_id).to_metadata().items()}
    return Answer(200, b"x", {"ETag": "e", **metadata})


def tiered(endpoint: str) -> DeletionIntent:
    """The intent of a tiered copy at an endpoint."""
    context = {"uuid": UUID, "bucket": "bucket", "region": "us-east-1", "endpoint": endpoint}
    return intent(7, copy=CopyKind.OFFLOADED_LEDGER, context=context)


def test_tiered_copy_is_asked_for_where_its_context_says() -> None:
    """A worker whose settings name another store answered ALREADY_GONE, and the copy stood where it always had."""
    row = tiered("")
    with scripted(empty) as configured, scripted(partial(holding, row)) as other:
        tiered_copies = copies(locations(configured))
        assert tiered_copies.inspect_copy(tiered(other.endpoint)).verdict is CopyVerdict.OWN
        assert configured.requests == []
        assert tiered_copies.inspect_copy(row).verdict is CopyVerdict.ABSENT, "no endpoint means the configured store"
        assert configured.requests != []


def test_store_that_cannot_be_asked_where_the_context_says_gives_no_absence() -> None:
    """Another store may be up and know nothing of the copy; the stated one is silent: the deletion is retried."""
    with scripted(empty) as gone:
        pass
    with scripted(empty) as configured, pytest.raises(StoreUnavailable):
        copies(locations(configured)).inspect_copy(tiered(gone.endpoint))
    assert configured.requests == []


def test_clients_are_made_once_for_each_endpoint_and_region_and_shared_with_the_configured_store() -> None:
    """Its own URL written otherwise is the configured store; another region signs otherwise, with the same keys."""
    with scripted(empty) as configured, scripted(empty) as other:
        found = locations(configured)
        home = store_at(configured)
        shared = S3BucketsByLocation(home, store)
        assert (
            shared(CopyLocation("a")).client is shared(CopyLocation("b", f"{configured.endpoint}/", "us-east-1")).client
        )
        assert shared(CopyLocation("a")).client is home.client
        assert (
            found(CopyLocation("a", other.endpoint)).client
            is found(CopyLocation("b", other.endpoint, "us-east-1")).client
        )
        found(CopyLocation("a", other.endpoint, "eu-west-1")).get("key")
        assert "/eu-west-1/s3/" in other.requests[-1].headers["authorization"]
        assert "Credential=access/" in other.requests[-1].headers["authorization"]


def test_context_that_names_an_earlier_port_of_the_own_stack_is_read_from_it_and_proves_no_absence() -> None:
    """The embedded stack may start on other ports; what it does not show may be a store that is only down."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
    row = tiered(nobody)
    with scripted(partial(holding, row)) as home:
        assert copies(locations(home, own_stack=True)).inspect_copy(row).verdict is CopyVerdict.OWN
    with scripted(empty) as home, pytest.raises(StoreUnavailable, match=f"{nobody}, where nobody listens"):
        copies(locations(home, own_stack=True)).inspect_copy(row)
    with scripted(empty) as home, pytest.raises(StoreUnavailable):
        copies(locations(home)).inspect_copy(row)
    with scripted(empty) as home, scripted(partial(holding, row)) as listening:
        found = copies(locations(home, own_stack=True)).inspect_copy(tiered(listening.endpoint))
        assert (found.verdict, home.requests) == (CopyVerdict.OWN, []), "somebody listens there: it is asked"
