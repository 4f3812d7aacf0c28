"""`scan-cluster`: write facts about every ledger of a Pulsar cluster, then about every reference to a ledger.

Ledgers come first. A ledger that is born later is in no fact. The reference of a ledger that was there exists when
references are read, unless the ledger is young.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import read_cluster_identity
from infra.pulsar.cluster_clock import read_cluster_clock_ms, read_worker_clock_ms
from infra.pulsar.compacted_ledgers import resolve_compaction_cursors
from infra.pulsar.ledger_scan import list_leaf_folders, list_locked_ledgers, scan_leaf_folders
from infra.pulsar.reference_scan import list_namespaces, list_schema_tenants, scan_references
from infra.pulsar.scan_facts import LedgerReference, OffloadReference, ScannedManagedLedger
from infra.pulsar.scan_problem import ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import PreconditionFailed
from logstore.pulsar.plan_jobs import IDENTITY, LEDGERS_ROOT, PROBLEM, ScanClusterJob
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from spark.job_runner import JobContext
from spark.pulsar import cluster_facts
from spark.reconciliation.fact_files import write_ungrouped_facts

_TASKS_PER_CORE: Final = 4  # enough to even out tasks of different lengths
_MAX_REASONS: Final = 100  # problems in the summary; the files have all of them

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _LedgerTask:
    number: int
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ReferenceTask:
    number: int
    namespaces: tuple[str, ...] = ()
    schema_tenants: tuple[str, ...] = ()
    has_logs: bool = False


@dataclass(frozen=True, slots=True)
class _ScanTarget:
    cluster: PulsarCluster
    folder: Path
    groups: int
    parallel_tasks: int  # at most, at the same time

    def open_reader(self) -> AbstractContextManager[ZnodeReader]:
        return self.cluster.open_reader(parallel_sessions=self.parallel_tasks)

    def open_rows(self, stem: str, task: int, schema: pa.Schema) -> cluster_facts.GroupedRows:
        return cluster_facts.GroupedRows(self.folder, stem, task, schema, self.groups)

    def write_rows(self, stem: str, task: int, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> None:
        batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
        write_ungrouped_facts(self.folder, stem, task, [batch], schema)


@dataclass(frozen=True, slots=True)
class _ScanCounts:
    """Rows that one task wrote, by their kind, and some of its problems."""

    rows: Counter[str] = field(default_factory=Counter)
    problems: tuple[ScanProblem, ...] = ()
    newest_change_ms: int = 0  # by the clock of ZooKeeper's server


def scan_cluster(cluster: PulsarCluster, context: JobContext, job: ScanClusterJob) -> BulkJobSummary:
    """Scan in executors. Each task has a session of its own. A problem makes the scan incomplete, and does not end it.

    Raises:
        UnreadableMetadata: The layout of the ledgers is unknown.
        PreconditionFailed: The cluster has no namespaces with managed ledgers in ZooKeeper, or is another one at the
            end of the scan.
        StoreUnavailable: ZooKeeper does not answer.
    """
    begun_ms, root = read_worker_clock_ms(), cluster.ledgers_root
    cores = context.spark.sparkContext.defaultParallelism
    parts = cores * _TASKS_PER_CORE
    with cluster.open_reader() as reader:
        identity = read_cluster_identity(reader, root)
        leaf_folders = list_leaf_folders(reader, root)
    target = _ScanTarget(cluster, context.folder, _choose_groups(context, job, len(leaf_folders)), cores)
    ledger_tasks = [_LedgerTask(number, part) for number, part in enumerate(_split(leaf_folders, parts))]
    results = context.run_in_executors("scan ledgers", ledger_tasks, partial(_write_ledger_facts, target=target))
    with cluster.open_reader() as reader:
        locked = [{"ledger_id": ledger_id} for ledger_id in list_locked_ledgers(reader, root)]
        reference_tasks = _make_reference_tasks(reader, parts)
    results += context.run_in_executors(
        "scan references", reference_tasks, partial(_write_reference_facts, target=target)
    )
    target.write_rows("locks", 0, locked, cluster_facts.LOCKS)
    with cluster.open_reader() as reader:
        _require_identity(reader, root, identity)
        newest_change_ms = max(result.newest_change_ms for result in results)
        cluster_ms = read_cluster_clock_ms(reader, newest_change_ms=newest_change_ms)
    times = {"begun_ms": begun_ms, "ended_ms": read_worker_clock_ms(), "cluster_ms": cluster_ms}
    return _summarize_scan([*results, _count_shared_clusters(cluster)], target, identity, times)


def _require_identity(reader: ZnodeReader, ledgers_root: str, identity: str) -> None:
    found = read_cluster_identity(reader, ledgers_root)
    if found != identity:
        raise PreconditionFailed(
            f"cluster: expected {identity}, as at the begin of the scan, found {found}; plan again"
        )


def _count_shared_clusters(cluster: PulsarCluster) -> _ScanCounts:
    """Return a problem for each further cluster on the same BookKeeper."""
    reason = "expected its references to ledgers of the same BookKeeper, which this scan does not read"
    problems = tuple(ScanProblem(f"cluster {name}", reason) for name in cluster.shared_clusters)
    return _ScanCounts(Counter(problems=len(problems)), problems)


def _summarize_scan(
    results: Sequence[_ScanCounts], target: _ScanTarget, identity: str, times: Mapping[str, int]
) -> BulkJobSummary:
    rows = sum((result.rows for result in results), Counter[str]())
    problems = [problem for result in results for problem in result.problems]
    names = ("ledgers", "references", "managed_ledgers", "offloads", "problems")
    return BulkJobSummary(
        counts={"groups": target.groups, **times, **{name: rows[name] for name in names}},
        facts={IDENTITY: identity, LEDGERS_ROOT: target.cluster.ledgers_root}
        | {f"{PROBLEM}{problem.path}": problem.reason for problem in problems[:_MAX_REASONS]},
    )


def _choose_groups(context: JobContext, job: ScanClusterJob, leaf_folders: int) -> int:
    """Return the number of groups of files. It is the same in both scans, so that their groups can be compared."""
    if job.number == 1:
        return cluster_facts.choose_group_count_of_cluster(leaf_folders)
    return context.get_published_summary(replace(job, number=1).name).counts["groups"]


def _make_reference_tasks(reader: ZnodeReader, parts: int) -> list[_ReferenceTask]:
    namespaces = list_namespaces(reader)
    if not namespaces:  # every ledger would be without references
        raise PreconditionFailed("/managed-ledgers: expected the namespaces of a Pulsar cluster, found none")
    tasks = [_ReferenceTask(0, has_logs=True)]
    tasks += [_ReferenceTask(0, namespaces=part) for part in _split(namespaces, parts)]
    tasks += [_ReferenceTask(0, schema_tenants=part) for part in _split(list_schema_tenants(reader), parts)]
    return [replace(task, number=number) for number, task in enumerate(tasks)]


def _split(items: Sequence[T], parts: int) -> list[tuple[T, ...]]:
    """Split into at most `parts` tuples of nearly the same length, none of them empty."""
    ends = [len(items) * number // parts for number in range(parts + 1)]
    return [tuple(items[start:end]) for start, end in pairwise(ends) if end > start]


def _write_ledger_facts(task: _LedgerTask, *, target: _ScanTarget) -> _ScanCounts:
    """Write the ledgers of some folders, in an executor. Two runs of a task may overlap."""
    rows = target.open_rows("ledgers", task.number, cluster_facts.LEDGERS)
    problems: list[ScanProblem] = []
    root = target.cluster.ledgers_root
    with target.open_reader() as reader:
        for found in scan_leaf_folders(reader, root, task.folders):
            if isinstance(found, ScanProblem):
                problems.append(found)
                continue
            rows.add(cluster_facts.make_ledger_row(found))
            if found.problem:
                problems.append(ScanProblem(f"{root}/{found.path}", found.problem))
    target.write_rows("ledger_problems", task.number, map(asdict, problems), cluster_facts.PROBLEMS)
    counts = Counter(ledgers=rows.close(), problems=len(problems))
    return _ScanCounts(counts, tuple(problems[:_MAX_REASONS]), reader.newest_change_ms)


def _write_reference_facts(task: _ReferenceTask, *, target: _ScanTarget) -> _ScanCounts:
    """Write what some parents refer to, in an executor. Two runs of a task may overlap."""
    references = target.open_rows("references", task.number, cluster_facts.REFERENCES)
    offloads = target.open_rows("offloads", task.number, cluster_facts.OFFLOADS)
    managed_ledgers: list[dict[str, Any]] = []
    problems: list[ScanProblem] = []
    root = target.cluster.ledgers_root
    with target.open_reader() as reader:
        directory = BookieDirectory(reader, root)
        facts = scan_references(reader, task.namespaces, task.schema_tenants, has_logs=task.has_logs)
        for fact in resolve_compaction_cursors(reader, directory, root, facts):
            match fact:
                case LedgerReference():
                    references.add(asdict(fact))
                case OffloadReference():
                    offloads.add(cluster_facts.make_offload_row(fact))
                case ScannedManagedLedger():
                    managed_ledgers.append(asdict(fact))
                case ScanProblem():
                    problems.append(fact)
    target.write_rows("managed_ledgers", task.number, managed_ledgers, cluster_facts.MANAGED_LEDGERS)
    target.write_rows("reference_problems", task.number, map(asdict, problems), cluster_facts.PROBLEMS)
    rows = Counter(
        references=references.close(),
        offloads=offloads.close(),
        managed_ledgers=len(managed_ledgers),
        problems=len(problems),
    )
    return _ScanCounts(rows, tuple(problems[:_MAX_REASONS]), reader.newest_change_ms)
