"""Whatever is referenced in the end was never a finding that can be removed, however the cluster changes meanwhile.

A plan runs on a model of a cluster. Hypothesis chooses what brokers do between any two reads of the scans, and when
they die.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_clock import read_cluster_clock_ms, read_worker_clock_ms
from infra.pulsar.compacted_ledgers import resolve_compaction_cursors
from infra.pulsar.finding_verification import ClusterVerifier
from infra.pulsar.ledger_scan import LedgerZnode, list_leaf_folders, scan_leaf_folders
from infra.pulsar.reference_scan import list_namespaces, list_schema_tenants, scan_references
from infra.pulsar.scan_facts import ScannedReference, ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.ledger_verdicts import AgeFloors
from logstore.reconciliation.findings import Finding, FindingKind
from spark.pulsar.cluster_facts import LEDGERS, REFERENCES, make_ledger_row
from spark.pulsar.compare_scans import ScanGroup, compare_scan_groups
from tests.infra.pulsar.conftest import cluster, ensemble, zookeeper
from tests.infra.pulsar.owner_directories import make_owner_directory
from tests.spark.pulsar.fake_pulsar import NAMES, FakePulsar, FakeReader

__all__ = ["cluster", "ensemble", "zookeeper"]

_BETWEEN_S: Final = 600
_DAY_S: Final = 86_400
_OPERATIONS: Final = len(FakePulsar().list_operations("a"))

Event = tuple[str, int, int]

_EVENT = st.one_of(
    st.tuples(st.just("start"), st.integers(0, _OPERATIONS - 1), st.integers(0, len(NAMES) - 1)),
    st.tuples(st.just("step"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, 30, 1_800]), st.just(0)),
    st.tuples(st.just("read"), st.integers(1, 12), st.just(0)),
)


@dataclass(slots=True)
class _Schedule:
    """Events of a cluster, and numbers of reads between them."""

    pulsar: FakePulsar
    events: Iterator[Event] = field(default_factory=lambda: iter(()))
    reads: int = 0  # that come before the next event

    def play(self) -> None:
        """Play the events before the next read."""
        while not self.reads:
            verb, number, name = next(self.events, ("read", 1_000, 0))
            play_event(self.pulsar, verb, number, name)
            self.reads = number if verb == "read" else 0
        self.reads -= 1


def play_event(pulsar: FakePulsar, verb: str, number: int, name: int) -> None:
    match verb:
        case "start":
            start, max_wait_ms = pulsar.list_operations(NAMES[name])[number]
            pulsar.start(start(), max_wait_ms)
            pulsar.step(-1)
        case "step":
            pulsar.step(number)
        case "kill":
            pulsar.kill(number)
        case "wait":
            pulsar.wait(number)


@dataclass(frozen=True, slots=True)
class _Scan:
    group: ScanGroup
    problems: int


def scan(reader: ZnodeReader) -> _Scan:
    """Scan as the job does, in one task."""
    found = list(scan_leaf_folders(reader, "ledgers", list_leaf_folders(reader, "ledgers")))
    facts = scan_references(reader, list_namespaces(reader), list_schema_tenants(reader), ["pulsar/functions"])
    resolved = list(resolve_compaction_cursors(reader, BookieDirectory(reader, "ledgers"), "ledgers", facts))
    ledgers = [make_ledger_row(each) for each in found if isinstance(each, LedgerZnode)]
    references = [asdict(fact) for fact in resolved if isinstance(fact, ScannedReference)]
    return _Scan(
        ScanGroup(pa.Table.from_pylist(ledgers, schema=LEDGERS), pa.Table.from_pylist(references, schema=REFERENCES)),
        sum(isinstance(fact, ScanProblem) for fact in [*found, *resolved]),
    )


def plan(pulsar: FakePulsar, schedule: _Schedule, between: Sequence[Event], gap_s: int) -> list[Finding] | None:
    """Return the findings of a plan, or `None` if the plan is incomplete. `between` happens between the scans."""
    reader = FakeReader(pulsar, schedule.play)
    first = scan(reader)
    for each in between:
        play_event(pulsar, *each)
    pulsar.wait(gap_s)
    second = scan(reader)
    pulsar.report_load()
    comparison = compare_scan_groups(
        first.group,
        second.group,
        np.array([], np.int64),
        root="ledgers",
        now_ms=read_cluster_clock_ms(reader),
        floors=AgeFloors(),
    )
    verifier = ClusterVerifier(reader, make_owner_directory(reader), {}, "ledgers")
    findings = verifier.verify(comparison.findings)
    return None if first.problems or second.problems else findings


@pytest.fixture(autouse=True)
def bookies(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakePulsar], None]:
    """Let bookies have the entries of a cluster."""

    def serve(pulsar: FakePulsar) -> None:
        monkeypatch.setattr("infra.pulsar.compacted_ledgers.read_newest_entries", pulsar.read_newest_entries)

    return serve


def ids_of(findings: Sequence[Finding]) -> set[Any]:
    return {found.ledger_id for found in findings if found.kind is FindingKind.ORPHAN_LEDGER}


@settings(
    max_examples=80,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    before=st.lists(_EVENT, max_size=20),
    meanwhile=st.tuples(st.lists(_EVENT, max_size=60), st.lists(_EVENT, max_size=30)),
    age_s=st.sampled_from([0, 7_200, 2 * _DAY_S]),
    gap_s=st.sampled_from([_BETWEEN_S, 7_200, 2 * _DAY_S]),
)
def test_churn_makes_no_finding_of_what_is_referenced_in_the_end(
    bookies: Callable[[FakePulsar], None],
    before: list[Event],
    meanwhile: tuple[list[Event], list[Event]],
    age_s: int,
    gap_s: int,
) -> None:
    """What was leaked long before a complete plan is a finding. `meanwhile` is during and between the scans."""
    pulsar = FakePulsar()
    bookies(pulsar)
    pulsar.fill()
    for each in before:
        play_event(pulsar, *each)
    pulsar.wait(age_s)
    leaked = set() if pulsar.running else set(_list_ledgers(pulsar)) - _list_references(pulsar)
    findings = plan(pulsar, _Schedule(pulsar, iter(meanwhile[0])), meanwhile[1], gap_s)
    referenced = pulsar.list_referenced_ledgers()
    pulsar.finish()
    if findings is None:
        event("incomplete")
        return
    orphans = ids_of(findings)
    event(f"orphans: {min(len(orphans), 3)}")
    assert not orphans & (referenced | pulsar.list_referenced_ledgers())
    if age_s == 2 * _DAY_S:
        assert leaked & set(_list_ledgers(pulsar)) <= orphans


def _list_references(pulsar: FakePulsar) -> set[int]:
    """Return what brokers or metadata refer to. A topic whose deletion was interrupted refers to its ledgers."""
    shown = scan(FakeReader(pulsar, lambda: None)).group.references["ledger_id"].to_pylist()
    return pulsar.list_referenced_ledgers() | set(shown)


def _list_ledgers(pulsar: FakePulsar) -> Iterator[int]:
    for path in pulsar.znodes:
        if path.startswith("ledgers/"):
            yield int(path.removeprefix("ledgers/").replace("/", "").replace("L", ""))


class _RealPulsar(FakePulsar):
    """The model, on a real ZooKeeper and by the clock of this machine."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        super().__init__()

    def write(self, path: str, data: bytes) -> None:
        super().write(path, data)
        try:
            self._client.set(f"/{path}", data)
        except NoNodeError:
            self._client.create(f"/{path}", data, makepath=True)

    def delete(self, path: str) -> None:
        super().delete(path)
        with suppress(NoNodeError, NotEmptyError):
            self._client.delete(f"/{path}")

    def play_until(self, is_over: threading.Event, seed: int) -> None:
        """Play random events on all topics but the first. A ledger waits for its reference for 500 ms at most."""
        choose = random.Random(seed)
        while not is_over.is_set():
            self.now_ms = read_worker_clock_ms()
            self.running = [operation for operation in self.running if operation.ends_at_ms > self.now_ms]
            verb = choose.choices(["start", "step", "kill"], [3, 12, 1])[0]
            if verb == "start":
                start, _ = choose.choice(self.list_operations(choose.choice(NAMES[1:])))
                self.start(start(), max_wait_ms=500)
            play_event(self, verb if verb != "start" else "step", choose.randrange(10), 0)


