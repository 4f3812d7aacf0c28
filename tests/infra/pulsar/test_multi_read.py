"""One request reads many znodes, and each answer is that of a read alone."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import MarshallingError, NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.security import make_digest_acl

from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.pulsar import reference_scan, znode_reads
from infra.pulsar.multi_read import _END, Operation, _MultiRead, send_multi_read
from infra.pulsar.reference_scan import list_topics
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import ServiceFailed
from logstore.rate_limiter import RateLimiter
from tests.infra.coordination.zookeeper import ZooKeeper

pytestmark = pytest.mark.external_service


@pytest.fixture
def patient_session(ensemble: EnsembleOptions) -> Iterator[ZooKeeperSession]:
    """A session that outlives a lost connection."""
    with closing(ZooKeeperSession(replace(ensemble, timeout_s=10), lambda _: None)) as session:
        yield session


def make_reader(session: ZooKeeperSession) -> ZnodeReader:
    return ZnodeReader(session, RateLimiter(1_000_000))


@pytest.fixture
def paths(cluster: KazooClient) -> list[str]:
    """Paths of znodes with and without data and children, and of one that does not exist."""
    cluster.create("/a", b"x" * 70_000)
    cluster.create("/a/b", b"")
    cluster.create("/a/ü", "Zürich".encode())
    cluster.create("/empty")
    return ["/a", "/a/b", "/absent", "/a/ü", "/empty", "/a"]


def test_each_answer_is_that_of_a_read_alone(cluster: KazooClient, paths: list[str]) -> None:
    values = send_multi_read(cluster, GetData, paths).get()
    names = send_multi_read(cluster, GetChildren, paths).get()
    for number, path in enumerate(paths):
        if path == "/absent":
            assert isinstance(values[number], NoNodeError)
            assert isinstance(names[number], NoNodeError)
        else:
            assert values[number] == cluster.get(path)
            assert sorted(names[number]) == sorted(cluster.get_children(path))


def test_paths_are_below_the_chroot(zookeeper: ZooKeeper, cluster: KazooClient, ensemble: EnsembleOptions) -> None:
    cluster.create("/below/a", b"below", makepath=True)
    cluster.create("/a", b"above")
    with zookeeper.client(f"{ensemble.hosts}/below") as client:
        ((value, _),) = send_multi_read(client, GetData, ["/a"]).get()
    assert value == b"below"


def test_a_server_that_does_not_know_the_request_is_asked_for_each_znode(
    patient_session: ZooKeeperSession, cluster: KazooClient, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the connection after the first request, and is not sent another one of the kind."""
    for number in range(300):
        cluster.create(f"/many/{number:03}", b"%d" % number, makepath=True)
    relative = [*(path[1:] for path in paths), *(f"many/{number:03}" for number in range(300))]
    known, listed = (
        list(read(relative)) for read in (make_reader(patient_session).read, make_reader(patient_session).list_children)
    )
    types = iter([99] * 5 + [100])  # no server knows these, as 3.5 does not know 22
    monkeypatch.setattr("infra.pulsar.multi_read._MultiRead.type", property(lambda _: next(types)))
    assert list(make_reader(patient_session).read(relative)) == known
    assert next(types) == 99, "at most four requests were sent"
    monkeypatch.setattr("infra.pulsar.multi_read._MultiRead.type", 99)
    assert list(make_reader(patient_session).list_children(relative)) == listed
    assert {path for path, znode in known if znode is None} == {"absent"}


def test_answers_stay_short(cluster: KazooClient, reader: ZnodeReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server holds a whole answer in memory. Requests get short behind large values, and long paths shorten them."""
    lengths: list[int] = []

    def send(client: KazooClient, operation: Operation, paths: Sequence[str]) -> Any:
        lengths.append(len(paths))
        return send_multi_read(client, operation, paths)

    monkeypatch.setattr(znode_reads, "send_multi_read", send)
    for number in range(300):
        cluster.create(f"/small/{number:03}", b"", makepath=True)
        if number < 30:
            cluster.create(f"/large/{number:03}", b"x" * 300_000, makepath=True)
    small, large = (
        [f"{kind}/{number:03}" for number in range(count)] for kind, count in (("small", 300), ("large", 30))
    )
    assert [path for path, _ in reader.read([*small, *large])] == [*small, *large]
    assert max(lengths) == 100
    lengths.clear()
    assert [path for path, _ in reader.read(large)] == large
    assert max(lengths) == 3
    lengths.clear()
    list(reader.read(["small/000", *(f"{number:05}{'x' * 20_000}" for number in range(20))]))
    assert max(lengths) <= 5


def test_lists_stay_short(cluster: KazooClient, reader: ZnodeReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parents with many children are listed alone, however short the lists before were."""
    monkeypatch.setattr(reference_scan, "_NAMES_PER_LIST", 3)
    lists: list[list[str]] = []
    list_paths = reader.list_paths

    def note_and_list(parents: Iterable[str]) -> Iterator[str]:
        lists.append(list(parents))
        return list_paths(lists[-1])

    monkeypatch.setattr(reader, "list_paths", note_and_list)
    for namespace, topics in {"a": 1, "b": 2, "c": 3, "d": 1}.items():
        for topic in range(topics):
            cluster.create(f"/managed-ledgers/t/{namespace}/persistent/{topic}", b"", makepath=True)
    namespaces = [f"managed-ledgers/t/{namespace}" for namespace in "abcd"]
    assert len(list(list_topics(reader, namespaces))) == 7
    parents = [[f"{namespaces['abcd'.index(name)]}/persistent" for name in names] for names in ("ab", "c", "d")]
    assert lists[-3:] == parents


def test_a_damaged_answer_is_asked_for_again(reader: ZnodeReader, paths: list[str]) -> None:
    request = _MultiRead(GetData, paths)
    with pytest.raises(MarshallingError, match="expected 6 answers, found 0"):
        request.deserialize(_END, 0)
    for damaged in (b"", _END[:5], struct.pack(">iBi", -1, 0, 0) + struct.pack(">i", 12_345) + _END):
        with pytest.raises(MarshallingError, match="cannot be parsed"):
            request.deserialize(damaged, 0)
    with pytest.raises(MarshallingError, match="a list of -1 names"):
        _MultiRead(GetChildren, paths).deserialize(struct.pack(">iBii", 8, 0, 0, -1) + _END, 0)


def test_a_znode_that_may_not_be_read_ends_the_read(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create("/open")
    cluster.create("/closed", acl=[make_digest_acl("another", "secret", all=True)])
    with pytest.raises(ServiceFailed):
        list(reader.read(["open", "closed"]))
