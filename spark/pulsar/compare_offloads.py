"""`compare-offloads`: write as candidates the objects and uploads of offloads that neither of two scans refers to.

A complete offload whose objects were not listed is a candidate, too. All candidates come from facts. A later job reads
the objects. One task reads the facts of one group of ledger ids.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import list_cluster_names
from infra.pulsar.offload_store import OffloadStore, open_offload_store
from logstore.positions import LedgerId
from logstore.pulsar.cluster_findings import OWNER, SOURCE
from logstore.pulsar.offload_objects import CLUSTER_FIELD, MIN_OFFLOAD_AGE_S, OffloadKey
from logstore.pulsar.plan_jobs import (
    LISTED,
    OFFLOAD_CLUSTER,
    OFFLOAD_OBJECTS,
    OFFLOADS_BEFORE,
    PROBLEM,
    CompareOffloadsJob,
    ListOffloadsJob,
    ScanClusterJob,
)
from logstore.pulsar.znode_names import MANAGED_LEDGERS
from logstore.reconciliation.bulk_job_inputs_and_results import LEFT_OUT, BulkJobSummary
from logstore.reconciliation.finding_files import FINDINGS_PER_PAGE, write_finding_file
from logstore.reconciliation.findings import Finding, FindingKind
from spark.job_runner import JobContext
from spark.pulsar.cluster_facts import OFFLOADS, require_all_rows
from spark.pulsar.list_offloads import OFFLOADED_OBJECTS
from spark.reconciliation.fact_files import TIERED_OBJECTS, UPLOAD, read_facts, read_grouped_batches

_OFFLOAD_CONTEXT: Final = "offload_context"  # field of a managed ledger
_MAX_SAMPLED_OFFLOADS: Final = 50
ROWS: Final = "rows of "  # prefix of counts of the rows that were read, which are not published

UuidsInUse = Callable[[pa.ChunkedArray], pa.ChunkedArray]
"""Function that returns those uuids that any offload of either scan has, of whatever ledger."""


@dataclass(frozen=True, slots=True)
class OffloadGroup:
    """Facts about one group of ledger ids: objects in the schema `TIERED_OBJECTS`, and `OFFLOADS` of both scans."""

    objects: pa.Table
    first: pa.Table
    second: pa.Table


def compare_offloads(cluster: PulsarCluster, context: JobContext, job: CompareOffloadsJob) -> BulkJobSummary:
    """Compare the listing with both scans.

    Raises:
        PreconditionFailed: Files lack rows that the earlier jobs counted.
    """
    listing = context.get_published_summary(ListOffloadsJob.name)
    scans = [context.get_published_summary(ScanClusterJob(run_id=job.run_id, number=number).name) for number in (1, 2)]
    store = open_offload_store(cluster.offloads)
    age_s = MIN_OFFLOAD_AGE_S if job.older_than_s is None else job.older_than_s
    before_us = int(listing.facts[LISTED]) - round(age_s * 1_000_000)
    name, doubt = _find_cluster_name(cluster, store, Path(scans[1].folder), scans[1].counts["offloads"])
    facts = {OFFLOADS_BEFORE: str(before_us), OFFLOAD_CLUSTER: name}
    if doubt:
        return BulkJobSummary(facts=facts | {f"{PROBLEM}{OFFLOAD_OBJECTS}": doubt})
    groups = min(listing.counts["groups"], scans[0].counts["groups"])
    compare = partial(
        _write_candidates_of_group,
        groups=groups,
        summaries=(listing, scans[0], scans[1]),
        folder=context.folder,
        bucket=store.bucket,
        before_us=before_us,
    )
    totals = sum(context.run_in_executors("compare offloads", list(range(groups)), compare), Counter[str]())
    listed = listing.counts["objects"] + listing.counts["uploads"]
    require_all_rows(ListOffloadsJob.name, {"objects": totals[f"{ROWS}0"]}, {"objects": listed})
    for number, scan in enumerate(scans, start=1):
        require_all_rows(f"scan {number}", {"offloads": totals[f"{ROWS}{number}"]}, scan.counts)
    if totals["elsewhere"]:
        facts[f"{LEFT_OUT}elsewhere"] = f"{totals['elsewhere']:,} offloads in other buckets than {store.bucket}"
    return BulkJobSummary(
        counts={count: number for count, number in totals.items() if not count.startswith(ROWS)}, facts=facts
    )


def _find_cluster_name(cluster: PulsarCluster, store: OffloadStore, scan: Path, offloads: int) -> tuple[str, str]:
    """Return the name that the cluster gives its objects, and an empty text, or else why nothing can be compared.

    Objects of complete offloads are the cluster's own. A sample of them proves the name and the bucket. Objects that an
    early version of Pulsar wrote state no name.
    """
    sample = islice(
        _iterate_complete_offloads(scan, store.bucket), 0, None, max(1, math.ceil(offloads / _MAX_SAMPLED_OFFLOADS))
    )
    keys = [OffloadKey(uuid, ledger_id) for uuid, ledger_id in sample]
    stored = [each for each in map(store.read_object, keys) if each is not None]
    if keys and not stored:
        expected = f"objects of {len(keys):,} complete offloads in bucket {store.bucket}"
        return "", f"expected {expected}, found none. Correct pulsar_offload_bucket, or restore the objects"
    names = {each.get_stated(CLUSTER_FIELD) for each in stored} - {""}
    if not names:
        with cluster.open_configuration_reader(parallel_sessions=1) as reader:
            names = set(list_cluster_names(reader))
    if len(names) != 1:
        expected = "one name of the cluster in its objects, or else in the configuration store"
        advice = "Plan without pulsar_offload_bucket until an offload is complete"
        return "", f"expected {expected}, found {', '.join(sorted(names)) or 'none'}. {advice}"
    return names.pop(), ""


def _iterate_complete_offloads(scan: Path, bucket: str) -> Iterator[tuple[str, int]]:
    for batch in read_grouped_batches(scan, "offloads"):
        rows = _select_complete(pa.Table.from_batches([batch]), bucket)
        yield from zip(rows["uuid"].to_pylist(), rows["ledger_id"].to_pylist(), strict=True)


def _write_candidates_of_group(
    group: int,
    *,
    groups: int,
    summaries: tuple[BulkJobSummary, BulkJobSummary, BulkJobSummary],
    folder: Path,
    bucket: str,
    before_us: int,
) -> Counter[str]:
    """Write the candidates of a group into one file, in an executor. Two runs of a task may overlap."""
    folders = [Path(summary.folder) for summary in summaries]
    tables = [
        _read_group(summary, stem, group, groups, schema)
        for summary, stem, schema in zip(
            summaries, (OFFLOADED_OBJECTS, "offloads", "offloads"), (TIERED_OBJECTS, OFFLOADS, OFFLOADS), strict=True
        )
    ]
    counts = Counter({f"{ROWS}{number}": len(table) for number, table in enumerate(tables)})
    find_uuids = partial(_find_uuids_in_use, scans=(folders[1], folders[2]))
    candidates = find_candidates(OffloadGroup(*tables), bucket, before_us, find_uuids, counts)

    def iterate_pages() -> Iterator[list[Finding]]:
        while page := list(islice(candidates, FINDINGS_PER_PAGE)):
            counts.update(candidate.kind.value for candidate in page)
            yield page

    write_finding_file(folder / f"candidates-{group:03d}.parquet", iterate_pages())
    return counts


def _read_group(summary: BulkJobSummary, stem: str, group: int, groups: int, schema: pa.Schema) -> pa.Table:
    """Read one of `groups` groups from the files of a job, which may have more groups."""
    ratio = summary.counts["groups"] // groups
    parts = range(group * ratio, (group + 1) * ratio)
    return pa.concat_tables(read_facts(Path(summary.folder), stem, part, schema) for part in parts)


def _find_uuids_in_use(uuids: pa.ChunkedArray, *, scans: tuple[Path, Path]) -> pa.ChunkedArray:
    """Read all offloads of both scans once. Memory holds those of `uuids`."""
    batches = chain.from_iterable(read_grouped_batches(scan, "offloads") for scan in scans)
    columns = (batch.column("uuid") for batch in batches)
    return pa.chunked_array([column.filter(pc.is_in(column, value_set=uuids)) for column in columns], pa.string())


def find_candidates(
    group: OffloadGroup, bucket: str, before_us: int, find_uuids_in_use: UuidsInUse, counts: Counter[str]
) -> Iterator[Finding]:
    """Yield the candidates of a group. Add to `counts` what is no candidate: `young` attempts, offloads `elsewhere`."""
    counts["elsewhere"] += len(group.second) - len(_select_bucket(group.second, bucket))
    yield from _find_unreferenced(group, before_us, find_uuids_in_use, counts)
    yield from _find_missing(group, bucket)


def _find_unreferenced(
    group: OffloadGroup, before_us: int, find_uuids_in_use: UuidsInUse, counts: Counter[str]
) -> Iterator[Finding]:
    named = pa.chunked_array([*group.first["uuid"].chunks, *group.second["uuid"].chunks], pa.string())
    objects = group.objects.filter(pc.invert(pc.is_in(group.objects["uuid"], value_set=named)))
    objects = objects.append_column("is_upload", pc.equal(objects["part"], UPLOAD))
    aggregates = [("size_bytes", "sum"), ("modified_us", "max"), ("part", "count")]
    attempts = objects.group_by(["ledger_id", "bucket", "uuid", "is_upload"]).aggregate(aggregates)
    old = attempts.filter(pc.less(attempts["modified_us_max"], before_us))
    counts["young"] += len(attempts) - len(old)
    if not len(old):
        return
    owner_by_ledger = _find_sole_owners(group.second)
    unused = old.filter(pc.invert(pc.is_in(old["uuid"], value_set=find_uuids_in_use(old["uuid"]))))
    for batch in unused.to_batches(max_chunksize=FINDINGS_PER_PAGE):
        for row in batch.to_pylist():
            yield _make_candidate(row, owner_by_ledger.get(row["ledger_id"], ""))


def _find_sole_owners(offloads: pa.Table) -> dict[int, str]:
    """Return the managed ledger of each ledger that has an offload, unless several managed ledgers list the ledger."""
    owners = offloads.group_by("ledger_id").aggregate([("managed_ledger", "min"), ("managed_ledger", "max")])
    sole = owners.filter(pc.equal(owners["managed_ledger_min"], owners["managed_ledger_max"]))
    return dict(zip(sole["ledger_id"].to_pylist(), sole["managed_ledger_min"].to_pylist(), strict=True))


def _make_candidate(row: dict[str, Any], owner: str) -> Finding:
    """Make a candidate of an attempt. An upload has no metadata: its owner is known only by the ledger's id."""
    is_upload = row["is_upload"]
    return Finding(
        kind=FindingKind.ABANDONED_UPLOAD if is_upload else FindingKind.ORPHAN_OFFLOAD,
        ledger_id=LedgerId(row["ledger_id"]),
        bucket=row["bucket"],
        key=str(OffloadKey(row["uuid"], row["ledger_id"])),
        uuid=row["uuid"],
        objects=row["part_count"],
        size_bytes=row["size_bytes_sum"],
        newest_us=row["modified_us_max"],
        statement={OWNER: f"{MANAGED_LEDGERS}/{owner}"} if is_upload and owner else {},
        detail="nothing refers to it",
    )


