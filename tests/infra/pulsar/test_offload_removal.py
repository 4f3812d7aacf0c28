"""Objects and uploads of offloads are removed for good, on a real ZooKeeper and a real SeaweedFS.

Whatever differs from the plan, and whatever may need them, stops the removal of the whole batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.objects.s3_store import BucketAddress
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_changes import LeasedClusterChanges, open_cluster_changes
from infra.pulsar.cluster_lease import LeaseLost
from infra.pulsar.offload_removal import OffloadRemoval
from infra.pulsar.offload_store import OffloadStore, open_offload_store
from infra.pulsar.offload_verification import OffloadVerifier
from infra.pulsar.znode_reads import ZnodeReader
from infra.stack.embedded_stack import StackAddresses
from logstore.errors import InvalidInput, StoreUnavailable, UnexpectedClusterState, UnreadableClusterState
from logstore.ports.pulsar_cluster import RemovalLook, RemovalResult
from logstore.positions import LedgerId
from logstore.pulsar.offload_objects import OffloadKey, OffloadRole
from logstore.reconciliation.findings import Finding, FindingFate, FindingKind
from tests.infra.objects.peer import Answer, Request, deleted, fault, scripted
from tests.infra.objects.test_store import store_at
from tests.infra.pulsar.offloads import CLUSTER, TOPIC, begin_upload, create_offload_bucket, put_objects, state
from tests.infra.pulsar.planted_orphans import OF_TOPIC, write
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_UUIDS = [f"{digit}fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d" for digit in range(1, 4)]
_OFFLOAD, _UPLOAD = FindingKind.ORPHAN_OFFLOAD, FindingKind.ABANDONED_UPLOAD
_DELETED = RemovalResult(fate=FindingFate.DELETED)
_HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadWorld:
    """A cluster with a bucket of offloads, and a plan's verifier of candidates."""

    client: KazooClient
    address: PulsarCluster
    store: OffloadStore
    reader: ZnodeReader

    def plan_offload(self, uuid: str = _UUIDS[0]) -> Finding:
        """Return the orphan objects of a uuid as a plan finds them."""
        key = OffloadKey(uuid, 7)
        listed = list(self.store.objects.list(uuid))
        return self._verify(
            Finding(
                kind=_OFFLOAD,
                ledger_id=LedgerId(7),
                bucket=self.store.bucket,
                key=str(key),
                uuid=uuid,
                size_bytes=sum(info.size_bytes for info in listed),
                newest_us=max(info.modified_us or 0 for info in listed),
            )
        )

    def plan_upload(self, uuid: str = _UUIDS[0], owner: str = "") -> Finding:
        """Return the abandoned uploads of a uuid as a plan finds them."""
        statement = {"owner": f"managed-ledgers/{owner}"} if owner else {}
        key = str(OffloadKey(uuid, 7))
        return self._verify(
            Finding(
                kind=_UPLOAD, ledger_id=LedgerId(7), bucket=self.store.bucket, key=key, uuid=uuid, statement=statement
            )
        )

    def _verify(self, candidate: Finding) -> Finding:
        before_us = self.store.read_clock_us() + _HOUR_US
        verifier = OffloadVerifier(self.store, self.reader, cluster=CLUSTER, before_us=before_us)
        (finding,) = verifier.verify([candidate]).findings
        return finding

    def keep_versions(self) -> None:
        self.store.objects.client.put_bucket_versioning(
            Bucket=self.store.bucket, VersioningConfiguration={"Status": "Enabled"}
        )

    def list_keys(self) -> list[str]:
        return [info.key for info in self.store.objects.list("")]

    def list_versions(self) -> list[str]:
        listed = self.store.objects.client.list_object_versions(Bucket=self.store.bucket)
        return [each["Key"] for each in (*listed.get("Versions", ()), *listed.get("DeleteMarkers", ()))]

    def offload(self, uuid: str, *, path: str = f"managed-ledgers/{TOPIC}", shadow: str = "") -> None:
        """Let a managed ledger name the uuid."""
        context = wire.offload_context(UUID(uuid), complete=False)
        write(self.client, path, wire.managed_ledger([7], offloads={7: context}, shadow=shadow))

    @contextmanager
    def open(self, *shadow_topics: str) -> Iterator[LeasedClusterChanges]:
        with open_cluster_changes(self.address, "a", shadow_topics=shadow_topics) as changes:
            yield changes


