"""Nodes of sessions, workers and owners in ZooKeeper: to look makes none of them; `Nodes` is for a worker, which does.

```
/sessions/{session id}   ephemeral: stands exactly as long as the session; deletes are conditional on it
/workers/{worker id}     ephemeral: its load, as JSON; one process a worker id
/owners/{bundle name}    ephemeral: the worker that owns the bundle, as JSON
```

An owner node is made once and never changed, so its version is 0 in every case, and a delete that asks for the
version alone could remove a later owner's (apache/pulsar#295). So each delete is one transaction with a check that the
session which was read as the node's own still stands: while it does, the node is its.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat

from infra.coordination.session import ZooKeeperSession
from logstore.errors import InvalidInput, WorkerIdTaken
from logstore.ownership import BundleId, OwnerNode, WorkerLoad, bundle_name, parse_bundle

SESSIONS: Final = "/sessions"
WORKERS: Final = "/workers"
OWNERS: Final = "/owners"
_PARENTS: Final = (SESSIONS, WORKERS, OWNERS)

_log = logging.getLogger(__name__)

_REFUSED: Final = (BadVersionError, NoNodeError, RolledBackError, RuntimeInconsistency)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A worker whose own node stands."""

    session: int  # which made the node
    load: WorkerLoad  # as it told last


class Directory:
    """All that is known of ownership in one ensemble; where no worker ever took part, that is nothing."""

    def __init__(self, session: ZooKeeperSession, bundles: int) -> None:
        """Ask through this session about `bundles` bundles."""
        self._session, self._bundles = session, bundles
        self._strays: set[str] = set()

    def sessions(self) -> frozenset[int]:
        """Sessions of workers that take part, as long as each stands."""
        names = self._session.ask("reading sessions", lambda client: _children(client, SESSIONS))
        return frozenset(found for name in names if (found := _session(name)) is not None)

    def live_workers(self) -> dict[str, LiveWorker]:
        """Workers with a live session."""
        found = self._session.ask(
            "reading workers", lambda client: read_all(client, WORKERS, _children(client, WORKERS))
        )
        return {name: LiveWorker(session=stat.ephemeralOwner, load=_load(body)) for name, (body, stat) in found.items()}

    def owned(self) -> frozenset[BundleId]:
        """Bundles with an owner, of whatever worker; a node that names no bundle of this catalog is left out."""
        names = self._session.ask("reading owned bundles", lambda client: _children(client, OWNERS))
        return frozenset(bundle for bundle in map(self._parsed, names) if bundle is not None)

    def owners(self, bundles: Iterable[BundleId] | None = None) -> dict[BundleId, OwnerNode]:
        """Owner nodes, of the bundles asked for or of all; a bundle without one is absent."""
        wanted = sorted(self.owned() if bundles is None else bundles)
        names = [self._name(one) for one in wanted]
        found = self._session.ask("reading owners", lambda client: read_all(client, OWNERS, names))
        return {one: _owner(*found[name]) for one, name in zip(wanted, names, strict=True) if name in found}

    def owner(self, bundle: BundleId, *, patience_s: float) -> OwnerNode | None:
        """The bundle's owner node, or None; for a caller that has work of the bundle, and does not wait for longer.

        Raises:
            ServiceFailed: ZooKeeper refuses us, or the path of everything of ours is gone, which is no answer.
        """
        name = self._name(bundle)

        def work(client: KazooClient) -> OwnerNode | None:
            path = client.exists_async("/")
            found = read_all(client, OWNERS, [name]).get(name)
            if found is None and path.get() is None:
                raise self._session.no_path()
            return _owner(*found) if found else None

        return self._session.ask("looking an owner up", work, patience_s=patience_s)

    def remove(self, bundle: BundleId, session: int) -> bool:
        """Delete the owner node of that session, for any caller; False if it is another's by now."""

        def work(client: KazooClient) -> bool:
            found = read_all(client, OWNERS, [self._name(bundle)]).get(self._name(bundle))
            if found is None or found[1].ephemeralOwner != session:
                return False
            both = client.transaction()
            both.check(session_path(session), -1)
            both.delete(self._path(bundle), found[1].version)
            return not any(isinstance(result, _REFUSED) for result in both.commit())

        return self._session.ask("giving up a bundle", work)

    def _parsed(self, name: str) -> BundleId | None:
        try:
            return parse_bundle(name, bundles=self._bundles)
        except InvalidInput as error:
            if name not in self._strays:
                self._strays.add(name)
                _log.warning("zookeeper: %s/%s is left alone: %s", OWNERS, name, error)
            return None

    def _name(self, bundle: BundleId) -> str:
        return bundle_name(bundle, bundles=self._bundles)

    def _path(self, bundle: BundleId) -> str:
        return f"{OWNERS}/{self._name(bundle)}"


def session_path(session: int) -> str:
    """The node that stands as long as the session."""
    return f"{SESSIONS}/{session:016x}"


def read_all(client: KazooClient, parent: str, names: Sequence[str]) -> dict[str, tuple[bytes, ZnodeStat]]:
    """Bodies and stats of children, asked for all at once; those that are gone are absent."""
    asked = {name: client.get_async(f"{parent}/{name}") for name in names}
    found = {name: unless(answer, NoNodeError) for name, answer in asked.items()}
    return {name: answer for name, answer in found.items() if answer is not None}


def unless(answer: Any, error: type[Exception]) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
    """The answer, or None where it is that error."""
    try:
        return answer.get()
    except error:
        return None


def _session(name: str) -> int | None:
    try:
        return int(name, 16)
    except ValueError:  # none of ours
        return None


def _children(client: KazooClient, path: str) -> list[str]:
    """Names of children; a path that was not made yet has none, which is an answer and no failure to ask."""
    try:
        return list(client.get_children(path))
    except NoNodeError:
        return []


def _load(body: bytes) -> WorkerLoad:
    """A load that cannot be read makes a choice worse, not wrong: it counts as none."""
    try:
        found: Mapping[str, Any] = json.loads(body)
        load, bundles = max(0.0, float(found["load"])), max(0, int(found["bundles"]))
        return WorkerLoad(load=load, bundles=bundles, room=bool(found.get("room", True)))
    except (ValueError, KeyError, TypeError, OverflowError, InvalidInput):  # JSON may say Infinity, or be a list
        return WorkerLoad(load=0.0, bundles=0)


def _owner(body: bytes, stat: ZnodeStat) -> OwnerNode:
    try:
        worker_id = str(json.loads(body)["worker_id"])
    except (ValueError, KeyError, TypeError):
        worker_id = ""  # of no catalog that we know: never ours
    return OwnerNode(worker_id=worker_id, session=stat.ephemeralOwner, version=stat.version)


class Nodes(Directory):
    """A worker's reads and writes in ZooKeeper, in one session."""

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
        """Make again what a hand has removed of what every worker needs: the parents, and our session's own node.

        Without its parent no owner node can be made, and a session without its own node is taken for one that is gone,
        though it lives: no worker would own anything until every worker was started again.
        """

        def work(client: KazooClient) -> None:
            asked = [client.exists_async(path) for path in (*_PARENTS, session_path(self._session.id))]
            if any(one.get() is None for one in asked):
                _log.warning("zookeeper: nodes of this ensemble were removed while sessions live: making them again")
                self._prepare(client)

        self._session.ask("looking for what every worker needs", work)

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
    """The error of a process that finds another one under its worker id."""
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