@pytest.mark.external_service
def test_churn_on_a_real_zookeeper(
    cluster: KazooClient, ensemble: EnsembleOptions, bookies: Callable[[FakePulsar], None]
) -> None:
    """Two scans that are a second apart, of a cluster in which all topics but one change all the time."""
    pulsar, is_over = _RealPulsar(cluster), threading.Event()
    bookies(pulsar)
    pulsar.fill()
    broker = threading.Thread(target=pulsar.play_until, args=(is_over, 7))
    with PulsarCluster(zookeeper=ensemble.hosts).open_reader(parallel_sessions=1) as reader:
        time.sleep(2.2)
        broker.start()
        try:
            first = scan(reader)
            time.sleep(1.2)
            second = scan(reader)
        finally:
            is_over.set()
            broker.join()
        pulsar.report_load()
        comparison = compare_scan_groups(
            first.group,
            second.group,
            np.array([], np.int64),
            root="ledgers",
            now_ms=read_cluster_clock_ms(reader),
            floors=AgeFloors.for_all_states(2),
        )
        referenced = pulsar.list_referenced_ledgers()
        pulsar.finish()
        verifier = ClusterVerifier(reader, make_owner_directory(reader), {}, "ledgers")
        orphans = ids_of(verifier.verify(comparison.findings))
    assert pulsar.steps > 50, "the cluster was busy"
    assert not orphans & (referenced | pulsar.list_referenced_ledgers())
    assert 1 in orphans, "it was leaked before the first scan"
