"""`scan-cluster`: write facts about every ledger of a Pulsar cluster, then about every reference to a ledger.

Ledgers come first. A ledger that is born later is in no fact. The reference of a ledger that was there exists when
references are read, unless the ledger is young.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import read_cluster_identity
from infra.pulsar.cluster_clock import read_cluster_clock_ms, read_worker_clock_ms
from infra.pulsar.compacted_ledgers import resolve_compaction_cursors
from infra.pulsar.ledger_scan import count_ledgers, list_leaf_folders, list_locked_ledgers, scan_leaf_folders
from infra.pulsar.log_scan import scan_logs
from infra.pulsar.policy_directory import PolicyDirectory
from infra.pulsar.reference_scan import list_namespaces, scan_schemas, scan_topics
from infra.pulsar.scan_facts import OffloadReference, ScanFact, ScannedManagedLedger, ScannedReference, ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import PreconditionFailed
from logstore.pulsar.plan_jobs import BEGUN_MS, CLUSTER_MS, ENDED_MS, IDENTITY, LEDGERS_ROOT, PROBLEM, ScanClusterJob
from logstore.pulsar.znode_names import MANAGED_LEDGERS
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from spark.job_runner import JobContext
from spark.pulsar import cluster_facts, scan_slices
from spark.pulsar.cluster_facts import MANAGED_LEDGER_FILES, MAX_REASONS, FactFolder, ProblemRows
from spark.reconciliation.fact_files import choose_group_count

_TASKS_PER_CORE: Final = 4  # enough to even out tasks of different lengths
_LOGS: Final = "logs"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _LedgerTask:
    number: int
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ReferenceTask:
    number: int
    stem: str  # `scan_slices.TOPICS`, `scan_slices.SCHEMAS` or `_LOGS`
    slice_number: int = 0


@dataclass(frozen=True, slots=True)
class _ScanTarget:
    cluster: PulsarCluster
    folder: FactFolder
    parallel_tasks: int  # at most, at the same time

    def open_reader(self) -> AbstractContextManager[ZnodeReader]:
        return self.cluster.open_reader(parallel_sessions=self.parallel_tasks)


@dataclass(frozen=True, slots=True)
class _TaskResult:
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
    with cluster.open_reader(parallel_sessions=1) as reader:
        identity = read_cluster_identity(reader, root)
        leaf_folders = list_leaf_folders(reader, root)
        groups = _choose_groups(context, job, partial(count_ledgers, reader, leaf_folders))
    target = _ScanTarget(cluster, FactFolder(context.folder, groups), cores)
    parts = _split(leaf_folders, cores * _TASKS_PER_CORE)
    ledger_tasks = [_LedgerTask(number, part) for number, part in enumerate(parts)]
    results = context.run_in_executors("scan ledgers", ledger_tasks, partial(_write_ledger_facts, target=target))
    slices, reference_tasks = _write_slices(target)
    results += [
        slices,
        *context.run_in_executors("scan references", reference_tasks, partial(_write_reference_facts, target=target)),
    ]
    with cluster.open_reader(parallel_sessions=1) as reader:
        _require_identity(reader, root, identity)
        newest_change_ms = max(result.newest_change_ms for result in results)
        cluster_ms = read_cluster_clock_ms(reader, newest_change_ms=newest_change_ms)
    times = {BEGUN_MS: begun_ms, ENDED_MS: read_worker_clock_ms(), CLUSTER_MS: cluster_ms}
    return _summarize_scan(results, target, identity, times)


def _choose_groups(context: JobContext, job: ScanClusterJob, count: Callable[[], int]) -> int:
    """Return the number of groups of files. It is the same in both scans, so that their groups can be compared."""
    if job.number == 1:
        return choose_group_count(count(), max_ledgers_per_group=cluster_facts.MAX_LEDGERS_PER_GROUP)
    return context.get_published_summary(replace(job, number=1).name).counts["groups"]


def _write_slices(target: _ScanTarget) -> tuple[_TaskResult, list[_ReferenceTask]]:
    """Write locks, and slices of topics and schemas, in the driver. Return a task for each slice."""
    cluster, folder = target.cluster, target.folder
    problems = ProblemRows(folder, "slice_problems", 0)
    with (
        cluster.open_reader(parallel_sessions=1) as reader,
        cluster.open_configuration_reader(parallel_sessions=1) as configuration,
    ):
        locks = folder.open_rows("locks", 0, cluster_facts.LOCKS)
        for lock in list_locked_ledgers(reader, cluster.ledgers_root):
            if isinstance(lock, ScanProblem):
                problems.add(lock)
            else:
                locks.add({"ledger_id": lock})
        rows = Counter(locks=locks.close())
        namespaces = list_namespaces(reader)
        if not namespaces:  # every ledger would be without references
            raise PreconditionFailed("/managed-ledgers: expected the namespaces of a Pulsar cluster, found none")
        policies = PolicyDirectory(reader, configuration=configuration)
        topic_slices = scan_slices.write_topic_slices(folder, reader, policies, namespaces, problems)
        schema_slices = scan_slices.write_schema_slices(folder, reader)
        newest_change_ms = reader.newest_change_ms
    slices = [(_LOGS, 0), *((scan_slices.TOPICS, number) for number in range(topic_slices))]
    slices += [(scan_slices.SCHEMAS, number) for number in range(schema_slices)]
    tasks = [_ReferenceTask(number, *part) for number, part in enumerate(slices)]
    rows["problems"] = problems.close()
    return _TaskResult(rows, tuple(problems.first), newest_change_ms), tasks


def _require_identity(reader: ZnodeReader, ledgers_root: str, identity: str) -> None:
    found = read_cluster_identity(reader, ledgers_root)
    if found != identity:
        raise PreconditionFailed(
            f"cluster: expected {identity}, as at the begin of the scan, found {found}; plan again"
        )


def _make_shared_cluster_problems(cluster: PulsarCluster) -> dict[str, str]:
    """Return a fact about each further cluster on the same BookKeeper."""
    reason = "expected its references to ledgers of the same BookKeeper, which this scan does not read"
    return {f"{PROBLEM}cluster {name}": reason for name in cluster.shared_clusters}


def _summarize_scan(
    results: Sequence[_TaskResult], target: _ScanTarget, identity: str, times: Mapping[str, int]
) -> BulkJobSummary:
    rows = sum((result.rows for result in results), Counter[str]())
    problems = [problem for result in results for problem in result.problems]
    shared = _make_shared_cluster_problems(target.cluster)
    rows["problems"] += len(shared)
    names = ("ledgers", "locks", "references", "managed_ledgers", "offloads", "problems")
    return BulkJobSummary(
        counts={"groups": target.folder.groups, **times, **{name: rows[name] for name in names}},
        facts={IDENTITY: identity, LEDGERS_ROOT: target.cluster.ledgers_root}
        | shared
        | {f"{PROBLEM}/{problem.path}": problem.reason for problem in problems[:MAX_REASONS]},
    )


def _split(items: Sequence[T], parts: int) -> list[tuple[T, ...]]:
    """Split into at most `parts` tuples of nearly the same length, none of them empty."""
    ends = [len(items) * number // parts for number in range(parts + 1)]
    return [tuple(items[start:end]) for start, end in pairwise(ends) if end > start]


def _write_ledger_facts(task: _LedgerTask, *, target: _ScanTarget) -> _TaskResult:
    """Write the ledgers of some folders, in an executor. Two runs of a task may overlap."""
    rows = target.folder.open_grouped_rows("ledgers", task.number, cluster_facts.LEDGERS)
    problems = ProblemRows(target.folder, "ledger_problems", task.number)
    root = target.cluster.ledgers_root
    with target.open_reader() as reader:
        for found in scan_leaf_folders(reader, root, task.folders):
            if isinstance(found, ScanProblem):
                problems.add(found)
                continue
            rows.add(cluster_facts.make_ledger_row(found))
            if found.problem:
                problems.add(ScanProblem(f"{root}/{found.path}", found.problem))
    counts = Counter(ledgers=rows.close(), problems=problems.close())
    return _TaskResult(counts, tuple(problems.first), reader.newest_change_ms)


def _write_reference_facts(task: _ReferenceTask, *, target: _ScanTarget) -> _TaskResult:
    """Write what one slice refers to, in an executor. Two runs of a task may overlap."""
    writer = _ReferenceWriter(target.folder, task.number)
    with target.open_reader() as reader:
        facts: Iterator[ScanFact]
        match task.stem:
            case scan_slices.TOPICS:
                topics = scan_slices.read_topic_slice(target.folder, task.slice_number)
                writer.verdict_by_path, facts = topics.verdict_by_path, scan_topics(reader, topics.paths)
            case scan_slices.SCHEMAS:
                facts = scan_schemas(reader, scan_slices.read_schema_slice(target.folder, task.slice_number))
            case _:
                facts = scan_logs(reader, target.cluster.log_roots)
        directory = BookieDirectory(reader, target.cluster.ledgers_root)
        for fact in resolve_compaction_cursors(reader, directory, target.cluster.ledgers_root, facts):
            writer.add(fact)
    return writer.close(reader.newest_change_ms)


class _ReferenceWriter:
    """Writer of the facts of one task. Memory holds one batch of each kind."""

    def __init__(self, folder: FactFolder, task: int) -> None:
        self._references = folder.open_grouped_rows("references", task, cluster_facts.REFERENCES)
        self._offloads = folder.open_grouped_rows("offloads", task, cluster_facts.OFFLOADS)
        self._managed_ledgers = folder.open_rows(MANAGED_LEDGER_FILES, task, cluster_facts.MANAGED_LEDGERS)
        self._problems = ProblemRows(folder, "reference_problems", task)
        self.verdict_by_path: Mapping[str, str] = {}  # of orphan managed ledgers

    def add(self, fact: ScanFact) -> None:
        match fact:
            case ScannedReference():
                self._references.add(cluster_facts.make_reference_row(fact))
            case OffloadReference():
                self._offloads.add(cluster_facts.make_offload_row(fact))
            case ScannedManagedLedger():
                verdict = self.verdict_by_path.get(f"{MANAGED_LEDGERS}/{fact.name}", "")
                self._managed_ledgers.add(asdict(fact) | {"verdict": verdict})
            case ScanProblem():
                self._problems.add(fact)

    def close(self, newest_change_ms: int) -> _TaskResult:
        rows = Counter(
            references=self._references.close(),
            offloads=self._offloads.close(),
            managed_ledgers=self._managed_ledgers.close(),
            problems=self._problems.close(),
        )
        return _TaskResult(rows, tuple(self._problems.first), newest_change_ms)
