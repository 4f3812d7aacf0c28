"""Reads of many znodes of a cluster, in parallel and at a bounded rate. Nothing is written.

Source: the rates of reads of one ZooKeeper: serial, asynchronous, and many in one request.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, UnimplementedError
from kazoo.protocol.serialization import GetChildren, GetData

from infra.coordination.zookeeper_session import ZooKeeperSession
from infra.pulsar.multi_read import Operation, send_multi_read
from logstore.rate_limiter import RateLimiter
from logstore.stop_checks import raise_if_stopped


@dataclass(frozen=True, slots=True)
class Znode:
    """Value and state of a znode. Times are by the clock of ZooKeeper's server."""

    data: bytes
    version: int
    czxid: int  # transaction that created the znode
    created_ms: int
    modified_ms: int
    children: int  # number of children


T = TypeVar("T")


class ZnodeReader:
    """Reader of the znodes below the chroot of one session. Paths begin without a slash.

    Requests of later paths are on their way while the caller handles the answers of earlier ones.
    """

    def __init__(self, session: ZooKeeperSession, limiter: RateLimiter) -> None:
        self._session, self._limiter = session, limiter
        self.newest_change_ms = 0  # of all znodes that were read, by the clock of ZooKeeper's server

    def sync(self) -> None:
        """Wait until the connected server knows all that the ensemble had committed before the call."""
        self._session.run_idempotent("waiting for the newest state", lambda client: client.sync("/"))

    def read(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode | None]]:
        """Yield path and znode, in the order of `paths`, or `None` for a znode that does not exist."""
        for path, znode in self._read_in_batches(_GET, paths):
            if znode is not None:
                self.newest_change_ms = max(self.newest_change_ms, znode.modified_ms)
            yield path, znode

    def list_children(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str] | None]]:
        """Yield path and names of children, ascending, or `None` for a znode that does not exist."""
        return self._read_in_batches(_LIST, paths)

    def list_paths(self, parents: Iterable[str]) -> Iterator[str]:
        """Yield the paths of all children, ascending for each parent. A znode that does not exist has none."""
        for parent, names in self.list_children(parents):
            for name in names or ():
                yield f"{parent}/{name}"

    def _read_in_batches(self, request: "_Request[T]", paths: Iterable[str]) -> Iterator[tuple[str, T | None]]:
        remaining = iter(paths)
        sent = deque[_SentBatch]()
        while batch := list(islice(remaining, request.paths_per_batch)):
            raise_if_stopped()
            sent.append(self._send(request, batch))
            if len(sent) > request.batches_ahead:
                yield from self._receive(request, sent.popleft())
        while sent:
            yield from self._receive(request, sent.popleft())

    def _send(self, request: "_Request[T]", paths: list[str]) -> "_SentBatch":
        def send(client: KazooClient) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
            self._limiter.wait_after_use(len(paths))
            return send_multi_read(client, request.operation, [f"/{path}" for path in paths])

        return _SentBatch(paths, self._session.run_idempotent(request.action, send), send)

    def _receive(self, request: "_Request[T]", batch: "_SentBatch") -> Iterator[tuple[str, T | None]]:
        def receive(client: KazooClient) -> list[T | None]:
            result, batch.result = batch.result or batch.send(client), None  # sent again if the connection was lost
            try:
                answers = result.get()
            except UnimplementedError:
                answers = [_read_alone(client, request.operation, f"/{path}") for path in batch.paths]
            return [_convert(answer, request.convert) for answer in answers]

        answers = self._session.run_idempotent(request.action, receive)
        yield from zip(batch.paths, answers, strict=True)


def _read_alone(client: KazooClient, operation: Operation, path: str) -> Any:  # noqa: ANN401
    """Return the answer of a server before version 3.6, or its error."""
    try:
        return client.get(path) if operation is GetData else client.get_children(path)
    except NoNodeError as error:
        return error


def _convert(answer: Any, convert: Callable[[Any], T]) -> T | None:  # noqa: ANN401
    if isinstance(answer, NoNodeError):
        return None
    if isinstance(answer, Exception):
        raise answer
    return convert(answer)


@dataclass(slots=True)
class _SentBatch:
    paths: list[str]
    result: Any  # kazoo's asynchronous result
    send: Callable[[KazooClient], Any]


@dataclass(frozen=True, slots=True)
class _Request(Generic[T]):
    action: str  # for messages
    operation: Operation
    convert: Callable[[Any], T]
    paths_per_batch: int  # read with one request; short, so that ZooKeeper gets requests at an even rate
    batches_ahead: int  # that wait for their answers while the caller handles those of an earlier batch


def _to_znode(answer: Any) -> Znode:  # noqa: ANN401
    data, stat = answer
    return Znode(data or b"", stat.version, stat.czxid, stat.ctime, stat.mtime, stat.numChildren)


_GET: Final = _Request("reading znodes", GetData, _to_znode, paths_per_batch=100, batches_ahead=4)
_LIST: Final[_Request[list[str]]] = _Request(
    "listing znodes",
    GetChildren,
    sorted,
    paths_per_batch=20,  # folders of 10,000 ledgers each
    batches_ahead=1,
)
