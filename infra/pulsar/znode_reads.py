"""Reads of many znodes of a cluster, in parallel and at a bounded rate. Nothing is written.

Source: the rates of asynchronous reads and serial reads of one ZooKeeper, which differ by a factor of two.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from infra.coordination.ownership_nodes import wait_for_result_or_none
from infra.coordination.zookeeper_session import ZooKeeperSession
from logstore.rate_limiter import RateLimiter
from logstore.stop_checks import raise_if_stopped

PATHS_PER_BATCH: Final = 100
"""Requests that are sent together. A batch is short, so that ZooKeeper gets requests at an even rate."""

_BATCHES_AHEAD: Final = 10
"""Batches that wait for their answers while the caller handles the answers of an earlier one."""

_LISTS_PER_BATCH: Final = 20
"""A folder of ledgers has 10,000 names, so that memory holds at most 400,000 names of ledgers."""


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
        for path, znode in self._read_in_batches(
            "reading znodes", _request_data, _to_znode, paths, PATHS_PER_BATCH, _BATCHES_AHEAD
        ):
            if znode is not None:
                self.newest_change_ms = max(self.newest_change_ms, znode.modified_ms)
            yield path, znode

    def list_children(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str] | None]]:
        """Yield path and names of children, ascending, or `None` for a znode that does not exist."""
        return self._read_in_batches("listing znodes", _request_children, sorted, paths, _LISTS_PER_BATCH, 1)

    def list_paths(self, parents: Iterable[str]) -> Iterator[str]:
        """Yield the paths of all children, ascending for each parent. A znode that does not exist has none."""
        for parent, names in self.list_children(parents):
            for name in names or ():
                yield f"{parent}/{name}"

    def _read_in_batches(
        self,
        action: str,
        request: Callable[[KazooClient, str], Any],
        convert: Callable[[Any], T],
        paths: Iterable[str],
        paths_per_batch: int,
        batches_ahead: int,
    ) -> Iterator[tuple[str, T | None]]:
        remaining = iter(paths)
        sent = deque[_SentBatch]()
        while batch := list(islice(remaining, paths_per_batch)):
            raise_if_stopped()
            sent.append(self._send(action, request, batch))
            if len(sent) > batches_ahead:
                yield from self._receive(action, convert, sent.popleft())
        while sent:
            yield from self._receive(action, convert, sent.popleft())

    def _send(self, action: str, request: Callable[[KazooClient, str], Any], paths: list[str]) -> "_SentBatch":
        def send(client: KazooClient) -> list[Any]:
            self._limiter.wait_after_use(len(paths))
            return [request(client, f"/{path}") for path in paths]

        return _SentBatch(paths, self._session.run_idempotent(action, send), send)

    def _receive(self, action: str, convert: Callable[[Any], T], batch: "_SentBatch") -> Iterator[tuple[str, T | None]]:
        def receive(client: KazooClient) -> list[Any]:
            results, batch.results = batch.results or batch.send(client), []  # sent again if the connection was lost
            return [wait_for_result_or_none(result, NoNodeError) for result in results]

        answers = self._session.run_idempotent(action, receive)
        for path, answer in zip(batch.paths, answers, strict=True):
            yield path, None if answer is None else convert(answer)


@dataclass(slots=True)
class _SentBatch:
    paths: list[str]
    results: list[Any]  # kazoo's asynchronous results
    send: Callable[[KazooClient], list[Any]]


def _request_data(client: KazooClient, path: str) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
    return client.get_async(path)


def _request_children(client: KazooClient, path: str) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
    return client.get_children_async(path)


def _to_znode(answer: Any) -> Znode:  # noqa: ANN401
    data, stat = answer
    return Znode(data or b"", stat.version, stat.czxid, stat.ctime, stat.mtime, stat.numChildren)
