"""Scans of a cluster's znodes on a real ZooKeeper: everything is found, and what cannot be read is told."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.pulsar.ledger_scan import (
    LedgerZnode,
    count_ledgers,
    list_leaf_folders,
    list_locked_ledgers,
    scan_leaf_folders,
)
from infra.pulsar.log_scan import scan_logs
from infra.pulsar.reference_scan import (
    list_namespaces,
    list_schema_tenants,
    list_schemas,
    list_topics,
    scan_managed_ledgers,
    scan_schemas,
    scan_topics,
)
from infra.pulsar.scan_facts import (
    CompactionCursor,
    OffloadReference,
    ScanFact,
    ScannedManagedLedger,
    ScannedReference,
    ScanProblem,
)
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.errors import SessionLost, StoreUnavailable
from logstore.pulsar.ledger_references import OffloadAttempt
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import LOG_ROOTS, format_ledger_path
from logstore.rate_limiter import RateLimiter
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_TOPIC = "managed-ledgers/public/default/persistent/orders"
_UUID = UUID("f0000000-0000-4000-8000-00000000000f")


def write(cluster: KazooClient, values: Mapping[str, bytes]) -> None:
    for path, value in values.items():
        cluster.create(f"/{path}", value, makepath=True)


def write_ledgers(cluster: KazooClient, *ledger_ids: int) -> None:
    paths = [f"/ledgers/{format_ledger_path(each)}" for each in ledger_ids]
    for parent in {path.rpartition("/")[0] for path in paths}:
        cluster.ensure_path(parent)
    for result in [cluster.create_async(path, wire.ledger_metadata()) for path in paths]:
        result.get()


def all_found(reader: ZnodeReader) -> Iterator[LedgerZnode | ScanProblem]:
    return scan_leaf_folders(reader, "ledgers", list_leaf_folders(reader, "ledgers"))


def all_ledgers(reader: ZnodeReader) -> Iterator[LedgerZnode]:
    return (found for found in all_found(reader) if isinstance(found, LedgerZnode))


def all_managed_ledgers(reader: ZnodeReader) -> Iterator[ScanFact]:
    return scan_managed_ledgers(reader, list_namespaces(reader))


def all_schemas(reader: ZnodeReader) -> Iterator[ScanFact]:
    return scan_schemas(reader, list_schemas(reader, list_schema_tenants(reader)))


def test_every_ledger_is_found_in_both_layouts_of_paths(cluster: KazooClient, reader: ZnodeReader) -> None:
    ids = [0, 9_999, 10_000, 123_456_789, 2_147_483_646, 2_147_483_647, (1 << 63) - 1]
    write_ledgers(cluster, *ids)
    write(cluster, {"ledgers/available/bk0": b"", "ledgers/idgen/ID-1": b"", "ledgers/LAYOUT": b"2\n"})
    found = list(all_ledgers(reader))
    assert sorted(each.ledger_id for each in found) == ids
    assert all(each.metadata and not each.problem for each in found)
    assert {each.path for each in found} == {format_ledger_path(each) for each in ids}


def test_a_ledger_that_cannot_be_read_is_told(cluster: KazooClient, reader: ZnodeReader) -> None:
    """apache/pulsar#13480: a ledger's znode with no data is no problem, since there is nothing to read."""
    write(cluster, {f"ledgers/{format_ledger_path(7)}": b"", f"ledgers/{format_ledger_path(8)}": b"\x00"})
    empty, damaged = all_ledgers(reader)
    assert (empty.metadata, empty.problem, damaged.metadata) == (None, "", None)
    assert "version" in damaged.problem


def test_folders_with_few_ledgers_are_read_together(cluster: KazooClient, reader: ZnodeReader) -> None:
    """60 folders of one ledger need some requests that get longer, and not 120."""
    write_ledgers(cluster, *(number * 10_000 for number in range(60)))
    folders = list_leaf_folders(reader, "ledgers")
    assert count_ledgers(reader, folders) == 60
    batches: list[int] = []

    class Counting(RateLimiter):
        def wait_after_use(self, units: int) -> None:
            batches.append(units)

    counting = ZnodeReader(reader._session, Counting(1_000_000))
    assert len(list(scan_leaf_folders(counting, "ledgers", folders))) == 60
    assert sum(batches) == 120
    assert len(batches) <= 20


