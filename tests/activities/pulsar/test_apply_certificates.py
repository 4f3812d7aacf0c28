"""A certificate lists what an apply has deleted, can be checked by anybody, and is never changed."""

import json
import math
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from activities.pulsar.apply_certificates import CERTIFICATE_PREFIX, ApplyCertificate, ApplyCertificates
from logstore.errors import StoreUnavailable
from logstore.failpoints import arm
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import JournaledLedger, JournaledRemoval, ReconciliationRun, RunKind
from logstore.pulsar.znode_names import format_ledger_path
from logstore.stop_checks import use_stop_check
from tests.activities.activity_world import World, open_activity_world
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation

_RUN_ID = "apply-pulsar-1"
_CONCLUSION = {"plan": "pulsar-1", "actor": "ann", "reason": "clean-up"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An apply whose journal has the ledgers 7, 8 and 9, of which 7 and 9 are deleted."""
    opened = open_activity_world(tmp_path)
    with opened.opened:
        claim = Claim(workflow_id="tests", run_id="", ttl_s=60)
        catalog = opened.catalog
        catalog.reconciliation.open_run(_RUN_ID, RunKind.APPLY, claim=claim, summary={"ledgers_root": "bk/ledgers"})
        catalog.cluster_journal.add(_RUN_ID, [journaled(ledger_id) for ledger_id in (9, 8, 7)])
        catalog.cluster_journal.settle(_RUN_ID, deleted_ids=[7, 9], existing_ids=[])
        yield opened


@pytest.fixture
def records(world: World) -> FakeObjectStore:
    return world.record_objects


def journaled(ledger_id: int) -> JournaledLedger:
    return JournaledLedger(
        ledger_id=ledger_id, path=format_ledger_path(ledger_id), version=ledger_id + 1, czxid=1, data=b"ledger"
    )


def get_run(world: World) -> ReconciliationRun:
    return world.catalog.reconciliation.get_run(_RUN_ID)


def issue(world: World, **more: Any) -> ApplyCertificate | None:
    certificates = ApplyCertificates(world.record_objects)
    return certificates.issue(get_run(world), world.catalog.cluster_journal, _CONCLUSION | more)


def read_lines(records: FakeObjectStore, certificate: ApplyCertificate) -> list[dict[str, Any]]:
    stored = records.get(certificate.key)
    assert stored
    assert sha256(stored.body).hexdigest() == certificate.sha256
    return list(map(json.loads, stored.body.splitlines()))


def test_certificate_lists_each_deleted_ledger(world: World, records: FakeObjectStore) -> None:
    """A ledger of the journal whose deletion is not confirmed is not in it."""
    certificate = issue(world)
    assert certificate
    header, *rows, end = read_lines(records, certificate)
    assert header == {"format": "sexton-cluster-certificate/1", **_CONCLUSION}
    assert [(row["ledger_id"], row["path"], row["version"]) for row in rows] == [
        (7, "/bk/ledgers/00/0000/L0007", 8),
        (9, "/bk/ledgers/00/0000/L0009", 10),
    ]
    assert all(row["deleted"].startswith("20") and row["deleted"].endswith("Z") for row in rows)
    assert end == {"ledgers": 2, "irreversible": 0}
    assert certificate.key == f"{CERTIFICATE_PREFIX}{_RUN_ID}/0000000002-{certificate.sha256}.jsonl"


def test_certificate_lists_what_no_undo_puts_back(world: World, records: FakeObjectStore) -> None:
    """Also what may be left, without a time. The value of a znode is in the journal alone."""
    journal = world.catalog.cluster_journal
    journal.add_removals(_RUN_ID, [make_removal(3), make_removal(4)])
    journal.settle_removals(_RUN_ID, [3])
    certificate = issue(world)
    assert certificate
    assert certificate.removals == 3
    *_, removed, unconfirmed, end = read_lines(records, certificate)
    assert removed.pop("removed").endswith("Z")
    assert removed == {"kind": "orphan_managed_ledger", "path": "/a/3", "bucket": "", "parts": [{"version": 1}]}
    assert (unconfirmed["path"], unconfirmed["removed"]) == ("/a/4", None)
    assert end == {"ledgers": 2, "irreversible": 1}


def make_removal(number: int) -> JournaledRemoval:
    return JournaledRemoval(
        number=number, kind="orphan_managed_ledger", path=f"/a/{number}", bucket="", parts=[{"version": 1, "data": ""}]
    )


def test_nothing_deleted_is_no_certificate(world: World, records: FakeObjectStore) -> None:
    claim = Claim(workflow_id="tests", run_id="", ttl_s=60)
    run = world.catalog.reconciliation.open_run("apply-2", RunKind.APPLY, claim=claim, summary={})
    assert ApplyCertificates(records).issue(run, world.catalog.cluster_journal, _CONCLUSION) is None
    assert not records.keys


@pytest.mark.parametrize("moment", ["before", "reported_failed"])
def test_certificate_is_written_once(moment: str, world: World, records: FakeObjectStore) -> None:
    """An attempt whose answer was lost is repeated. Equal facts have the same bytes, so that nothing is replaced."""
    arm(f"pulsar.put_certificate.{moment}", action="fail")
    with pytest.raises(StoreUnavailable):
        issue(world)
    assert issue(world) == issue(world)
    assert len(records.keys) == 1


def test_newest_certificate_lists_the_most_removals(world: World, records: FakeObjectStore) -> None:
    first = issue(world)
    world.catalog.cluster_journal.settle(_RUN_ID, deleted_ids=[8], existing_ids=[])
    second = issue(world, reason="the rest")
    certificates = ApplyCertificates(records)
    assert second
    for key in (f"{CERTIFICATE_PREFIX}{_RUN_ID}/z.txt", f"{second.key}.old"):
        records.put_if_absent(key, b"", metadata={})
    assert first != second
    assert certificates.find_newest(_RUN_ID) == second
    assert second.removals == 3
    assert certificates.find_newest("apply-pulsar") is None, "a prefix of another id"


def test_changed_certificate_is_noticed(
    world: World, records: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.pulsar.apply_certificates._BYTES_PER_READ", 100)
    certificate, certificates = issue(world), ApplyCertificates(records)
    assert certificate
    assert certificates.is_intact(certificate)
    body = records.get(certificate.key).body  # type: ignore[union-attr]
    for damaged in (body[:-1], body.replace(b"L0009", b"L0008")):
        records.delete([certificate.key])
        records.put_if_absent(certificate.key, damaged, metadata={})
        assert not certificates.is_intact(certificate)
    records.delete([certificate.key])
    assert not certificates.is_intact(certificate)


def test_cancellation_ends_the_work_between_ledgers_and_parts(
    world: World, records: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a stop check for each of three ledgers, before the upload, and for each part that is read."""
    monkeypatch.setattr("activities.pulsar.apply_certificates._BYTES_PER_READ", 100)
    checks = []
    with use_stop_check(lambda: checks.append(1)):
        certificate = issue(world)
        assert certificate
        assert len(checks) == 3 + 1
        checks.clear()
        assert ApplyCertificates(records).is_intact(certificate)
    body = records.get(certificate.key).body  # type: ignore[union-attr]
    assert len(checks) == math.ceil(len(body) / 100)


def test_long_certificate_is_read_and_written_in_parts(world: World, records: FakeObjectStore) -> None:
    journal = world.catalog.cluster_journal
    journal.add(_RUN_ID, [journaled(ledger_id) for ledger_id in range(100, 2_600)])
    journal.settle(_RUN_ID, deleted_ids=range(100, 2_600), existing_ids=[])
    records.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE, times=99))
    certificate = issue(world)
    assert certificate
    assert certificate.removals == 2_502
    assert ApplyCertificates(records).is_intact(certificate)
