"""The nodes of this worker's session: that it is alive, how loaded it is, and which bundles it owns.

```
/sessions/{session id}   ephemeral: stands exactly as long as the session; deletes are conditional on it
/workers/{worker id}     ephemeral: its load, as JSON; one process a worker id
/owners/{bundle name}    ephemeral: the worker that owns the bundle, as JSON
```

An owner node is made once and never changed, so its version is 0 whoever made it, and a delete that asks for the
version alone could remove a later owner's (apache/pulsar#295). So each delete is one transaction with a check that the
session which was read as the node's own still stands: while it does, the node is its.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat

from infra.coordination.session import Session
from logstore.errors import InvalidInput, PreconditionFailed
from logstore.ownership import BundleId, OwnerNode, WorkerLoad, bundle_name, parse_bundle

SESSIONS: Final = "/sessions"
WORKERS: Final = "/workers"
OWNERS: Final = "/owners"

_REFUSED: Final = (BadVersionError, NoNodeError, RolledBackError, RuntimeInconsistency)


class Nodes:
    """What a worker reads and writes in ZooKeeper, in one session."""

    def __init__(self, session: Session, worker_id: str, bundles: int) -> None:
        """Speak for `worker_id` in this session.

        Raises:
            ServiceFailed: ZooKeeper refuses us.
            StoreUnavailable, SessionLost: It did not answer, or the session is over.
        """
        self._session, self._worker_id, self._bundles = session, worker_id, bundles
        session.ask("preparing", self._prepare)

    def _prepare(self, client: KazooClient) -> None:
        for path in (SESSIONS, WORKERS, OWNERS):
            client.ensure_path(path)
        _create_own(client, _session_path(self._session.id), b"", self._session.id)

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
                raise PreconditionFailed(
                    f"worker id {self._worker_id}: expected a node of this session, found another's"
                )
            client.set(path, _load_json(load))

        self._session.ask("reporting load", work)

    def workers(self) -> dict[str, WorkerLoad]:
        """Workers with a live session, with the load they told of last."""
        found = self._session.ask(
            "reading workers", lambda client: _read_all(client, WORKERS, client.get_children(WORKERS))
        )
        return {name: _load(body) for name, (body, _) in found.items()}

    def owned(self) -> frozenset[BundleId]:
        """Bundles with an owner, of whatever worker."""
        names = self._session.ask("reading owned bundles", lambda client: client.get_children(OWNERS))
        return frozenset(parse_bundle(name, bundles=self._bundles) for name in names)

    def last_change(self) -> int:
        """A number that is another one whenever an owner node came or went since."""
        return self._session.ask("looking for changes", lambda client: int(client.get(OWNERS)[1].pzxid))

    def owners(self, bundles: Iterable[BundleId] | None = None) -> dict[BundleId, OwnerNode]:
        """Owner nodes, of the bundles asked for or of all; a bundle without one is absent."""
        wanted = sorted(self.owned() if bundles is None else bundles)
        names = [self._name(one) for one in wanted]
        found = self._session.ask("reading owners", lambda client: _read_all(client, OWNERS, names))
        return {one: _owner(*found[name]) for one, name in zip(wanted, names, strict=True) if name in found}

    def take(self, bundles: Iterable[BundleId]) -> frozenset[BundleId]:
        """Create the owner nodes; which of them are this session's afterwards.

        Repeating is harmless: a node that exists counts only if its ephemeral owner is this session.
        """
        wanted = sorted(bundles)
        body = json.dumps({"worker_id": self._worker_id}).encode()

        def work(client: KazooClient) -> None:
            asked = [client.create_async(self._path(one), body, ephemeral=True) for one in wanted]
            for one in asked:
                _unless(one, NodeExistsError)

        self._session.ask("taking bundles", work)
        return self.own(wanted)

    def own(self, bundles: Iterable[BundleId]) -> frozenset[BundleId]:
        """Those of the bundles whose owner node is this session's."""
        return frozenset(one for one, node in self.owners(bundles).items() if node.session == self._session.id)

    def give_up(self, bundles: Iterable[BundleId]) -> None:
        """Delete owner nodes, if they are this session's; others stay."""
        for one in bundles:
            self.remove(one, self._session.id)

    def remove(self, bundle: BundleId, session: int) -> bool:
        """Delete the owner node of that session, whoever asks; False if it is another's by now."""

        def work(client: KazooClient) -> bool:
            found = _read_all(client, OWNERS, [self._name(bundle)]).get(self._name(bundle))
            if found is None or found[1].ephemeralOwner != session:
                return False
            both = client.transaction()
            both.check(_session_path(session), -1)
            both.delete(self._path(bundle), found[1].version)
            return not any(isinstance(result, _REFUSED) for result in both.commit())

        return self._session.ask("giving up a bundle", work)

    def watch(self, client_changed: Any) -> None:  # noqa: ANN401 - kazoo's watcher
        """Have `client_changed` called, once, on kazoo's thread, when workers or owners come or go."""

        def work(client: KazooClient) -> None:
            client.get_children(WORKERS, watch=client_changed)
            client.get_children(OWNERS, watch=client_changed)

        self._session.ask("watching", work)

    def _name(self, bundle: BundleId) -> str:
        return bundle_name(bundle, bundles=self._bundles)

    def _path(self, bundle: BundleId) -> str:
        return f"{OWNERS}/{self._name(bundle)}"


def _session_path(session: int) -> str:
    return f"{SESSIONS}/{session:016x}"


def _create_own(client: KazooClient, path: str, body: bytes, session: int) -> bool:
    """Whether the ephemeral node is this session's afterwards."""
    try:
        client.create(path, body, ephemeral=True)
    except NodeExistsError:
        stat = client.exists(path)
        return stat is not None and stat.ephemeralOwner == session
    return True


def _read_all(client: KazooClient, parent: str, names: Sequence[str]) -> dict[str, tuple[bytes, ZnodeStat]]:
    """Bodies and stats of children, asked for all at once; those that are gone are absent."""
    asked = {name: client.get_async(f"{parent}/{name}") for name in names}
    found = {name: _unless(answer, NoNodeError) for name, answer in asked.items()}
    return {name: answer for name, answer in found.items() if answer is not None}


def _unless(answer: Any, error: type[Exception]) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
    try:
        return answer.get(timeout=30)
    except error:
        return None


def _load_json(load: WorkerLoad) -> bytes:
    return json.dumps({"load": load.load, "bundles": load.bundles}).encode()


def _load(body: bytes) -> WorkerLoad:
    """A load that cannot be read makes a choice worse, not wrong: it counts as none."""
    try:
        found: Mapping[str, Any] = json.loads(body)
        return WorkerLoad(load=max(0.0, float(found["load"])), bundles=max(0, int(found["bundles"])))
    except (ValueError, KeyError, TypeError, OverflowError, InvalidInput):  # JSON may say Infinity
        return WorkerLoad(load=0.0, bundles=0)


def _owner(body: bytes, stat: ZnodeStat) -> OwnerNode:
    try:
        worker_id = str(json.loads(body)["worker_id"])
    except (ValueError, KeyError, TypeError):
        worker_id = ""  # nobody's we know: never ours
    return OwnerNode(worker_id=worker_id, session=stat.ephemeralOwner, version=stat.version)