@pytest.mark.parametrize("stray", ["ledgers/00/0000/X0001", "ledgers/00/0000/0001"])
def test_a_child_that_is_no_ledger_is_told(cluster: KazooClient, reader: ZnodeReader, stray: str) -> None:
    write_ledgers(cluster, 1)
    write(cluster, {stray: b""})
    found, ledger = sorted(all_found(reader), key=lambda each: isinstance(each, LedgerZnode))
    assert isinstance(found, ScanProblem)
    assert (found.path, isinstance(ledger, LedgerZnode)) == (stray, True)


def test_a_flat_layout_and_an_absent_root_are_refused(cluster: KazooClient, reader: ZnodeReader) -> None:
    with pytest.raises(UnreadableMetadata, match="no such znode"):
        list_leaf_folders(reader, "ledgers")
    write(cluster, {"ledgers/L0000000007": wire.ledger_metadata()})
    with pytest.raises(UnreadableMetadata, match="flat"):
        list_leaf_folders(reader, "ledgers")


def test_topics_cursors_buckets_and_offloads_are_found(cluster: KazooClient, reader: ZnodeReader) -> None:
    context = wire.offload_context(_UUID, complete=True, bookkeeper_deleted=True)
    write(
        cluster,
        {
            _TOPIC: wire.managed_ledger([3, 4, 5], offloads={4: context}),
            f"{_TOPIC}/billing": wire.cursor(6, buckets={"1_2": "7"}),
            f"{_TOPIC}/__compaction": wire.cursor(8, compacted=99),
            "managed-ledgers/public/default/persistent/never-loaded": b"",
            "managed-ledgers/public/default/persistent/closed": wire.managed_ledger([]),
            "managed-ledgers/public/default/persistent/closed/__compaction": wire.cursor(-1, compacted=10),
            "managed-ledgers/old/east/ns/persistent/v1": wire.managed_ledger([11]),
            "managed-ledgers/public/default/persistent/shadow": wire.managed_ledger([4], shadow="persistent://a/b/c"),
        },
    )
    facts = set(all_managed_ledgers(reader))
    closed, shadow = (f"managed-ledgers/public/default/persistent/{name}" for name in ("closed", "shadow"))
    assert {fact for fact in facts if not isinstance(fact, ScannedManagedLedger)} == {
        ScannedReference(3, _TOPIC, "ledgers"),
        ScannedReference(4, _TOPIC, "ledgers", can_be_absent=True, given_up=True),
        ScannedReference(5, _TOPIC, "ledgers", can_be_absent=True),
        OffloadReference("public/default/persistent/orders", OffloadAttempt(4, _UUID, True, True, "tiered")),
        ScannedReference(6, f"{_TOPIC}/billing", "cursor_ledger_id"),
        ScannedReference(7, f"{_TOPIC}/billing", "cursor_properties"),
        ScannedReference(8, f"{_TOPIC}/__compaction", "cursor_ledger_id"),
        CompactionCursor(f"{_TOPIC}/__compaction", 8),
        ScannedReference(10, f"{closed}/__compaction", "compacted_ledger"),
        ScannedReference(11, "managed-ledgers/old/east/ns/persistent/v1", "ledgers", can_be_absent=True),
        ScannedReference(4, shadow, "ledgers", is_owner=False, can_be_absent=True),
    }
    managed_ledgers = {fact.name: fact for fact in facts if isinstance(fact, ScannedManagedLedger)}
    shown = {name.rpartition("/")[2]: (each.ledgers, each.shadow_source) for name, each in managed_ledgers.items()}
    assert (shown["orders"], shown["never-loaded"]) == ((3, ""), (0, ""))
    assert shown["shadow"] == (1, "persistent://a/b/c")
    _, stat = cluster.get(f"/{_TOPIC}")
    orders = managed_ledgers["public/default/persistent/orders"]
    assert (orders.version, orders.czxid, orders.modified_ms) == (stat.version, stat.czxid, stat.mtime)


