"""A candidate about an offload stays a finding only if the store and its managed ledger prove it now."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from infra.pulsar.offload_store import OffloadStore
from infra.pulsar.offload_verification import UNANSWERED, OffloadVerification, OffloadVerifier
from infra.pulsar.znode_reads import ZnodeReader
from logstore.positions import LedgerId
from logstore.pulsar.offload_objects import OffloadKey, OffloadRole, OffloadVerdict
from logstore.reconciliation.findings import Finding, FindingKind
from tests.infra.objects.peer import Answer, Request, fault, scripted
from tests.infra.objects.test_store import found, store_at
from tests.infra.pulsar.offloads import CLUSTER, TOPIC, begin_upload, put_objects, state
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_UUID = "1fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d"
_OTHER_UUID = "2fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d"
_ATTEMPT = OffloadKey(_UUID, 7)
_HOUR_US = 3_600_000_000

Verify = Callable[..., OffloadVerification]


@pytest.fixture
def verify(offloads: OffloadStore, reader: ZnodeReader) -> Verify:
    """Verify candidates; uploads are old if they began before an hour from now."""

    def run(*candidates: Finding, store: OffloadStore = offloads, age_us: int = -_HOUR_US) -> OffloadVerification:
        before_us = offloads.read_clock_us() - age_us
        return OffloadVerifier(store, reader, cluster=CLUSTER, before_us=before_us).verify(candidates)

    return run


def orphan(store: OffloadStore, **changes: Any) -> Finding:
    """The candidate that a listing at this moment makes of the pair."""
    listed = [item for item in store.objects.list(_UUID) if item.key.startswith(str(_ATTEMPT))]
    values: dict[str, Any] = {
        "objects": len(listed),
        "size_bytes": sum(item.size_bytes for item in listed),
        "newest_us": max((item.modified_us or 0 for item in listed), default=0),
    }
    return candidate(FindingKind.ORPHAN_OFFLOAD, **(values | changes))


def candidate(kind: FindingKind, **changes: Any) -> Finding:
    finding = Finding(kind=kind, ledger_id=LedgerId(7), bucket="tiered", key=str(_ATTEMPT), uuid=_UUID)
    return replace(finding, **changes)


def missing(**changes: Any) -> Finding:
    statement = {"owner": f"managed-ledgers/{TOPIC}"}
    return candidate(FindingKind.DANGLING_REFERENCE, key=f"/managed-ledgers/{TOPIC}", statement=statement, **changes)


def write_offload(cluster: KazooClient, uuid: str, *, complete: bool = True, bookkeeper_deleted: bool = False) -> None:
    context = wire.offload_context(UUID(uuid), complete=complete, bookkeeper_deleted=bookkeeper_deleted)
    value = wire.managed_ledger([7], offloads={7: context})
    cluster.create(f"/managed-ledgers/{TOPIC}", value, makepath=True)


def test_a_pair_whose_topic_is_gone_or_offloaded_again_is_an_orphan(
    cluster: KazooClient, offloads: OffloadStore, verify: Verify
) -> None:
    put_objects(offloads, _ATTEMPT)
    (finding,) = verify(orphan(offloads)).findings
    assert (finding.objects, finding.size_bytes) == (2, 120)
    statement = dict(finding.statement)
    parts = json.loads(statement.pop("parts"))
    assert [(part["key"], part["size_bytes"]) for part in parts] == [(str(_ATTEMPT), 100), (f"{_ATTEMPT}-index", 20)]
    assert all(part["etag"] and part["modified_us"] and part["version_id"] is None for part in parts)
    assert statement == {
        "cluster": CLUSTER,
        "owner": f"managed-ledgers/{TOPIC}",
        "verdict": OffloadVerdict.OWNER_ABSENT.value,
        "confirmed": "true",
    }
    write_offload(cluster, _OTHER_UUID)
    (finding,) = verify(orphan(offloads)).findings
    assert finding.statement["verdict"] == OffloadVerdict.OWNER_NOT_LISTING.value


@pytest.mark.parametrize("roles", [(OffloadRole.DATA,), (OffloadRole.INDEX,)])
def test_half_a_pair_that_a_crash_left_is_an_orphan(
    roles: tuple[OffloadRole, ...], offloads: OffloadStore, verify: Verify
) -> None:
    put_objects(offloads, _ATTEMPT, roles)
    assert [finding.objects for finding in verify(orphan(offloads)).findings] == [1]


_FOREIGN: dict[str, dict[str, Any]] = {
    "of another cluster": {"cluster": "there"},
    "of no managed ledger": {"managed_ledger": ""},
    "of an impossible managed ledger": {"managed_ledger": "t/ns/../a"},
    "without metadata": {"metadata": {}},
    "in another role": {"metadata": state("other")},
}


@pytest.mark.parametrize("changes", _FOREIGN.values(), ids=_FOREIGN.keys())
def test_foreign_objects_are_never_a_finding(changes: dict[str, Any], offloads: OffloadStore, verify: Verify) -> None:
    put_objects(offloads, _ATTEMPT, **changes)
    verification = verify(orphan(offloads))
    assert (verification.findings, verification.dropped) == ([], {OffloadVerdict.FOREIGN.value: 1})


def test_an_index_of_another_cluster_beside_own_data_keeps_both(offloads: OffloadStore, verify: Verify) -> None:
    put_objects(offloads, _ATTEMPT, (OffloadRole.DATA,))
    put_objects(offloads, _ATTEMPT, (OffloadRole.INDEX,), cluster="there")
    assert verify(orphan(offloads)).dropped == {OffloadVerdict.FOREIGN.value: 1}


def test_objects_that_their_managed_ledger_names_or_may_name_are_kept(
    cluster: KazooClient, offloads: OffloadStore, verify: Verify
) -> None:
    put_objects(offloads, _ATTEMPT)
    write_offload(cluster, _UUID, complete=False)
    assert verify(orphan(offloads)).dropped == {OffloadVerdict.REFERENCED.value: 1}
    cluster.set(f"/managed-ledgers/{TOPIC}", b"\xff")
    assert verify(orphan(offloads)).dropped == {OffloadVerdict.OWNER_UNREADABLE.value: 1}


def test_objects_that_vanished_or_changed_since_the_listing_are_no_finding(
    offloads: OffloadStore, verify: Verify
) -> None:
    assert verify(orphan(offloads)).dropped == {OffloadVerdict.OBJECTS_ABSENT.value: 1}
    put_objects(offloads, _ATTEMPT, (OffloadRole.DATA,))
    listed = orphan(offloads)
    assert verify(replace(listed, newest_us=(listed.newest_us or 0) - _HOUR_US)).dropped == {"changed": 1}
    put_objects(offloads, _ATTEMPT, (OffloadRole.INDEX,))
    assert verify(listed).dropped == {OffloadVerdict.CHANGED.value: 1}


def test_an_old_upload_is_reported_and_never_confirmed(offloads: OffloadStore, verify: Verify) -> None:
    begin_upload(offloads, _ATTEMPT, parts=2)
    (finding,) = verify(candidate(FindingKind.ABANDONED_UPLOAD)).findings
    assert (finding.objects, finding.size_bytes, finding.statement["confirmed"]) == (1, 2_000, "false")
    assert finding.statement["verdict"] == OffloadVerdict.OWNER_UNSTATED.value


def test_an_upload_in_progress_and_an_ended_one_are_no_finding(
    cluster: KazooClient, offloads: OffloadStore, verify: Verify
) -> None:
    abandoned = candidate(FindingKind.ABANDONED_UPLOAD)
    assert verify(abandoned).dropped == {OffloadVerdict.OBJECTS_ABSENT.value: 1}
    begin_upload(offloads, _ATTEMPT)
    assert verify(abandoned, age_us=_HOUR_US).dropped == {OffloadVerdict.CHANGED.value: 1}
    write_offload(cluster, _UUID, complete=False)
    owned = replace(abandoned, statement={"owner": f"managed-ledgers/{TOPIC}"})
    assert verify(owned).dropped == {OffloadVerdict.REFERENCED.value: 1}


@pytest.mark.parametrize(
    ("bookkeeper_deleted", "kind"), [(True, FindingKind.DANGLING_REFERENCE), (False, FindingKind.HAZARD)]
)
def test_a_complete_offload_without_its_objects_is_lost_or_endangered_data(
    bookkeeper_deleted: bool, kind: FindingKind, cluster: KazooClient, offloads: OffloadStore, verify: Verify
) -> None:
    write_offload(cluster, _UUID, bookkeeper_deleted=bookkeeper_deleted)
    put_objects(offloads, _ATTEMPT, (OffloadRole.DATA,))
    (finding,) = verify(missing()).findings
    assert (finding.kind, finding.ledger_id) == (kind, 7)
    assert "no index object" in finding.detail


def test_a_listing_that_left_objects_out_is_no_proof_that_they_are_absent(
    cluster: KazooClient, offloads: OffloadStore, verify: Verify
) -> None:
    write_offload(cluster, _UUID, bookkeeper_deleted=True)
    put_objects(offloads, _ATTEMPT)
    assert verify(missing()).dropped == {OffloadVerdict.OBJECTS_PRESENT.value: 1}


@pytest.mark.parametrize("lie", [fault(500, "InternalError"), fault(404, "NoSuchBucket"), Answer(404, b"<html>")])
def test_without_an_answer_an_object_is_neither_present_nor_absent(
    lie: Answer, cluster: KazooClient, verify: Verify
) -> None:
    """The lie is about one object; another one is judged all the same."""
    write_offload(cluster, _UUID, bookkeeper_deleted=True)

    def script(request: Request) -> Answer:
        if request.key.startswith(_UUID):
            return lie if request.key == str(_ATTEMPT) else fault(404, "NoSuchKey")
        stated = state("index" if request.key.endswith("-index") else "data")
        return Answer(200, b"", {"ETag": "e"} | {f"x-amz-meta-{name}": value for name, value in stated.items()})

    other = candidate(FindingKind.ORPHAN_OFFLOAD, uuid=_OTHER_UUID, key=str(OffloadKey(_OTHER_UUID, 7)))
    listed = replace(other, newest_us=2**62)
    with scripted(script) as peer:
        verification = verify(
            missing(), candidate(FindingKind.ORPHAN_OFFLOAD), listed, store=OffloadStore(store_at(peer))
        )
    assert verification.dropped == {UNANSWERED: 2, OffloadVerdict.CHANGED.value: 1}, "a HEAD without a time is a change"


def test_a_head_that_finds_nothing_of_an_object_that_can_be_read_is_no_answer(
    cluster: KazooClient, verify: Verify
) -> None:
    write_offload(cluster, _UUID, bookkeeper_deleted=True)

    def script(request: Request) -> Answer:
        return fault(404, "NoSuchKey") if request.method == "HEAD" else found(b"x", status=206)

    with scripted(script) as peer:
        assert verify(missing(), store=OffloadStore(store_at(peer))).dropped == {UNANSWERED: 1}


def test_a_store_that_is_away_is_not_asked_for_every_candidate(verify: Verify) -> None:
    candidates = [missing()] * 1_000
    with scripted(lambda _: fault(503, "SlowDown")) as peer:
        verification = verify(*candidates, store=OffloadStore(store_at(peer)))
    assert verification.dropped == {UNANSWERED: 1_000}
    assert len(peer.requests) < 400