@pytest.fixture
def world(
    cluster: KazooClient, ensemble: EnsembleOptions, reader: ZnodeReader, servers: StackAddresses
) -> OffloadWorld:
    write(cluster, "ledgers/INSTANCEID", b"5f0a")
    write(cluster, "managed-ledgers")
    bucket: BucketAddress = create_offload_bucket(servers)
    address = PulsarCluster(zookeeper=ensemble.hosts, session_timeout_s=4, offloads=bucket)
    return OffloadWorld(client=cluster, address=address, store=open_offload_store(bucket), reader=reader)


def put_pair(world: OffloadWorld, uuid: str = _UUIDS[0]) -> Finding:
    put_objects(world.store, OffloadKey(uuid, 7))
    return world.plan_offload(uuid)


def test_both_objects_are_removed_and_others_stay(world: OffloadWorld) -> None:
    findings = [put_pair(world, uuid) for uuid in _UUIDS[:2]]
    put_objects(world.store, OffloadKey(_UUIDS[2], 7))
    with world.open() as changes:
        looks = changes.look(_OFFLOAD, findings)
        assert [part["key"] for part in looks[0].parts] == [findings[0].key, f"{findings[0].key}-index"]
        assert changes.remove(_OFFLOAD, findings) == [_DELETED, _DELETED]
        assert world.list_keys() == [str(OffloadKey(_UUIDS[2], 7, role)) for role in OffloadRole]
        assert changes.look(_OFFLOAD, findings) == [RemovalLook(), RemovalLook()]
        assert changes.remove(_OFFLOAD, findings) == [_DELETED, _DELETED], "again"


def test_half_of_a_pair_that_an_attempt_left_is_removed(world: OffloadWorld) -> None:
    finding = put_pair(world)
    world.store.objects.delete([finding.key])
    with world.open() as changes:
        assert changes.remove(_OFFLOAD, [finding]) == [_DELETED]
    assert world.list_keys() == []


def test_version_of_a_versioned_bucket_is_removed_without_a_delete_marker(world: OffloadWorld) -> None:
    world.keep_versions()
    finding = put_pair(world)
    with world.open() as changes:
        assert changes.remove(_OFFLOAD, [finding]) == [_DELETED]
    assert world.list_versions() == []


def rewrite_with_same_size(world: OffloadWorld) -> None:
    key = str(OffloadKey(_UUIDS[0], 7))
    world.store.objects.client.put_object(
        Bucket=world.store.bucket, Key=key, Body=b"x" * 100, Metadata=state(OffloadRole.DATA.value)
    )


def rewrite_longer(world: OffloadWorld) -> None:
    key = str(OffloadKey(_UUIDS[0], 7, OffloadRole.INDEX))
    world.store.objects.client.put_object(
        Bucket=world.store.bucket, Key=key, Body=b"x" * 21, Metadata=state(OffloadRole.INDEX.value)
    )


_CHANGES = {"another etag": rewrite_with_same_size, "another size": rewrite_longer}


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES.keys())
def test_object_that_differs_from_the_plan_stops_the_whole_batch(
    world: OffloadWorld, change: Callable[[OffloadWorld], None], versioned: bool
) -> None:
    if versioned:
        world.keep_versions()
    findings = [put_pair(world, uuid) for uuid in _UUIDS[:2]]
    change(world)
    with world.open() as changes:
        for act in (changes.look, changes.remove):
            with pytest.raises(UnexpectedClusterState, match=f"{_UUIDS[0]}.*expected"):
                act(_OFFLOAD, findings)
    assert len(world.list_keys()) == 4


def test_equal_object_in_another_version_is_a_surprise(world: OffloadWorld) -> None:
    """The bytes are those of the plan. Another version means that somebody else writes the key."""
    world.keep_versions()
    finding = put_pair(world)
    put_objects(world.store, OffloadKey(_UUIDS[0], 7))
    with world.open() as changes, pytest.raises(UnexpectedClusterState, match="version_id"):
        changes.remove(_OFFLOAD, [finding])
    assert len(world.list_versions()) == 4


def test_older_version_is_a_surprise(world: OffloadWorld) -> None:
    """An offload writes each key once."""
    world.keep_versions()
    put_objects(world.store, OffloadKey(_UUIDS[0], 7))
    finding = put_pair(world)
    with world.open() as changes, pytest.raises(UnexpectedClusterState, match=r"expected the version .* only"):
        changes.remove(_OFFLOAD, [finding])
    assert len(world.list_versions()) == 4


