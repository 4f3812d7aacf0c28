"""The jobs about offloads on a real ZooKeeper and a real SeaweedFS, and on listings that lie."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.objects.s3_store import BucketAddress
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.offload_store import OffloadStore, open_offload_store
from infra.pulsar.offload_verification import is_about_offload, open_offload_verifier
from infra.stack.embedded_stack import StackAddresses
from logstore.errors import (
    InvalidInput,
    ServiceRefused,
    SextonError,
    StoreUnavailable,
    Unsupported,
)
from logstore.pulsar.offload_objects import OffloadKey
from logstore.pulsar.plan_jobs import (
    OFFLOAD_CLUSTER,
    PROBLEM,
    CompareOffloadsJob,
    CompareScansJob,
    ListOffloadsJob,
    ScanClusterJob,
    VerifyClusterJob,
)
from logstore.reconciliation.bulk_job_inputs_and_results import LEFT_OUT, BulkJobSummary
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import Finding, FindingKind
from spark.job_mains import cluster_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession
from tests.infra.objects.peer import Answer, Request, fault, listing, scripted
from tests.infra.pulsar.conftest import cluster, ensemble, zookeeper
from tests.infra.pulsar.offloads import CLUSTER, TOPIC, begin_upload, create_offload_bucket, put_objects
from tests.logstore.pulsar import wire

__all__ = ["cluster", "ensemble", "zookeeper"]

pytestmark = pytest.mark.external_service

_UUIDS = {
    name: f"{number}fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d"
    for number, name in enumerate(("live", "lost", "early", "late", "gone"), start=1)
}
_RUN = "run"
_NOTHING: Callable[[], None] = lambda: None  # noqa: E731 - a default
_AT_ONCE = -3_600.0  # an age that objects of this moment have

Plan = Callable[..., dict[str, BulkJobSummary]]


def attempt(name: str, ledger_id: int) -> OffloadKey:
    return OffloadKey(_UUIDS[name], ledger_id)


@pytest.fixture
def address(servers: StackAddresses) -> BucketAddress:
    return create_offload_bucket(servers)


@pytest.fixture
def store(address: BucketAddress) -> OffloadStore:
    return open_offload_store(address)


@pytest.fixture
def plan(warm: WarmSession, ensemble: EnsembleOptions, tmp_path: Path, address: BucketAddress) -> Plan:
    """Run the jobs of one plan. Something may happen after the listing, and before the comparison."""

    def run(
        after_listing: Callable[[], None] = _NOTHING,
        before_comparison: Callable[[], None] = _NOTHING,
        offloads: BucketAddress | None = address,
        older_than_s: float | None = _AT_ONCE,
        is_verified: bool = False,
    ) -> dict[str, BulkJobSummary]:
        access = PulsarCluster(zookeeper=ensemble.hosts, session_timeout_s=10, offloads=offloads)
        jobs = SparkBulkJobs(warm, PublishedOutputs(tmp_path / "bulk"), lambda: cluster_job_mains(access))
        happen: dict[str, Callable[[], None]] = {"list-offloads": after_listing, "scan-cluster-2": before_comparison}
        summaries = {}
        for job in (
            ListOffloadsJob(run_id=_RUN),
            ScanClusterJob(run_id=_RUN, number=1),
            ScanClusterJob(run_id=_RUN, number=2),
            CompareOffloadsJob(run_id=_RUN, older_than_s=older_than_s),
            *(
                (CompareScansJob(run_id=_RUN, between_s=0), VerifyClusterJob(run_id=_RUN, has_offloads=True))
                if is_verified
                else ()
            ),
        ):
            summaries[job.name] = jobs.run_job(job, lambda _: None)
            happen.get(job.name, _NOTHING)()
        return summaries

    return run


def write_topic(cluster: KazooClient, bucket: str, *names: str) -> None:
    """Write the topic with a complete offload for each name, of the ledgers 1, 2 and so on."""
    uuids = {ledger_id: UUID(_UUIDS[name]) for ledger_id, name in enumerate(names, start=1)}
    contexts = {
        ledger_id: wire.offload_context(uuid, complete=True, bookkeeper_deleted=True, bucket=bucket)
        for ledger_id, uuid in uuids.items()
    }
    path = f"/managed-ledgers/{TOPIC}"
    cluster.ensure_path(path)
    cluster.set(path, wire.managed_ledger(list(uuids), offloads=contexts))


def fill(cluster: KazooClient, store: OffloadStore) -> None:
    """A topic with three complete offloads, one of them without objects, and what others left in the bucket.

    The objects of the third offload state no cluster, as those of an early version of Pulsar.
    """
    cluster.ensure_path("/ledgers/00/0000")
    cluster.ensure_path("/admin/clusters/elsewhere")
    cluster.ensure_path("/admin/policies/t/ns")
    write_topic(cluster, store.bucket, "live", "lost", "early")
    put_objects(store, attempt("live", 1))
    put_objects(store, attempt("early", 3), metadata={"role": "data"})
    put_objects(store, attempt("gone", 4), managed_ledger="t/ns/persistent/gone")
    put_objects(store, attempt("gone", 5), cluster="elsewhere")
    begin_upload(store, attempt("gone", 6))
    for key in ("readme.txt", _UUIDS["gone"], f"{_UUIDS['gone']}-index", "0/1-ledger-2"):
        store.objects.client.put_object(Bucket=store.bucket, Key=key, Body=b"")


def candidates_of(summaries: dict[str, BulkJobSummary]) -> list[Finding]:
    return [each for _, each in FindingFiles(Path(summaries["compare-offloads"].folder)).iterate_findings()]


def keys_of(findings: list[Finding], kind: FindingKind) -> set[str]:
    return {finding.key for finding in findings if finding.kind is kind}


def test_what_others_left_in_the_bucket_is_found_and_nothing_else(
    cluster: KazooClient, store: OffloadStore, address: BucketAddress, ensemble: EnsembleOptions, plan: Plan
) -> None:
    """After the listing, a broker offloads another ledger."""
    fill(cluster, store)

    def happen() -> None:
        write_topic(cluster, store.bucket, "live", "lost", "early", "late")
        put_objects(store, attempt("late", 4))

    summaries = plan(happen, is_verified=True)
    counts = summaries["list-offloads"].counts
    assert (counts["objects"], counts["uploads"], counts["foreign"]) == (8, 1, 4)
    assert summaries["compare-offloads"].facts[OFFLOAD_CLUSTER] == CLUSTER
    candidates = candidates_of(summaries)
    assert keys_of(candidates, FindingKind.ORPHAN_OFFLOAD) == {str(attempt("gone", 4)), str(attempt("gone", 5))}
    assert keys_of(candidates, FindingKind.ABANDONED_UPLOAD) == {str(attempt("gone", 6))}
    dangling = {found.uuid for found in candidates if found.kind is FindingKind.DANGLING_REFERENCE}
    assert dangling == {_UUIDS["lost"], _UUIDS["late"]}, "objects of the late offload were not listed"
    access = PulsarCluster(zookeeper=ensemble.hosts, session_timeout_s=10)
    with access.open_reader(parallel_sessions=1) as reader:
        verifier = open_offload_verifier(address, reader, summaries["compare-offloads"].facts)
        verification = verifier.verify(candidates)
    assert verification.findings == [
        found
        for _, found in FindingFiles(Path(summaries["verify-cluster"].folder)).iterate_findings()
        if is_about_offload(found)
    ]
    kinds = {(found.kind, found.uuid, found.ledger_id) for found in verification.findings}
    assert kinds == {
        (FindingKind.ORPHAN_OFFLOAD, _UUIDS["gone"], 4),
        (FindingKind.ABANDONED_UPLOAD, _UUIDS["gone"], 6),
        (FindingKind.DANGLING_REFERENCE, _UUIDS["lost"], 2),
    }
    assert verification.dropped == {"foreign": 1, "objects_present": 1}


def test_objects_of_less_than_a_day_are_counted_only(cluster: KazooClient, store: OffloadStore, plan: Plan) -> None:
    fill(cluster, store)
    summaries = plan(older_than_s=None)
    assert {found.kind for found in candidates_of(summaries)} == {FindingKind.DANGLING_REFERENCE}
    assert summaries["compare-offloads"].counts["young"] == 3


def test_a_bucket_without_any_object_of_a_sample_is_taken_for_another_one(
    cluster: KazooClient, store: OffloadStore, plan: Plan
) -> None:
    fill(cluster, store)
    write_topic(cluster, store.bucket, "lost", "late")
    summary = plan()["compare-offloads"]
    problem = summary.facts[f"{PROBLEM}objects of offloads"]
    assert problem.startswith(f"expected objects of 2 complete offloads in bucket {store.bucket}, found none. Correct")
    assert not [name for name in summary.facts if name.startswith(LEFT_OUT)]
    assert not list(FindingFiles(Path(summary.folder)).iterate_findings())


@pytest.mark.parametrize(("names", "is_known"), [(["here"], True), (["here", "elsewhere"], False), ([], False)])
def test_without_complete_offloads_the_name_is_the_only_one_of_the_configuration_store(
    names: list[str], is_known: bool, cluster: KazooClient, store: OffloadStore, plan: Plan
) -> None:
    cluster.ensure_path("/ledgers/00/0000")
    for name in ("global", *names):
        cluster.ensure_path(f"/admin/clusters/{name}")
    write_topic(cluster, store.bucket)
    put_objects(store, attempt("gone", 4))
    summaries = plan()
    assert summaries["compare-offloads"].facts[OFFLOAD_CLUSTER] == ("here" if is_known else "")
    assert len(candidates_of(summaries)) == int(is_known)
    problem = summaries["compare-offloads"].facts.get(f"{PROBLEM}objects of offloads", "")
    assert is_known or f"found {', '.join(sorted(names)) or 'none'}" in problem
    assert bool(problem) is not is_known


def test_offloads_in_another_bucket_are_left_out_and_counted(
    cluster: KazooClient, store: OffloadStore, plan: Plan
) -> None:
    cluster.ensure_path("/ledgers/00/0000")
    cluster.ensure_path(f"/admin/clusters/{CLUSTER}")
    write_topic(cluster, "other", "live", "lost")
    summaries = plan()
    assert candidates_of(summaries) == []
    assert summaries["compare-offloads"].facts[f"{LEFT_OUT}elsewhere"].startswith("2 offloads")


def test_a_cluster_without_a_bucket_is_refused(plan: Plan) -> None:
    with pytest.raises(InvalidInput, match="pulsar_offload_bucket"):
        plan(offloads=None)


_KEY = str(attempt("gone", 4))
_FAULTS: dict[str, tuple[Answer, Answer, type[SextonError]]] = {
    "truncated without a way to the rest": (listing(_KEY, truncated=True), listing(), StoreUnavailable),
    "a page twice": (listing(_KEY, truncated=True, token="t"), listing(_KEY), Unsupported),
    "refused half way": (listing(_KEY, truncated=True, token="t"), fault(403, "AccessDenied"), ServiceRefused),
    "no bucket half way": (listing(_KEY, truncated=True, token="t"), fault(404, "NoSuchBucket"), ServiceRefused),
}


@pytest.mark.parametrize("name", _FAULTS)
def test_a_listing_that_is_not_whole_publishes_nothing(
    name: str, cluster: KazooClient, plan: Plan, tmp_path: Path
) -> None:
    cluster.ensure_path("/ledgers/00/0000")
    first, then, error = _FAULTS[name]

    def script(request: Request) -> Answer:
        if "uploads" in request.query:
            return Answer(
                200, b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"
            )
        if request.query.get("prefix") != _KEY[0]:
            return replace_date(listing())
        return then if "continuation-token" in request.query else first

    with scripted(script) as peer, pytest.raises(error):
        plan(offloads=BucketAddress("offloads", "bucket", peer.endpoint, "us-east-1", "key", "secret"))
    assert not list((tmp_path / "bulk").glob(f"{_RUN}/*.json"))


def replace_date(answer: Answer) -> Answer:
    """The clock of the store is a header of its answers."""
    return Answer(answer.status, answer.body, {**answer.headers, "Date": "Fri, 27 Nov 2026 10:00:00 GMT"})