def _find_missing(group: OffloadGroup, bucket: str) -> Iterator[Finding]:
    """Yield complete offloads of both scans whose objects were not both listed."""
    keys = ["ledger_id", "managed_ledger", "uuid"]
    complete = _select_complete(group.second, bucket)
    complete = complete.join(_select_complete(group.first, bucket).select(keys), keys, join_type="left semi")
    listed = [group.objects.filter(pc.equal(group.objects["part"], part))["uuid"] for part in ("data", "index")]
    is_listed = pc.and_(*(pc.is_in(complete["uuid"], value_set=uuids) for uuids in listed))
    for row in complete.filter(pc.invert(is_listed)).to_pylist():
        yield Finding(
            kind=FindingKind.DANGLING_REFERENCE if row["bookkeeper_deleted"] else FindingKind.HAZARD,
            ledger_id=LedgerId(row["ledger_id"]),
            bucket=bucket,
            key=f"/{MANAGED_LEDGERS}/{row['managed_ledger']}",
            uuid=row["uuid"],
            statement={OWNER: f"{MANAGED_LEDGERS}/{row['managed_ledger']}", SOURCE: _OFFLOAD_CONTEXT},
            detail="an object of a complete offload was not listed",
        )


def _select_bucket(offloads: pa.Table, bucket: str) -> pa.Table:
    return offloads.filter(pc.equal(offloads["bucket"], bucket))


def _select_complete(offloads: pa.Table, bucket: str) -> pa.Table:
    """Return the complete offloads in the bucket. Keys of a streaming offload name no ledger and are left out."""
    in_bucket = _select_bucket(offloads, bucket)
    return in_bucket.filter(pc.and_not(in_bucket["complete"], in_bucket["is_segment"]))