def test_metadata_of_another_cluster_are_a_surprise(world: OffloadWorld) -> None:
    finding = put_pair(world)
    foreign = replace(finding, statement={**finding.statement, "cluster": "there"})
    with world.open() as changes, pytest.raises(UnexpectedClusterState, match='expected "there", found "here"'):
        changes.remove(_OFFLOAD, [foreign])
    moved = replace(finding, statement={**finding.statement, "owner": "managed-ledgers/t/ns/persistent/b"})
    with world.open() as changes, pytest.raises(UnexpectedClusterState, match="persistent/b, found"):
        changes.remove(_OFFLOAD, [moved])
    assert len(world.list_keys()) == 2


def test_managed_ledger_that_names_another_offload_does_not_need_it(world: OffloadWorld) -> None:
    world.offload(_UUIDS[1])
    finding = put_pair(world)
    with world.open() as changes:
        assert changes.remove(_OFFLOAD, [finding]) == [_DELETED]


@pytest.mark.parametrize("kind", [_OFFLOAD, _UPLOAD])
def test_managed_ledger_or_shadow_topic_that_names_the_uuid_stops_the_removal(
    world: OffloadWorld, kind: FindingKind
) -> None:
    shadow = "t/ns/persistent/shadow"
    put_objects(world.store, OffloadKey(_UUIDS[0], 7))
    begin_upload(world.store, OffloadKey(_UUIDS[0], 7))
    finding = world.plan_offload() if kind is _OFFLOAD else world.plan_upload(owner=TOPIC)
    world.offload(_UUIDS[0], path=f"managed-ledgers/{shadow}", shadow="persistent://t/ns/a")
    with world.open(shadow) as changes, pytest.raises(UnexpectedClusterState, match=r"found one in .*/shadow"):
        changes.remove(kind, [finding])
    world.client.delete(f"/managed-ledgers/{shadow}")
    world.offload(_UUIDS[0])
    with world.open() as changes, pytest.raises(UnexpectedClusterState, match=f"found one in /managed-ledgers/{TOPIC}"):
        changes.remove(kind, [finding])
    world.client.set(f"/managed-ledgers/{TOPIC}", b"\xff")
    with world.open() as changes, pytest.raises(UnreadableClusterState, match=f"/managed-ledgers/{TOPIC}"):
        changes.remove(kind, [finding])
    assert len(world.list_keys()) == 2
    assert len(world.store.read_uploads(OffloadKey(_UUIDS[0], 7))) == 1


def test_all_uploads_of_the_plan_are_aborted_and_others_stay(world: OffloadWorld) -> None:
    key = OffloadKey(_UUIDS[0], 7)
    for attempt, parts in ((key, 2), (key, 0), (OffloadKey(_UUIDS[0], 71), 1)):
        begin_upload(world.store, attempt, parts=parts)
    finding = world.plan_upload()
    assert finding.objects == 2
    with world.open() as changes:
        assert changes.remove(_UPLOAD, [finding]) == [_DELETED]
        assert changes.remove(_UPLOAD, [finding]) == [_DELETED], "again"
        assert changes.look(_UPLOAD, [finding]) == [RemovalLook()]
    assert not world.store.read_uploads(key)
    assert len(world.store.read_uploads(OffloadKey(_UUIDS[0], 71))) == 1


def test_upload_that_goes_on_or_another_one_is_a_surprise(world: OffloadWorld) -> None:
    key = OffloadKey(_UUIDS[0], 7)
    upload_id = begin_upload(world.store, key)
    finding = world.plan_upload()
    another_id = begin_upload(world.store, key)
    with world.open() as changes, pytest.raises(UnexpectedClusterState, match=another_id):
        changes.remove(_UPLOAD, [finding])
    client, bucket = world.store.objects.client, world.store.bucket
    client.abort_multipart_upload(Bucket=bucket, Key=str(key), UploadId=another_id)
    client.upload_part(Bucket=bucket, Key=str(key), UploadId=upload_id, PartNumber=2, Body=b"p")
    with world.open() as changes, pytest.raises(UnexpectedClusterState, match="1001"):
        changes.remove(_UPLOAD, [finding])
    assert len(world.store.read_uploads(key)) == 1


def test_upload_without_an_owner_belongs_to_the_topic_of_its_ledger(world: OffloadWorld) -> None:
    """The managed ledger began to name the uuid after the plan, which knew no owner of the upload."""
    key = OffloadKey(_UUIDS[0], 7)
    begin_upload(world.store, key)
    finding = world.plan_upload()
    assert finding.statement["owner"] == ""
    write(
        world.client, "ledgers/00/0000/L0007", wire.ledger_metadata(custom={**OF_TOPIC, "pulsar/managed-ledger": TOPIC})
    )
    world.offload(_UUIDS[0])
    with world.open() as changes, pytest.raises(UnexpectedClusterState, match=f"found one in /managed-ledgers/{TOPIC}"):
        changes.remove(_UPLOAD, [finding])
    world.client.set("/ledgers/00/0000/L0007", b"?")
    with world.open() as changes, pytest.raises(UnreadableClusterState, match="/ledgers/00/0000/L0007"):
        changes.remove(_UPLOAD, [finding])
    assert len(world.store.read_uploads(key)) == 1


