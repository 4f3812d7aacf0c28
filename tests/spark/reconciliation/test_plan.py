"""A plan over real servers: precision and recall are both exactly 1, whatever the damage, and wherever it is read."""

from pathlib import Path

import pytest

from infra.stack.embedded_stack import StackAddresses
from logstore.log.ledger_object_keys import segment_number_from_key
from logstore.reconciliation.findings import STORE_KINDS, Finding, FindingKind
from spark.reconciliation import list_storage
from spark.warm_session import WarmSession
from tests.postgres import PostgresServer
from tests.servers import create_store_settings
from tests.spark.reconciliation import damage
from tests.spark.reconciliation.conftest import Plan, planner
from tests.spark.reconciliation.damage import Damaged, Truth
from tests.spark.sources import inventories
from workers.assembly.log_store_from_settings import open_log_store

pytestmark = pytest.mark.external_service


def _said(findings: list[Finding]) -> set[Truth]:
    said: set[Truth] = {(one.kind, one.ledger_id, one.key) for one in findings}
    assert len(said) == len(findings)
    return said


_OF_ROWS = frozenset({FindingKind.MISSING_DATA, FindingKind.UNREFERENCED_LEDGER, FindingKind.STALLED_DELETION})


def _inventories(store: Damaged, folder: Path, *, ages: bool = True) -> tuple[str, ...]:
    """What the buckets hold, as an inventory of each: the primary one in CSV, in which keys are encoded."""
    paths = []
    for bucket, form in ((store.settings.primary_bucket, "CSV"), (store.settings.tiered_bucket, "Parquet")):
        pages = store.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        rows = [
            inventories.row(one["Key"], one["Size"], int(one["LastModified"].timestamp() * 1e6) if ages else None)
            for page in pages
            for one in page.get("Contents", ())
        ]
        twice = [
            one for one in rows if segment_number_from_key(one["key"]) is not None or one["key"].endswith("-index")
        ]
        parts = [rows[::2], rows[1::2], twice]
        paths.append(str(inventories.write(folder / bucket, bucket, parts, form=form)))
    return tuple(paths)


def test_every_damage_is_found_and_nothing_else(
    store: Damaged, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By listing, and by inventories in its place, which are made after all of it."""
    monkeypatch.setattr(list_storage, "read_store_clock_s", lambda _: 1_900_000_000.0)
    damage.healthy(store)
    for one in damage.EVERY:
        one(store)
    found = plan()
    assert _said(found) == store.truth
    assert {one.kind for one in found} == set(STORE_KINDS) - {FindingKind.CORRUPT_DATA}, "a scrub finds that"
    assert all(one.topic for one in found if one.kind in _OF_ROWS)
    assert _said(plan(inventories=_inventories(store, tmp_path / "inventories"))) == store.truth
    ageless = _inventories(store, tmp_path / "ageless", ages=False)
    found = plan(inventories=ageless)
    uploads = [one for one in found if one.kind is FindingKind.ORPHAN_OFFLOAD]  # they are listed, and so have an age
    assert [one.objects for one in uploads] == [0]
    assert _said(found) - _said(uploads) == {one for one in store.truth if one[0] in _OF_ROWS} - store.aged


def test_every_damage_is_found_with_the_catalog_on_postgresql(
    servers: StackAddresses, postgres: PostgresServer, warm: WarmSession, tmp_path: Path
) -> None:
    with postgres.database() as name:
        settings = create_store_settings(servers, tmp_path, database_url=postgres.url(name))
        with open_log_store(settings) as log:
            store = Damaged(settings=settings, log=log)
            damage.healthy(store)
            for one in damage.EVERY:
                one(store)
            assert _said(planner(store, warm, tmp_path / "bulk")()) == store.truth