def test_schemas_are_found(cluster: KazooClient, reader: ZnodeReader) -> None:
    write(
        cluster,
        {"schemas/public/default/orders": wire.schema_locator([3, 9]), "schemas/t/ns/a%2Fb": wire.schema_locator([4])},
    )
    assert set(all_schemas(reader)) == {
        ScannedReference(3, "schemas/public/default/orders", "versions"),
        ScannedReference(9, "schemas/public/default/orders", "versions"),
        ScannedReference(4, "schemas/t/ns/a%2Fb", "versions"),
    }


def test_a_cluster_without_schemas_and_logs_has_none_of_their_references(reader: ZnodeReader) -> None:
    assert not list(all_schemas(reader))
    assert not list(scan_logs(reader, LOG_ROOTS))
    assert list_namespaces(reader) == []


_UNREADABLE = {
    "managed ledger": {_TOPIC: wire.managed_ledger([4])[:-1]},
    "cursor": {f"{_TOPIC}/billing": b"\xff"},
    "cursor with children": {f"{_TOPIC}/billing": wire.cursor(-1), f"{_TOPIC}/billing/deeper": b""},
    "parent with data": {"managed-ledgers/t/ns/topic": b"\x0a\x02\x08\x01"},
    "domain": {"managed-ledgers/t/ns/segment/a": b""},
    "schema": {"schemas/t/ns/a": b"\xff"},
    "schema with children": {"schemas/t/ns/a": wire.schema_locator([1]), "schemas/t/ns/a/deeper": b""},
    "segment": {"pulsar/functions/a/<default>/ledgers/logrecs_1": b"6;1"},
    "segment's name": {"pulsar/functions/a/<default>/ledgers/other": b"5;1"},
    "allocation": {"pulsar/functions/a/<default>/allocation": b"x"},
}


@pytest.mark.parametrize("values", _UNREADABLE.values(), ids=_UNREADABLE.keys())
def test_what_cannot_be_read_is_a_problem(
    cluster: KazooClient, reader: ZnodeReader, values: Mapping[str, bytes]
) -> None:
    cluster.ensure_path("/managed-ledgers")
    write(cluster, values)
    facts: list[ScanFact] = [*all_managed_ledgers(reader), *all_schemas(reader), *scan_logs(reader, LOG_ROOTS)]
    (problem,) = (fact for fact in facts if isinstance(fact, ScanProblem))
    assert any(problem.path.startswith(path.rsplit("/", 1)[0]) for path in values)
    assert problem.reason


def test_a_znode_that_vanishes_between_list_and_read_is_left_out(cluster: KazooClient, reader: ZnodeReader) -> None:
    write_ledgers(cluster, 1, 2, 3)
    write(cluster, {_TOPIC: wire.managed_ledger([1])})

    class Vanishing(ZnodeReader):
        def read(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode | None]]:
            paths = list(paths)
            for path in paths:
                if path.endswith(("L0002", "orders")):
                    cluster.delete(f"/{path}")
            return super().read(paths)

    vanishing = Vanishing(reader._session, RateLimiter(1_000_000))
    assert [each.ledger_id for each in all_ledgers(vanishing)] == [1, 3]
    assert not list(all_managed_ledgers(vanishing))


def test_reads_keep_order_and_tell_what_does_not_exist(cluster: KazooClient, reader: ZnodeReader) -> None:
    write(cluster, {"a": b"1", "b/c": b"2"})
    cluster.set("/a", b"3")
    reader.sync()
    found = dict(reader.read(["b", "absent", "a"]))
    assert list(found) == ["b", "absent", "a"]
    assert found["absent"] is None
    assert isinstance(found["a"], Znode)
    assert (found["a"].data, found["a"].version, found["b"] and found["b"].children) == (b"3", 1, 1)
    assert dict(reader.list_children(["b", "absent"])) == {"b": ["c"], "absent": None}


