"""Contract of `ClusterChanges.look` and `ClusterChanges.remove`, for each kind of finding that no undo puts back."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
from kazoo.client import KazooClient
from pydantic import SecretStr

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar.offload_store import OffloadStore, open_offload_store
from infra.pulsar.offload_verification import OffloadVerifier
from infra.pulsar.znode_reads import ZnodeReader
from infra.stack.embedded_stack import StackAddresses
from logstore.errors import PreconditionFailed, StoreUnavailable, UnexpectedClusterState
from logstore.ports.pulsar_cluster import PulsarClusterAccess, RemovalLook, RemovalResult
from logstore.positions import LedgerId
from logstore.pulsar.offload_objects import OffloadKey
from logstore.reconciliation.findings import Finding, FindingFate, FindingKind
from tests.fakes.pulsar_cluster import FakePulsarCluster
from tests.infra.coordination.conftest import zookeeper
from tests.infra.pulsar.conftest import cluster, ensemble, reader
from tests.infra.pulsar.fake_admin import CLUSTER_ANSWERS, CLUSTER_ZNODES, FakeAdmin, serve_admin
from tests.infra.pulsar.offloads import CLUSTER, begin_upload, create_offload_bucket, put_objects, state
from tests.infra.pulsar.planted_orphans import write
from tests.logstore.pulsar import wire
from tests.workflows.pulsar.cluster_plans import (
    abandoned_upload,
    orphan_managed_ledger,
    orphan_offload,
    plant_removable,
)
from workers.assembly.pulsar_cluster import PulsarClusterOfSettings
from workers.settings import Settings

__all__ = ["cluster", "ensemble", "reader", "zookeeper"]

_OFFLOAD, _UPLOAD = FindingKind.ORPHAN_OFFLOAD, FindingKind.ABANDONED_UPLOAD
_MANAGED_LEDGER = FindingKind.ORPHAN_MANAGED_LEDGER
_DELETED = RemovalResult(fate=FindingFate.DELETED)


class RemovalWorld(Protocol):
    """A cluster with what a plan found, and its own writers."""

    @property
    def access(self) -> PulsarClusterAccess:
        """Access of jobs."""

    def plant(self, kind: FindingKind, number: int) -> Finding:
        """Create something that nothing refers to, and return it as a plan would."""

    def change(self, finding: Finding) -> None:
        """Change what the plan found."""

    def vanish(self, finding: Finding) -> None:
        """Remove all of it."""

    def exists(self, finding: Finding) -> bool:
        """Return whether anything of it is left."""

    def replace_cluster(self) -> None:
        """Make the cluster anew."""


class MemoryRemovals:
    """The fake."""

    def __init__(self) -> None:
        self.access = FakePulsarCluster()

    def plant(self, kind: FindingKind, number: int) -> Finding:
        make = {_OFFLOAD: orphan_offload, _UPLOAD: abandoned_upload}.get(kind)
        finding = make(number) if make else orphan_managed_ledger(f"{number}-sub__transaction_pending_ack")
        plant_removable(self.access, [finding])
        return finding

    def change(self, finding: Finding) -> None:
        self.access.changed_paths.add(finding.key)

    def vanish(self, finding: Finding) -> None:
        del self.access.parts[finding.key]

    def exists(self, finding: Finding) -> bool:
        return finding.key in self.access.parts

    def replace_cluster(self) -> None:
        self.access.replace_cluster()


class RealRemovals:
    """ZooKeeper, SeaweedFS, and an HTTP server that deletes znodes as a broker does."""

    def __init__(
        self, client: KazooClient, reader: ZnodeReader, store: OffloadStore, admin: FakeAdmin, settings: Settings
    ) -> None:
        self.access = PulsarClusterOfSettings(settings)
        self._client, self._reader, self._store, self._admin = client, reader, store, admin
        write(client, "ledgers/INSTANCEID", b"5f0a")
        write(client, "managed-ledgers")
        write(client, "admin/policies/t/ns", b"{}")
        for path, value in CLUSTER_ZNODES.items():
            write(client, path, value)

    def plant(self, kind: FindingKind, number: int) -> Finding:
        if kind is _MANAGED_LEDGER:
            return self._plant_managed_ledger(f"t/ns/persistent/{number}-sub__transaction_pending_ack")
        key = OffloadKey(f"{number:08d}-70a5-4d4e-8d8c-1f2f3a4b5c6d", number)
        if kind is _UPLOAD:
            begin_upload(self._store, key)
        else:
            put_objects(self._store, key)
        listed = list(self._store.objects.list(key.uuid))
        candidate = Finding(
            kind=kind,
            ledger_id=LedgerId(number),
            bucket=self._store.bucket,
            key=str(key),
            uuid=key.uuid,
            size_bytes=sum(info.size_bytes for info in listed),
            newest_us=max((info.modified_us or 0 for info in listed), default=0),
        )
        before_us = self._store.read_clock_us() + 3_600_000_000
        verifier = OffloadVerifier(self._store, self._reader, cluster=CLUSTER, before_us=before_us)
        (finding,) = verifier.verify([candidate]).findings
        return finding

    def _plant_managed_ledger(self, name: str) -> Finding:
        path, topic = f"managed-ledgers/{name}", name.rpartition("/")[2]
        write(self._client, path, wire.managed_ledger([11]))
        stat = self._client.exists(f"/{path}")
        request = f"DELETE /admin/v2/persistent/t/ns/{topic}?force=true"
        self._admin.answers[request] = partial(self._delete, f"/{path}")
        finding = orphan_managed_ledger(topic)
        return replace(finding, statement={**finding.statement, "version": str(stat.version), "czxid": str(stat.czxid)})

    def _delete(self, path: str) -> tuple[int, str]:
        self._client.delete(path)
        return (204, "")

    def change(self, finding: Finding) -> None:
        if finding.kind is _MANAGED_LEDGER:
            self._client.set(finding.key, wire.managed_ledger([11, 12]))
        elif finding.kind is _UPLOAD:
            begin_upload(self._store, OffloadKey(finding.uuid, finding.ledger_id or 0))
        else:
            self._store.objects.client.put_object(
                Bucket=self._store.bucket, Key=finding.key, Body=b"x" * 100, Metadata=state("data")
            )

    def vanish(self, finding: Finding) -> None:
        if finding.kind is _MANAGED_LEDGER:
            self._client.delete(finding.key)
        elif finding.kind is _UPLOAD:
            for upload in self._store.read_uploads(OffloadKey(finding.uuid, finding.ledger_id or 0)):
                self._store.abort_upload(upload.to_part())
        else:
            self._store.objects.delete([finding.key, f"{finding.key}-index"])

    def exists(self, finding: Finding) -> bool:
        if finding.kind is _MANAGED_LEDGER:
            return self._client.exists(finding.key) is not None
        if finding.kind is _UPLOAD:
            return bool(self._store.read_uploads(OffloadKey(finding.uuid, finding.ledger_id or 0)))
        return next(self._store.objects.list(finding.uuid), None) is not None

    def replace_cluster(self) -> None:
        self._client.set("/ledgers/INSTANCEID", b"77aa")


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.external_service)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemovalWorld]:
    if request.param == "memory":
        yield MemoryRemovals()
        return
    options: EnsembleOptions = request.getfixturevalue("ensemble")
    stack: StackAddresses = request.getfixturevalue("servers")
    bucket = create_offload_bucket(stack)
    with serve_admin(CLUSTER_ANSWERS) as admin:
        settings = Settings(
            home=tmp_path,
            pulsar_zookeeper=options.hosts,
            pulsar_bookkeeper_exclusive=True,
            pulsar_admin_url=admin.url,
            pulsar_offload_bucket=bucket.bucket,
            pulsar_offload_bucket_exclusive=True,
            pulsar_offload_endpoint=bucket.endpoint,
            pulsar_offload_region=bucket.region,
            pulsar_offload_access_key=SecretStr(bucket.access_key),
            pulsar_offload_secret_key=SecretStr(bucket.secret_key),
        )
        client, znodes = request.getfixturevalue("cluster"), request.getfixturevalue("reader")
        yield RealRemovals(client, znodes, open_offload_store(bucket), admin, settings)


@pytest.fixture(params=[_OFFLOAD, _UPLOAD, _MANAGED_LEDGER])
def kind(request: pytest.FixtureRequest) -> FindingKind:
    found: FindingKind = request.param
    return found


def test_what_is_there_is_described_and_removed_once(world: RemovalWorld, kind: FindingKind) -> None:
    findings = [world.plant(kind, number) for number in (6, 7, 8)]
    world.vanish(findings[1])
    with world.access.open_changes("a") as changes:
        looks = changes.look(kind, findings)
        assert [bool(look.parts) for look in looks] == [True, False, True]
        assert changes.remove(kind, findings[:2]) == [_DELETED, _DELETED]
        assert [world.exists(finding) for finding in findings] == [False, False, True]
        assert changes.look(kind, findings[:2]) == [RemovalLook(), RemovalLook()]
        assert changes.remove(kind, findings) == [_DELETED, _DELETED, _DELETED]
        assert changes.remove(kind, []) == []
    assert not world.exists(findings[2])


def test_change_stops_the_removal_of_all(world: RemovalWorld, kind: FindingKind) -> None:
    findings = [world.plant(kind, number) for number in (6, 7)]
    world.change(findings[1])
    with world.access.open_changes("a") as changes:
        with pytest.raises(UnexpectedClusterState, match="expected"):
            changes.look(kind, findings)
        with pytest.raises(UnexpectedClusterState, match="expected"):
            changes.remove(kind, findings)
    assert [world.exists(finding) for finding in findings] == [True, True]


def test_job_without_the_lease_removes_nothing(world: RemovalWorld, kind: FindingKind) -> None:
    finding = world.plant(kind, 6)
    with world.access.open_changes("a") as changes:
        with world.access.open_changes("b", overtakes="a"):
            pass
        with pytest.raises(StoreUnavailable, match="lease"):
            changes.remove(kind, [finding])
    assert world.exists(finding)


def test_cluster_that_was_made_anew_is_not_touched(world: RemovalWorld, kind: FindingKind) -> None:
    finding = world.plant(kind, 6)
    with world.access.open_changes("a") as changes:
        world.replace_cluster()
        for act in (changes.look, changes.remove):
            with pytest.raises(PreconditionFailed, match="77aa"):
                act(kind, [finding])
    assert world.exists(finding)


def test_settings_say_what_can_be_reached(world: RemovalWorld) -> None:
    world.plant(_OFFLOAD, 6)
    assert (world.access.has_offload_bucket(), world.access.has_admin_api()) == (True, True)
