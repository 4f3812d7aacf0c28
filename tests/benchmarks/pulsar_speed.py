"""A plan of a generated Pulsar cluster beside bare reads: `python -m tests.benchmarks.pulsar_speed [ledgers]`.

The cluster is a real ZooKeeper with ten ledgers for each topic: eight of messages, one of a cursor, one of a schema.
One ledger in a thousand is an orphan. The first quarter is written and scanned alone, for the growth of time. The bare
reads are asynchronous reads of a tenth of the same znodes before, between and after the scans, by as many clients as
the scan has tasks at a time. The default of 1,000,000 ledgers takes seven minutes on two cores. ZooKeeper may use 3 GiB
of memory.
"""

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

from infra.pulsar.cluster_access import PulsarCluster
from logstore.pulsar.plan_jobs import CompareScansJob, ScanClusterJob
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.findings import FindingKind
from spark.job_mains import cluster_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import SparkSettings, WarmSession
from tests.benchmarks.generated_cluster import connect, make_ledger, run_zookeeper, tell, write_znodes
from tests.benchmarks.reconciliation_speed import peak_memory
from tests.logstore.pulsar import wire

_TASKS: Final = 2
_LEDGERS_PER_TOPIC: Final = 10
_TOPICS_PER_NAMESPACE: Final = 5_000
_TOPICS_PER_ORPHAN: Final = 100
_TOPICS_PER_BARE_READ: Final = 10
_READS_AHEAD: Final = 2_000


