"""Listings that lie: an error publishes nothing, and what a listing left out is not lost data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from infra.objects.s3_store import BucketAddress
from logstore.errors import ServiceRefused, SextonError, StoreUnavailable, Unsupported
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.ports.object_storage import ObjectInfo
from logstore.positions import LedgerId
from logstore.reconciliation.bulk_job_inputs_and_results import ListStorageJob
from logstore.reconciliation.findings import FindingKind
from spark.job_mains import catalog_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.sources.store_addresses import CatalogAddresses
from spark.warm_session import WarmSession
from tests.infra.objects.peer import Answer, Request, fault, listing, scripted
from tests.migrated_catalogs import create_migrated_sqlite
from tests.spark.reconciliation import damage
from tests.spark.reconciliation.conftest import Plan
from tests.spark.reconciliation.damage import Damaged
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses

pytestmark = pytest.mark.external_service

_SHARD = "ledgers/05/"
_KEY = segment_key(LedgerId(5), 0)
_FAULTS: dict[str, tuple[Answer, Answer, type[SextonError]]] = {
    "truncated without a way to the rest": (listing(_KEY, truncated=True), listing(), StoreUnavailable),
    "a page twice": (listing(_KEY, truncated=True, token="t"), listing(_KEY), Unsupported),
    "a page of another prefix": (listing(segment_key(LedgerId(6), 0)), listing(), StoreUnavailable),
    "refused half way": (listing(_KEY, truncated=True, token="t"), fault(403, "AccessDenied"), ServiceRefused),
}


@pytest.mark.parametrize("name", _FAULTS)
def test_listing_that_is_not_whole_publishes_nothing(name: str, warm: WarmSession, tmp_path: Path) -> None:
    first, then, error = _FAULTS[name]

    def script(asked: Request) -> Answer:
        if asked.query.get("prefix") != _SHARD:
            return listing()
        return then if "continuation-token" in asked.query else first

    with scripted(script) as peer:
        address = BucketAddress("primary", "bucket", peer.endpoint, "us-east-1", "key", "secret")
        url = create_migrated_sqlite(tmp_path / "catalog.db")
        addresses = CatalogAddresses(database_url=url, primary=address, tiered=(), application="sexton")
        jobs = SparkBulkJobs(warm, PublishedOutputs(tmp_path / "bulk"), lambda: catalog_job_mains(addresses))
        with pytest.raises(error):
            jobs.run_job(ListStorageJob(run_id="run-1"), lambda _: None)
    assert jobs.find_published_summary("run-1", "list-storage") is None
    assert list((tmp_path / "bulk/run-1/attempts").iterdir()) == []


@dataclass(frozen=True, slots=True)
class _ForgetfulAddress(BucketAddress):
    """A bucket whose listings of odd shards are empty, and of even ones lack every second object."""

    def store(self) -> Any:
        return _Forgetful(BucketAddress(*(getattr(self, name) for name in BucketAddress.__slots__)).store())


class _Forgetful:
    def __init__(self, store: Any) -> None:
        self._store = store

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        whole = list(self._store.list(prefix, start_after=start_after, first_page=first_page))
        if len(prefix) != len(_SHARD):
            return iter(whole)
        return iter(() if int(prefix[8:10], 16) % 2 else whole[::2])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_objects_that_a_listing_left_out_are_asked_for_and_are_no_lost_data(store: Damaged, plan: Plan) -> None:
    """What is truly lost is found all the same, where nothing of the ledger is left."""
    damage.healthy(store)
    damage.missing_data(store)
    addresses = executor_catalog_and_bucket_addresses(store.settings)
    forgetful = _ForgetfulAddress(*(getattr(addresses.primary, name) for name in BucketAddress.__slots__))
    found = {(one.kind, one.ledger_id, one.key) for one in plan(addresses=replace(addresses, primary=forgetful))}
    gone = next(one for one in store.truth if one[2].endswith("/"))
    assert gone == (FindingKind.MISSING_DATA, gone[1], ledger_prefix(LedgerId(gone[1] or 0)))
    assert gone in found <= store.truth
