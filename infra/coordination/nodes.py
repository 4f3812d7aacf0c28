"""The nodes of this worker's session: that it is alive, how loaded it is, and which bundles it owns."""

import json
import logging
from collections.abc import Iterable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from infra.coordination.directory import OWNERS, SESSIONS, WORKERS, Directory, session_path, unless
from infra.coordination.session import ZooKeeperSession
from logstore.errors import WorkerIdTaken
from logstore.ownership import BundleId, WorkerLoad

__all__ = ["OWNERS", "SESSIONS", "WORKERS", "Nodes", "worker_id_taken"]


_PARENTS: Final = (SESSIONS, WORKERS, OWNERS)

_log = logging.getLogger(__name__)


class Nodes(Directory):
    """What a worker reads and writes in ZooKeeper, in one session."""

    def __init__(self, session: ZooKeeperSession, worker_id: str, bundles: int) -> None:
        """Speak for `worker_id` in this session.

        Raises:
            ServiceFailed: ZooKeeper refuses us.
            StoreUnavailable, SessionLost: It did not answer, or the session is over.
        """
        super().__init__(session, bundles)
        self._worker_id = worker_id
        session.ask("preparing", self._prepare)

    def _prepare(self, client: KazooClient) -> None:
        for path in _PARENTS:
            client.ensure_path(path)
            self._session.protect(client, path)
        _create_own(client, session_path(self._session.id), b"", self._session.id)

    def stand(self) -> None:
        """Make again what a hand has removed of what everybody needs: the parents, and our session's own node.

        Without its parent no owner node can be made, and a session without its own node is taken for one that is gone,
        though it lives: no worker would own anything until every worker was started again.
        """

        def work(client: KazooClient) -> None:
            asked = [client.exists_async(path) for path in (*_PARENTS, session_path(self._session.id))]
            if any(one.get() is None for one in asked):
                _log.warning("zookeeper: nodes of this ensemble were removed while sessions live: making them again")
                self._prepare(client)

        self._session.ask("looking for what everybody needs", work)

    def enlist(self, load: WorkerLoad) -> bool:
        """Claim the worker id; False while another session, of an earlier process perhaps, has it."""
        path = f"{WORKERS}/{self._worker_id}"
        mine = self._session.id
        return self._session.ask("enlisting", lambda client: _create_own(client, path, _load_json(load), mine))

    def report(self, load: WorkerLoad) -> None:
        """Tell the others how loaded this worker is."""
        path = f"{WORKERS}/{self._worker_id}"

        def work(client: KazooClient) -> None:
            _, stat = client.get(path)
            if stat.ephemeralOwner != self._session.id:
                raise WorkerIdTaken(f"worker id {self._worker_id}: expected a node of this session, found another's")
            client.set(path, _load_json(load))

        self._session.ask("reporting load", work)

    def last_change(self) -> int:
        """A number that is another one whenever an owner node came or went since."""
        return self._session.ask("looking for changes", lambda client: int(client.get(OWNERS)[1].pzxid))

    def take(self, bundles: Iterable[BundleId]) -> frozenset[BundleId]:
        """Create the owner nodes; which of them are this session's afterwards.

        Repeating is harmless: a node that exists counts only if its ephemeral owner is this session.
        """
        wanted = sorted(bundles)
        body = json.dumps({"worker_id": self._worker_id}).encode()

        def work(client: KazooClient) -> None:
            asked = [client.create_async(self._path(one), body, ephemeral=True) for one in wanted]
            for one in asked:
                unless(one, NodeExistsError)

        self._session.ask("taking bundles", work)
        return self.own(wanted)

    def own(self, bundles: Iterable[BundleId]) -> frozenset[BundleId]:
        """Those of the bundles whose owner node is this session's."""
        return frozenset(one for one, node in self.owners(bundles).items() if node.session == self._session.id)

    def give_up(self, bundles: Iterable[BundleId]) -> None:
        """Delete owner nodes, if they are this session's; others stay."""
        for one in bundles:
            self.remove(one, self._session.id)

    def watch(self, client_changed: Any) -> None:  # noqa: ANN401 - kazoo's watcher
        """Have `client_changed` called, once, on kazoo's thread, when workers or owners come or go."""

        def work(client: KazooClient) -> None:
            client.get_children(WORKERS, watch=client_changed)
            client.get_children(OWNERS, watch=client_changed)

        self._session.ask("watching", work)


def worker_id_taken(worker_id: str) -> WorkerIdTaken:
    """What a process is told that finds another one under its worker id."""
    return WorkerIdTaken(f"worker id {worker_id}: expected to be free, found another process alive under it")


def _create_own(client: KazooClient, path: str, body: bytes, session: int) -> bool:
    """Whether the ephemeral node is this session's afterwards."""
    try:
        client.create(path, body, ephemeral=True)
    except NodeExistsError:
        stat = client.exists(path)
        return stat is not None and stat.ephemeralOwner == session
    return True


def _load_json(load: WorkerLoad) -> bytes:
    return json.dumps({"load": load.load, "bundles": load.bundles, "room": load.room}).encode()