def test_reads_keep_to_their_rate(cluster: KazooClient, reader: ZnodeReader) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    limiter = RateLimiter(1_000, clock=lambda: now[0], sleep=sleep)
    write(cluster, {"a": b"", "b": b""})
    assert len(list(ZnodeReader(reader._session, limiter).read(["a", "b", "c"] * 1_500))) == 4_500
    assert now[0] == pytest.approx(4.5)


def test_locks_of_replication_workers_are_found(cluster: KazooClient, reader: ZnodeReader) -> None:
    """Ledgers that wait for replication are elsewhere, in folders."""
    locks, waiting = "ledgers/underreplication/locks", "ledgers/underreplication/ledgers/0000/0000/0000/0009"
    assert list(list_locked_ledgers(reader, "ledgers")) == []
    write(cluster, {f"{locks}/urL0000000007": b"", f"{locks}/urL2147483650": b"", f"{waiting}/urL0000000009": b""})
    assert list(list_locked_ledgers(reader, "ledgers")) == [7, 2_147_483_650]
    write(cluster, {f"{locks}/urL7": b""})
    *ids, problem = list_locked_ledgers(reader, "ledgers")
    assert ids == [7, 2_147_483_650]
    assert isinstance(problem, ScanProblem)
    assert problem.path == f"{locks}/urL7"


def test_a_list_longer_than_the_limit_of_a_java_client_is_whole(cluster: KazooClient, reader: ZnodeReader) -> None:
    """A Java client refuses answers of more than 1 MiB (`jute.maxbuffer`). This one has no limit."""
    parent, names = "managed-ledgers/t/ns/persistent", [f"{each:04}-{'x' * 600}" for each in range(2_500)]
    cluster.ensure_path(f"/{parent}")
    for start in range(0, len(names), 500):
        transaction = cluster.transaction()
        for name in names[start : start + 500]:
            transaction.create(f"/{parent}/{name}", wire.managed_ledger([int(name[:4])]))
        transaction.commit()
    topics = list(list_topics(reader, ["managed-ledgers/t/ns"]))
    assert topics == [f"{parent}/{name}" for name in names]
    references = list(scan_topics(reader, (topic for topic in topics if isinstance(topic, str))))
    ids = [fact.ledger_id for fact in references if isinstance(fact, ScannedReference)]
    assert ids == list(range(2_500)), "more than one batch"


@pytest.fixture
def patient_reader(ensemble: EnsembleOptions) -> Iterator[ZnodeReader]:
    """A reader whose session outlives a restart of the server."""
    with closing(ZooKeeperSession(replace(ensemble, timeout_s=10), lambda _: None)) as session:
        yield ZnodeReader(session, RateLimiter(1_000_000))


def test_a_lost_connection_loses_no_znode(
    zookeeper: ZooKeeper, cluster: KazooClient, patient_reader: ZnodeReader
) -> None:
    """Some answers have arrived, others are on their way, and others are not asked for yet."""
    write_ledgers(cluster, *range(3_000))
    scan = all_ledgers(patient_reader)
    ids = [next(scan).ledger_id for _ in range(500)]
    zookeeper.kill()
    zookeeper.start()
    assert ids + [ledger.ledger_id for ledger in scan] == list(range(3_000))


def test_a_session_that_ends_in_a_scan_ends_the_scan(
    zookeeper: ZooKeeper, cluster: KazooClient, reader: ZnodeReader
) -> None:
    """Another attempt begins again with another session."""
    write_ledgers(cluster, *range(3_000))
    scan = all_ledgers(reader)
    ids = [next(scan).ledger_id for _ in range(500)]
    zookeeper.expire(reader._session)
    with pytest.raises(SessionLost):
        ids += [ledger.ledger_id for ledger in scan]
    assert ids == list(range(len(ids)))


def test_a_server_that_does_not_answer_ends_the_scan(
    zookeeper: ZooKeeper, cluster: KazooClient, reader: ZnodeReader
) -> None:
    write_ledgers(cluster, *range(3_000))
    scan = all_ledgers(reader)
    ids = [next(scan).ledger_id for _ in range(500)]
    with zookeeper.hanging(), pytest.raises((SessionLost, StoreUnavailable)):
        ids += [ledger.ledger_id for ledger in scan]
    assert ids == list(range(len(ids)))
