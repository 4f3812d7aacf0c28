"""Scans of the logs of DistributedLog: every ledger is found, also one that changes its place meanwhile."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest
from kazoo.client import KazooClient

from infra.pulsar.log_scan import scan_logs
from infra.pulsar.scan_facts import ScanFact, ScannedReference, ScanProblem
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.znode_names import LOG_ROOTS
from logstore.rate_limiter import RateLimiter

pytestmark = pytest.mark.external_service

_LOG = "pulsar/functions/t/ns/f/<default>"
_NEW_LOG = "pulsar/functions/a/<default>"
_POOL = "pulsar/functions/.allocation_pool/pool-1"
_READS_OF_A_SCAN = 40  # more than a scan needs


def write(cluster: KazooClient, values: Mapping[str, bytes]) -> None:
    for path, value in values.items():
        cluster.create(f"/{path}", value, makepath=True)


def ids_of(facts: Iterable[ScanFact]) -> list[int]:
    return sorted(fact.ledger_id for fact in facts if isinstance(fact, ScannedReference))


class InterruptedReader(ZnodeReader):
    """Reader that calls a function before each read or list, with its number."""

    def __init__(self, reader: ZnodeReader, interrupt: Callable[[int], None]) -> None:
        super().__init__(reader._session, RateLimiter(1_000_000))
        self._interrupt, self.reads = interrupt, 0

    def read(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode | None]]:
        paths = list(paths)
        self._call()
        return super().read(paths)

    def list_children(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str] | None]]:
        paths = list(paths)
        self._call()
        return super().list_children(paths)

    def _call(self) -> None:
        self._interrupt(self.reads)
        self.reads += 1


def test_logs_are_found_at_any_depth(cluster: KazooClient, reader: ZnodeReader) -> None:
    package = "pulsar/packages/function/t/ns/p/v1"
    write(
        cluster,
        {
            "pulsar/functions/t/ns/f/<default>/ledgers/logrecs_000000000000000001": b"5;21;1",
            "pulsar/functions/t/ns/f/<default>/lock": b"someone",
            f"{package}/<default>/ledgers/inprogress_000000000000000001": b"5;22;1",
            f"{package}/<default>/allocation": b"23",
            f"{package}/meta/<default>/ledgers/logrecs_000000000000000001": b"5;24;1",
            f"{package}/meta/<default>/allocation": b"",
            "stream/storage/.allocation_pool/pool-1/A0000000000": b"25",
            "stream/storage/.allocation_pool/pool-1/A0000000001": b"",
        },
    )
    found = {fact.ledger_id for fact in scan_logs(reader, LOG_ROOTS) if isinstance(fact, ScannedReference)}
    assert found == {21, 22, 23, 24, 25}


def test_other_roots_are_read_instead(cluster: KazooClient, reader: ZnodeReader) -> None:
    write(cluster, {f"elsewhere/{_LOG}/allocation": b"21", f"{_LOG}/allocation": b"22"})
    assert ids_of(scan_logs(reader, ["elsewhere"])) == [21]


def test_a_segment_that_is_completed_meanwhile_is_found(cluster: KazooClient, reader: ZnodeReader) -> None:
    """Its znode gets another name in one transaction. This happens before each read of a scan."""
    moments = 0
    for moment in range(_READS_OF_A_SCAN):
        old, new = f"{_LOG}/ledgers/inprogress_{moment:018}", f"{_LOG}/ledgers/logrecs_{moment:018}"
        write(cluster, {old: b"5;21;1"})

        def complete(number: int, moment: int = moment, old: str = old, new: str = new) -> None:
            if number == moment:
                transaction = cluster.transaction()
                transaction.create(f"/{new}", b"5;21;1")
                transaction.delete(f"/{old}")
                transaction.commit()

        interrupted = InterruptedReader(reader, complete)
        facts = list(scan_logs(interrupted, LOG_ROOTS))
        assert ids_of(facts) == [21], f"completed before read {moment}"
        assert not [fact for fact in facts if isinstance(fact, ScanProblem)]
        if interrupted.reads <= moment:
            break
        cluster.delete(f"/{new}")
        moments += 1
    assert 4 <= moments < _READS_OF_A_SCAN


@pytest.mark.parametrize(
    ("allocation", "log"),
    [(f"{_LOG}/allocation", _LOG), (f"{_POOL}/A0000000000", _LOG), (f"{_POOL}/A0000000000", _NEW_LOG)],
)
def test_an_allocated_ledger_that_becomes_a_segment_meanwhile_is_found(
    cluster: KazooClient, reader: ZnodeReader, allocation: str, log: str
) -> None:
    """One transaction empties the allocation and creates the segment, in an old log or a new one."""
    write(cluster, {f"{_LOG}/ledgers/logrecs_0": b"5;7;1", allocation: b""})
    moments = 0
    for moment in range(_READS_OF_A_SCAN):
        cluster.set(f"/{allocation}", b"21")

        def use(number: int, moment: int = moment) -> None:
            if number == moment:
                cluster.ensure_path(f"/{log}/ledgers")
                transaction = cluster.transaction()
                transaction.set_data(f"/{allocation}", b"")
                transaction.create(f"/{log}/ledgers/inprogress_1", b"5;21;1")
                transaction.commit()

        interrupted = InterruptedReader(reader, use)
        assert set(ids_of(scan_logs(interrupted, LOG_ROOTS))) == {7, 21}, f"used before read {moment}"
        if interrupted.reads <= moment:
            break
        cluster.delete(f"/{log}/ledgers/inprogress_1")
        if log == _NEW_LOG:
            cluster.delete("/pulsar/functions/a", recursive=True)
        moments += 1
    assert 4 <= moments < _READS_OF_A_SCAN


def test_segments_that_never_stay_are_a_problem(cluster: KazooClient, reader: ZnodeReader) -> None:
    write(cluster, {f"{_LOG}/ledgers/logrecs_0": b"5;21;1"})

    class Replacing(InterruptedReader):
        def read(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode | None]]:
            paths = list(paths)
            for path in paths:
                if "/logrecs_" in path:
                    cluster.delete(f"/{path}")
                    cluster.create(f"/{path}0", b"5;21;1")
            return super().read(paths)

    (problem,) = scan_logs(Replacing(reader, lambda _: None), LOG_ROOTS)
    assert isinstance(problem, ScanProblem)
    assert problem.path == f"{_LOG}/ledgers"


def test_a_segment_outside_of_a_log_is_a_problem(cluster: KazooClient, reader: ZnodeReader) -> None:
    """DistributedLog can be configured with another name for what Pulsar has as `<default>`."""
    path = "pulsar/functions/f/other/ledgers/logrecs_1"
    write(cluster, {path: b"5;21;1"})
    (problem,) = scan_logs(reader, LOG_ROOTS)
    assert isinstance(problem, ScanProblem)
    assert problem.path == path
