"""Removals that no undo puts back, on a real cluster: objects and uploads in its bucket, and managed ledgers.

The tests run in their order: the first one only looks.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import pytest

from logstore.reconciliation.findings import FindingKind
from tests.e2e.shell import Shell
from tests.pulsar_cluster.cluster import OFFLOAD_BUCKET, RealCluster
from tests.pulsar_cluster.filling import NAMESPACE, PENDING_SUBSCRIPTION, PENDING_TOPIC, ClusterFiller
from tests.pulsar_cluster.ledger_list import LedgerList
from tests.pulsar_cluster.test_applies import apply, plan, run_sexton
from tests.pulsar_cluster.traffic import Traffic
from tests.pulsar_cluster.waits import wait_until
from workers.demo.temporary_homes import kill_processes_and_remove_home, make_home

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(1_800)]

_OFFLOAD, _UPLOAD = FindingKind.ORPHAN_OFFLOAD.value, FindingKind.ABANDONED_UPLOAD.value
_MANAGED_LEDGER = FindingKind.ORPHAN_MANAGED_LEDGER.value
_OPTIONS: Final = ("--include-irreversible", "--include-unconfirmed")
_TENANT: Final = NAMESPACE.partition("/")[0]
_ABANDONED: Final = f"{_TENANT}/abandoned"
_UPLOAD_LEDGER: Final = 1
_MIN_AGE_S: Final = 2.0


@dataclass(kw_only=True)
class RemovableCluster:
    """A cluster with orphans of each kind, beside a topic that is offloaded and read, and the Sexton that plans it."""

    cluster: RealCluster
    ledgers: LedgerList
    filler: ClusterFiller
    sexton: Shell

    def list_objects(self) -> set[str]:
        """Return the keys of all objects of offloads."""
        listed = self.cluster.open_s3().list_objects_v2(Bucket=OFFLOAD_BUCKET)
        return {each["Key"] for each in listed.get("Contents", ())}

    def list_uploads(self) -> set[str]:
        listed = self.cluster.open_s3().list_multipart_uploads(Bucket=OFFLOAD_BUCKET)
        return {each["UploadId"] for each in listed.get("Uploads", ())}

    def plan(self) -> str:
        """Make a plan of what is older than the newest change, which is the clock of a plan."""
        time.sleep(_MIN_AGE_S)
        self.filler.write("orders", 11)
        return plan(self.sexton)

    def list_paths(self, run_id: str, kind: str) -> list[str]:
        report = self.sexton.json("orphans", "report", run_id, "--kind", kind, "--limit", "1000")
        return [str(row["key"]) for row in report]

    def apply(self, run_id: str, *options: str, code: int = 0) -> Any:
        return apply(self.sexton, run_id, *options, code=code)


@pytest.fixture(scope="module")
def removable() -> Iterator[RemovableCluster]:
    home = make_home()
    cluster = RealCluster(home, print)
    ledgers: LedgerList | None = None
    filler: ClusterFiller | None = None
    try:
        cluster.start()
        ledgers = LedgerList(cluster)
        filler = ClusterFiller(cluster, ledgers)
        filler.subscribe("orders", "audit")
        filler.write("orders", 25)
        filler.fill_offloaded_topic("archived")
        with run_sexton(cluster) as sexton:
            removable = RemovableCluster(cluster=cluster, ledgers=ledgers, filler=filler, sexton=sexton)
            leave_orphans(removable)
            yield removable
    finally:
        if filler is not None:
            filler.shut_down()
        if ledgers is not None:
            ledgers.close()
        cluster.kill()
        kill_processes_and_remove_home(home)


def leave_orphans(removable: RemovableCluster) -> None:
    """Leave objects of a topic that is gone, an upload, pending acknowledgements, and topics without a namespace."""
    filler, cluster = removable.filler, removable.cluster
    filler.fill_offloaded_topic("forgotten")
    filler.admin("PUT", "forgotten/unload")
    removable.ledgers.delete_managed_ledger("forgotten")
    key = f"{uuid4()}-ledger-{_UPLOAD_LEDGER}"
    cluster.open_s3().create_multipart_upload(Bucket=OFFLOAD_BUCKET, Key=key)
    filler.fill_transactions()
    filler.admin("PUT", f"{PENDING_TOPIC}/unload")
    filler.admin("DELETE", f"{PENDING_TOPIC}?force=true")
    cluster.request_admin("PUT", f"namespaces/{_ABANDONED}")
    for topic in ("first", "second"):
        cluster.request_admin("PUT", f"persistent/{_ABANDONED}/{topic}")
    delete_policies(removable)


def delete_policies(removable: RemovableCluster) -> None:
    """Delete the namespace's policies by hand, as of a deletion that died with its broker.

    An unload would not do: the broker's own readers of system topics load the namespace again at once.
    """
    removable.cluster.kill_broker()
    for root in ("admin/policies", "admin/local-policies"):
        removable.ledgers.delete_tree(f"/{root}/{_ABANDONED}")
    removable.cluster.start_broker()
    wait_until(lambda: not removable.ledgers.list_children(f"/namespace/{_ABANDONED}"), "a namespace without an owner")


def test_nothing_irreversible_is_removed_without_the_operators_word(removable: RemovableCluster) -> None:
    run_id = removable.plan()
    objects, uploads = removable.list_objects(), removable.list_uploads()
    answer = removable.apply(run_id)
    assert not answer["applied"].keys() & {_OFFLOAD, _UPLOAD, _MANAGED_LEDGER}
    assert any("--include-irreversible" in reason for reason in answer["skipped"])
    assert (removable.list_objects(), removable.list_uploads()) == (objects, uploads)


def test_all_kinds_are_removed_beside_traffic_and_nothing_else(removable: RemovableCluster) -> None:
    """The offloaded topic is read again to its end afterwards."""
    run_id = removable.plan()
    rows = removable.apply(run_id, "--dry-run", *_OPTIONS)["paths"]
    planned_keys = {key for row in rows if row["kind"] == _OFFLOAD for key in row["parts"]}
    managed_ledgers = {row["path"] for row in rows if row["kind"] == _MANAGED_LEDGER}
    pending = quote(f"{PENDING_TOPIC}-{PENDING_SUBSCRIPTION}__transaction_pending_ack")
    assert f"/managed-ledgers/{NAMESPACE}/persistent/{pending}" in managed_ledgers
    assert {f"/managed-ledgers/{_ABANDONED}/persistent/{topic}" for topic in ("first", "second")} <= managed_ledgers
    before = removable.list_objects()
    assert planned_keys
    assert planned_keys < before, "the objects of the other topic are not in the plan"
    with Traffic(removable.cluster) as traffic:
        answer = removable.apply(run_id, *_OPTIONS)
    assert traffic.find_problems() == []
    assert answer["stopped"] is None
    assert answer["applied"][_UPLOAD] == 1
    assert removable.list_objects() == before - planned_keys
    assert not removable.list_uploads()
    assert not [path for path in managed_ledgers if removable.ledgers.has_znode(path)]
    removable.filler.admin("PUT", "archived/unload")
    removable.filler.acknowledge("archived", "archive", 35)
    verified = removable.sexton.json("pulsar", "verify", run_id)
    assert (verified["missing_referenced"], verified["certificate"]["intact"]) == (0, True)


def test_another_plan_finds_none_of_them_again(removable: RemovableCluster) -> None:
    run_id = removable.plan()
    assert [removable.list_paths(run_id, kind) for kind in (_OFFLOAD, _UPLOAD, _MANAGED_LEDGER)] == [[], [], []]