def generate_znodes(topics: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Yield path and value of the znodes of each topic: its ledgers, the topic, its cursor, its schema, an orphan."""
    for topic in topics:
        namespace, first = f"bench/ns-{topic // _TOPICS_PER_NAMESPACE}", topic * _LEDGERS_PER_TOPIC
        name, schema = f"{namespace}/persistent/topic-{topic}", f"{namespace}/topic-{topic}"
        messages = make_ledger("managed-ledger", **{"managed-ledger": name})
        cursor = make_ledger("managed-ledger", **{"managed-ledger": name, "cursor": "billing"})
        for ledger_id, value in enumerate([*[messages] * 8, cursor, make_ledger("schema", schemaId=schema)], first):
            yield f"ledgers/{format_ledger_path(ledger_id)}", value
        yield f"managed-ledgers/{name}", wire.managed_ledger(range(first, first + 8))
        yield f"managed-ledgers/{name}/billing", wire.cursor(first + 8)
        yield f"schemas/{schema}", wire.schema_locator([first + 9])
        if topic % _TOPICS_PER_ORPHAN == 0:
            gone = make_ledger("managed-ledger", **{"managed-ledger": f"{namespace}/persistent/gone"})
            yield f"ledgers/{format_ledger_path(2**31 + topic)}", gone


def _write_topics(zookeeper: str, topics: range) -> None:
    tell(f"writing {len(topics) * _LEDGERS_PER_TOPIC:,} ledgers")
    namespaces = sorted({topic // _TOPICS_PER_NAMESPACE for topic in topics})
    policies = ((f"admin/policies/bench/ns-{namespace}", b"") for namespace in namespaces)
    write_znodes(zookeeper, chain(policies, generate_znodes(topics)))


def _read_bare(zookeeper: str, topics: range) -> tuple[int, float]:
    """Read the znodes of the topics asynchronously, as they are. Return their number and seconds."""
    paths = [f"/{path}" for path, _ in generate_znodes(topics)]
    with connect(zookeeper) as client:
        began = time.perf_counter()
        pending = deque[Any]()
        for path in paths:
            pending.append(client.get_async(path))
            if len(pending) == _READS_AHEAD:
                while pending:
                    pending.popleft().get()
        for result in pending:
            result.get()
        return len(paths), time.perf_counter() - began


def _measure_bare_reads(zookeeper: str, topics: range) -> float:
    """Return the reads per second of `_TASKS` processes together."""
    ends = [len(topics) * part // _TASKS for part in range(_TASKS + 1)]
    parts = [(zookeeper, topics[start:end]) for start, end in pairwise(ends)]
    with multiprocessing.get_context("spawn").Pool(_TASKS) as pool:
        results = pool.starmap(_read_bare, parts)
    rate = sum(count for count, _ in results) / max(seconds for _, seconds in results)
    tell(f"bare reads: {rate:,.0f} a second")
    return rate


@dataclass(frozen=True, slots=True)
class _Plan:
    """Runner of the jobs of a plan, with the seconds of each."""

    jobs: SparkBulkJobs

    def run(self, job: ScanClusterJob | CompareScansJob) -> tuple[BulkJobSummary, float]:
        began = time.perf_counter()
        summary = self.jobs.run_job(job, lambda _: None)
        took = time.perf_counter() - began
        tell(f"{job.name}: {took:.1f} s")
        return summary, took


@contextmanager
def _open_plan(zookeeper: str, folder: Path) -> Iterator[_Plan]:
    cluster = PulsarCluster(zookeeper=f"{zookeeper}/", reads_per_s=1_000_000, session_timeout_s=60)
    settings = SparkSettings(scratch=folder / "spark", master=f"local[{_TASKS}]")
    with closing(WarmSession(settings)) as session:
        yield _Plan(SparkBulkJobs(session, PublishedOutputs(folder / "bulk"), lambda: cluster_job_mains(cluster)))


def measure_plan(ledgers: int, folder: Path) -> dict[str, Any]:
    topics = range(ledgers // _LEDGERS_PER_TOPIC)
    quarter = topics[: len(topics) // 4]
    with run_zookeeper(folder / "home") as (zookeeper, server_pid), _open_plan(zookeeper, folder) as plan:
        _write_topics(zookeeper, quarter)
        plan.run(ScanClusterJob(run_id="warm-up", number=1))
        _, quarter_s = plan.run(ScanClusterJob(run_id="quarter", number=1))
        _write_topics(zookeeper, topics[len(quarter) :])
        bare_rates = [_measure_bare_reads(zookeeper, topics[::_TOPICS_PER_BARE_READ])]
        with peak_memory(excluded_pid=server_pid, interval_s=1) as peak_mib:
            scan, scan_s = plan.run(ScanClusterJob(run_id="whole", number=1))
            bare_rates.append(_measure_bare_reads(zookeeper, topics[1::_TOPICS_PER_BARE_READ]))
            _, second_s = plan.run(ScanClusterJob(run_id="whole", number=2))
            bare_rates.append(_measure_bare_reads(zookeeper, topics[2::_TOPICS_PER_BARE_READ]))
            compared, compare_s = plan.run(CompareScansJob(run_id="whole", between_s=0, older_than_s=0))
    znodes = sum(1 for _ in generate_znodes(topics))
    orphans = len(topics[::_TOPICS_PER_ORPHAN])
    found = compared.counts[FindingKind.ORPHAN_LEDGER.value]
    if (scan.counts["ledgers"], scan.counts["problems"], found) != (ledgers + orphans, 0, orphans):
        raise RuntimeError(f"expected {ledgers + orphans} ledgers and {orphans} orphans, found {compared.counts}")
    scan_rate, bare_rate = 2 * znodes / (scan_s + second_s), statistics.mean(bare_rates)
    return {
        "ledgers": ledgers,
        "scan_s": [round(scan_s, 1), round(second_s, 1)],
        "scan_znodes_s": round(scan_rate),
        "bare_znodes_s": round(bare_rate),
        "ratio": round(scan_rate / bare_rate, 2),
        "growth_of_4_times": round((scan_s + second_s) / 2 / quarter_s, 2),
        "compare_s": round(compare_s, 1),
        "peak_mib": peak_mib(),
    }


def main(ledgers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sexton-bench-") as folder:
        return measure_plan(ledgers, Path(folder))


if __name__ == "__main__":
    print(json.dumps({"pulsar": main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000)}, indent=1))  # noqa: T201
