"""Reads of many znodes of a cluster, in parallel and at a bounded rate. Nothing is written.

Source: the rates of asynchronous reads and serial reads of one ZooKeeper, which differ by a factor of two.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from infra.coordination.ownership_nodes import wait_for_result_or_none
from infra.coordination.zookeeper_session import ZooKeeperSession
from logstore.stop_checks import raise_if_stopped

PATHS_PER_BATCH: Final = 2_000
"""Requests that wait for an answer at the same time, at most."""


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

    At most `reads_per_s` requests begin each second, on average over a batch.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        *,
        reads_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session, self._reads_per_s, self._clock, self._sleep = session, reads_per_s, clock, sleep
        self._free_at = clock()
        self.newest_change_ms = 0  # of all znodes that were read, by the clock of ZooKeeper's server

    def sync(self) -> None:
        """Wait until the connected server knows all that the ensemble had committed before the call."""
        self._session.run_idempotent("waiting for the newest state", lambda client: client.sync("/"))

    def read(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode | None]]:
        """Yield path and znode, in the order of `paths`, or `None` for a znode that does not exist."""
        for path, znode in self._read_in_batches("reading znodes", _request_data, _to_znode, paths):
            if znode is not None:
                self.newest_change_ms = max(self.newest_change_ms, znode.modified_ms)
            yield path, znode

    def list_children(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str] | None]]:
        """Yield path and names of children, ascending, or `None` for a znode that does not exist."""
        return self._read_in_batches("listing znodes", _request_children, sorted, paths)

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
    ) -> Iterator[tuple[str, T | None]]:
        remaining = iter(paths)
        while batch := list(islice(remaining, PATHS_PER_BATCH)):
            raise_if_stopped()
            self._wait_for_rate(len(batch))

            def read_batch(client: KazooClient, batch: list[str] = batch) -> list[T | None]:
                pending = [request(client, f"/{path}") for path in batch]
                answers = [wait_for_result_or_none(result, NoNodeError) for result in pending]
                return [None if answer is None else convert(answer) for answer in answers]

            yield from zip(batch, self._session.run_idempotent(action, read_batch), strict=True)

    def _wait_for_rate(self, requests: int) -> None:
        now = self._clock()
        if self._free_at > now:
            self._sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + requests / self._reads_per_s


def _request_data(client: KazooClient, path: str) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
    return client.get_async(path)


def _request_children(client: KazooClient, path: str) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
    return client.get_children_async(path)


def _to_znode(answer: Any) -> Znode:  # noqa: ANN401
    data, stat = answer
    return Znode(data or b"", stat.version, stat.czxid, stat.ctime, stat.mtime, stat.numChildren)