def test_nothing_is_removed_without_the_lease(world: OffloadWorld) -> None:
    finding = put_pair(world)
    with world.open() as changes:
        with world.open():
            pass
        with pytest.raises(LeaseLost):
            changes.remove(_OFFLOAD, [finding])
    assert len(world.list_keys()) == 2


def test_other_bucket_than_that_of_the_plan_stops_the_apply_for_now(world: OffloadWorld) -> None:
    """Nothing of the plan is in it, so that each finding would count as removed by an earlier attempt."""
    finding = replace(put_pair(world), bucket="planned")
    with world.open() as changes:
        for act in (changes.look, changes.remove):
            with pytest.raises(UnreadableClusterState, match="expected bucket planned, found pulsar_offload_bucket"):
                act(_OFFLOAD, [finding])
    assert len(world.list_keys()) == 2


def test_cluster_without_a_bucket_is_refused_by_the_name_of_the_setting(world: OffloadWorld) -> None:
    finding = put_pair(world)
    address = replace(world.address, offloads=None)
    with open_cluster_changes(address, "a") as changes, pytest.raises(InvalidInput, match="pulsar_offload_bucket"):
        changes.remove(_OFFLOAD, [finding])


_DATA = {"key": "k", "version_id": None, "etag": "e", "size_bytes": 1, "modified_us": 1}
_LOOKS = [RemovalLook(parts=({**_DATA, "key": str(OffloadKey(uuid, 7))},)) for uuid in _UUIDS[:2]]
_KEYS = [str(look.parts[0]["key"]) for look in _LOOKS]


def remove_from_peer(
    reader: ZnodeReader, script: Callable[[Request], Answer], looks: list[RemovalLook]
) -> list[RemovalResult]:
    with scripted(script) as peer:
        return OffloadRemoval(OffloadStore(store_at(peer)), reader, "ledgers", ()).delete_objects(looks)


def test_error_of_one_key_becomes_the_fate_of_its_finding(reader: ZnodeReader) -> None:
    def script(request: Request) -> Answer:
        if request.is_bulk_delete:
            return deleted(_KEYS[1], errors={_KEYS[0]: "AccessDenied"})
        return fault(404, "NoSuchKey")

    refused, removed = remove_from_peer(reader, script, _LOOKS)
    assert (refused.fate, removed.fate) == (FindingFate.FAILED, FindingFate.DELETED)
    assert refused.reason == f"{_KEYS[0]}: AccessDenied: scripted"


@pytest.mark.parametrize("version_id", [None, "v1"])
def test_temporary_error_of_a_key_is_no_answer(reader: ZnodeReader, version_id: str | None) -> None:
    looks = [RemovalLook(parts=({**look.parts[0], "version_id": version_id},)) for look in _LOOKS]
    with pytest.raises(StoreUnavailable):
        remove_from_peer(reader, lambda _: fault(503, "SlowDown"), looks)


def test_errors_of_versions_are_read_per_key(reader: ZnodeReader) -> None:
    def script(request: Request) -> Answer:
        if request.is_bulk_delete:
            assert b"<VersionId>v1</VersionId>" in request.body
            return deleted(_KEYS[1], errors={_KEYS[0]: "AccessDenied"})
        return Answer(200, b"<ListVersionsResult><IsTruncated>false</IsTruncated></ListVersionsResult>")

    looks = [RemovalLook(parts=({**look.parts[0], "version_id": "v1"},)) for look in _LOOKS]
    refused, removed = remove_from_peer(reader, script, looks)
    assert (refused.fate, removed.fate) == (FindingFate.FAILED, FindingFate.DELETED)
    with pytest.raises(StoreUnavailable, match="InternalError"):
        remove_from_peer(reader, lambda _: deleted(_KEYS[1], errors={_KEYS[0]: "InternalError"}), looks)


def test_object_that_outlives_its_confirmed_deletion_is_named(reader: ZnodeReader) -> None:
    def script(request: Request) -> Answer:
        if request.is_bulk_delete:
            return deleted(*_KEYS)
        headers = {"ETag": '"e"', "Content-Length": "1"}
        return Answer(200, b"d", headers)

    results = remove_from_peer(reader, script, _LOOKS[:1])
    assert results[0].reason == f"{_KEYS[0]}: the store confirmed its deletion, and still has it"
