"""Reads of many znodes of a cluster, in parallel and at a bounded rate. Nothing is written.

Source: the rates of reads of one ZooKeeper: serial, asynchronous, and many in one request.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError, UnimplementedError
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

_MAX_PATH_CHARACTERS: Final = 100_000  # of one request, which ZooKeeper refuses beyond 1 MiB


class ZnodeReader:
    """Reader of the znodes below the chroot of one session. Paths begin without a slash.

    One request reads many paths: so many that its answer has about 1 MiB, as far as earlier answers tell. A server
    holds a whole answer in memory. Requests of later paths are on their way while the caller handles earlier answers.
    """

    def __init__(self, session: ZooKeeperSession, limiter: RateLimiter) -> None:
        self._session, self._limiter = session, limiter
        self._requests = _RequestLengths()
        self._knows_multi_read: bool | None = None  # None: no answer yet
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
        while batch := self._requests.take_paths(request, remaining):
            raise_if_stopped()
            sent.append(self._send(request, batch))
            while len(sent) > (request.batches_ahead if self._knows_multi_read else 0):
                yield from self._receive(request, sent.popleft())
        while sent:
            yield from self._receive(request, sent.popleft())

    def _send(self, request: "_Request[T]", paths: list[str]) -> "_SentBatch":
        def send(client: KazooClient) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
            self._limiter.wait_after_use(len(paths))
            absolute = [f"/{path}" for path in paths]
            if self._knows_multi_read is False:
                return _SingleReads(client, request.operation, absolute)
            return send_multi_read(client, request.operation, absolute)

        return _SentBatch(paths, self._session.run_idempotent(request.action, send), send)

    def _receive(self, request: "_Request[T]", batch: "_SentBatch") -> Iterator[tuple[str, T | None]]:
        def receive(client: KazooClient) -> list[Any]:
            result, batch.result = batch.result or batch.send(client), None  # sent again if the connection was lost
            try:
                answers: list[Any] = result.get()
            except UnimplementedError:  # the server closes the connection, so that the next requests are sent again
                self._knows_multi_read = False
                raise ConnectionLoss from None
            if self._knows_multi_read is None:
                self._knows_multi_read = True
            for answer in answers:
                if isinstance(answer, Exception) and not isinstance(answer, NoNodeError):
                    raise answer
            return answers

        answers = self._session.run_idempotent(request.action, receive)
        values = [_convert(answer, request.convert) for answer in answers]
        self._requests.learn(request, answers)
        yield from zip(batch.paths, values, strict=True)


class _RequestLengths:
    """Numbers of paths in the next requests, by operation. A request begins short and grows while answers are small."""

    def __init__(self) -> None:
        self._paths_by_action: dict[str, int] = {}

    def take_paths(self, request: "_Request[Any]", paths: Iterator[str]) -> list[str]:
        batch: list[str] = []
        characters, count = 0, self._paths_by_action.get(request.action, 1)
        while len(batch) < count and characters < _MAX_PATH_CHARACTERS and (path := next(paths, None)) is not None:
            batch.append(path)
            characters += len(path)
        return batch

    def learn(self, request: "_Request[Any]", answers: Sequence[Any]) -> None:
        largest = max((request.weigh(answer) for answer in answers if not isinstance(answer, Exception)), default=1)
        count = self._paths_by_action.get(request.action, 1)
        self._paths_by_action[request.action] = max(
            1, min(2 * count, request.max_paths, _MAX_ANSWER_BYTES // max(1, largest))
        )


class _SingleReads:
    """One asynchronous request for each path, for a ZooKeeper before version 3.6, which has no `multiRead`."""

    def __init__(self, client: KazooClient, operation: Operation, paths: Sequence[str]) -> None:
        read = client.get_async if operation is GetData else client.get_children_async
        self._results = [read(path) for path in paths]

    def get(self) -> list[Any]:
        """Return the answer for each path, or `NoNodeError`."""
        return [_get_or_absence(result) for result in self._results]


def _get_or_absence(result: Any) -> Any:  # noqa: ANN401 - kazoo's asynchronous result, and its value
    try:
        return result.get()
    except NoNodeError as error:
        return error


def _convert(answer: Any, convert: Callable[[Any], T]) -> T | None:  # noqa: ANN401
    return None if isinstance(answer, NoNodeError) else convert(answer)


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
    weigh: Callable[[Any], int]  # bytes of an answer, about
    max_paths: int  # in one request, so that ZooKeeper gets requests at an even rate
    batches_ahead: int  # that wait for their answers while the caller handles those of an earlier batch


_MAX_ANSWER_BYTES: Final = 1 << 20
_STAT_BYTES: Final = 100
_NAME_BYTES: Final = 4


def _to_znode(answer: Any) -> Znode:  # noqa: ANN401
    data, stat = answer
    return Znode(data or b"", stat.version, stat.czxid, stat.ctime, stat.mtime, stat.numChildren)


def _weigh_value(answer: Any) -> int:  # noqa: ANN401
    return len(answer[0] or b"") + _STAT_BYTES


def _weigh_names(answer: Any) -> int:  # noqa: ANN401
    return sum(map(len, answer)) + _NAME_BYTES * len(answer)


_GET: Final = _Request("reading znodes", GetData, _to_znode, _weigh_value, max_paths=100, batches_ahead=4)
_LIST: Final[_Request[list[str]]] = _Request(
    "listing znodes", GetChildren, sorted, _weigh_names, max_paths=20, batches_ahead=1
)
