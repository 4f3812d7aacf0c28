"""Nodes of sessions, workers and bundle owners in ZooKeeper, and of the catalog that the path serves.

```
/catalog                 persistent: the catalog's id, which the catalog's first worker writes
/sessions/{session id}   ephemeral: checked by each delete of an owner node of the session
/workers/{worker id}     ephemeral: the worker's load, as JSON; one process per worker id
/owners/{bundle name}    ephemeral: the worker that owns the bundle, as JSON
```

A delete that compares only ZooKeeper's version number of an owner node could remove the node of a later bundle owner
(apache/pulsar#295). Therefore each delete is a transaction that also checks the session node of the expected owner.

If two catalogs used one path, bundles of one catalog would be assigned to workers of the other catalog.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat

from infra.coordination.zookeeper_session import ZooKeeperSession
from logstore.errors import CatalogMismatch, InvalidInput, WorkerIdTaken
from logstore.ownership import BundleId, BundleOwnerNode, WorkerLoad, bundle_name, parse_bundle_name

SESSIONS: Final = "/sessions"
WORKERS: Final = "/workers"
OWNERS: Final = "/owners"
_PARENTS: Final = (SESSIONS, WORKERS, OWNERS)

_log = logging.getLogger(__name__)

_FAILED_RESULTS: Final = (BadVersionError, NoNodeError, RolledBackError, RuntimeInconsistency)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    session: int  # session that created the worker's node
    load: WorkerLoad  # as last published


class OwnershipNodes:
    """Nodes of sessions, workers and bundle owners in one ensemble."""

    def __init__(self, session: ZooKeeperSession, bundle_count: int) -> None:
        self._session, self._bundle_count = session, bundle_count
        self._logged_unknown_names: set[str] = set()

    def read_live_sessions(self) -> frozenset[int]:
        names = self._session.run_idempotent("reading sessions", lambda client: _list_children(client, SESSIONS))
        return frozenset(session for name in names if (session := _parse_session(name)) is not None)

    def read_live_workers(self) -> dict[str, LiveWorker]:
        node_by_name = self._session.run_idempotent(
            "reading workers", lambda client: read_children(client, WORKERS, _list_children(client, WORKERS))
        )
        return {
            name: LiveWorker(session=stat.ephemeralOwner, load=_parse_load(body))
            for name, (body, stat) in node_by_name.items()
        }

    def read_owned_bundles(self) -> frozenset[BundleId]:
        """Return the bundles that have an owner node. A node name that is no bundle of this catalog is logged once."""
        names = self._session.run_idempotent("reading owned bundles", lambda client: _list_children(client, OWNERS))
        return frozenset(bundle for bundle in map(self._parse_node_name, names) if bundle is not None)

    def read_owner_nodes(self, bundles: Iterable[BundleId] | None = None) -> dict[BundleId, BundleOwnerNode]:
        name_by_bundle = {
            bundle: self._node_name(bundle)
            for bundle in sorted(self.read_owned_bundles() if bundles is None else bundles)
        }
        node_by_name = self._session.run_idempotent(
            "reading owners", lambda client: read_children(client, OWNERS, list(name_by_bundle.values()))
        )
        return {
            bundle: _parse_owner_node(*node_by_name[name])
            for bundle, name in name_by_bundle.items()
            if name in node_by_name
        }

    def find_owner_node(self, bundle: BundleId, *, patience_s: float) -> BundleOwnerNode | None:
        name = self._node_name(bundle)

        def read_node(client: KazooClient) -> BundleOwnerNode | None:
            root = client.exists_async("/")
            node = read_children(client, OWNERS, [name]).get(name)
            if node is None and root.get() is None:
                raise self._session.missing_path_error()
            return _parse_owner_node(*node) if node else None

        return self._session.run_idempotent("looking an owner up", read_node, patience_s=patience_s)

    def delete_owner_node(self, bundle: BundleId, session: int) -> bool:
        """Delete the bundle's owner node if it belongs to `session`. Return whether this call deleted the node."""

        def delete_node(client: KazooClient) -> bool:
            node = read_children(client, OWNERS, [self._node_name(bundle)]).get(self._node_name(bundle))
            if node is None or node[1].ephemeralOwner != session:
                return False
            transaction = client.transaction()
            transaction.check(session_path(session), -1)
            transaction.delete(self._owner_path(bundle), node[1].version)
            return not any(isinstance(result, _FAILED_RESULTS) for result in transaction.commit())

        return self._session.run_idempotent("giving up a bundle", delete_node)

    def _parse_node_name(self, name: str) -> BundleId | None:
        try:
            return parse_bundle_name(name, bundle_count=self._bundle_count)
        except InvalidInput as error:
            if name not in self._logged_unknown_names:
                self._logged_unknown_names.add(name)
                _log.warning("zookeeper: %s/%s is left alone: %s", OWNERS, name, error)
            return None

    def _node_name(self, bundle: BundleId) -> str:
        return bundle_name(bundle, bundle_count=self._bundle_count)

    def _owner_path(self, bundle: BundleId) -> str:
        return f"{OWNERS}/{self._node_name(bundle)}"


def session_path(session: int) -> str:
    return f"{SESSIONS}/{session:016x}"


def read_children(client: KazooClient, parent: str, names: Sequence[str]) -> dict[str, tuple[bytes, ZnodeStat]]:
    """Read the children in parallel. Return body and stat of each existing child, by name."""
    pending = {name: client.get_async(f"{parent}/{name}") for name in names}
    node_by_name = {name: wait_for_result_or_none(result, NoNodeError) for name, result in pending.items()}
    return {name: node for name, node in node_by_name.items() if node is not None}


def wait_for_result_or_none(result: Any, error: type[Exception]) -> Any:  # noqa: ANN401 - kazoo's asynchronous result
    try:
        return result.get()
    except error:
        return None


def _parse_session(name: str) -> int | None:
    try:
        return int(name, 16)
    except ValueError:  # a node of another program
        return None


def _list_children(client: KazooClient, path: str) -> list[str]:
    try:
        return list(client.get_children(path))
    except NoNodeError:
        return []


def _parse_load(body: bytes) -> WorkerLoad:
    """Parse a worker's load. Return load 0 for an unreadable body, which only makes the assignment less even."""
    try:
        fields: Mapping[str, Any] = json.loads(body)
        load, bundles = max(0.0, float(fields["load"])), max(0, int(fields["bundles"]))
        return WorkerLoad(load=load, bundles=bundles, room=bool(fields.get("room", True)))
    except (ValueError, KeyError, TypeError, OverflowError, InvalidInput):  # JSON may say Infinity, or be a list
        return WorkerLoad(load=0.0, bundles=0)


def _parse_owner_node(body: bytes, stat: ZnodeStat) -> BundleOwnerNode:
    try:
        worker_id = str(json.loads(body)["worker_id"])
    except (ValueError, KeyError, TypeError):
        worker_id = ""  # the body is not Sexton's: no worker has this id
    return BundleOwnerNode(worker_id=worker_id, session=stat.ephemeralOwner, version=stat.version)


class WorkerOwnershipNodes(OwnershipNodes):
    """Nodes that one session of a worker can change. Construction creates the parent nodes and the session node."""

    def __init__(self, session: ZooKeeperSession, worker_id: str, bundle_count: int) -> None:
        super().__init__(session, bundle_count)
        self._worker_id = worker_id
        session.run_idempotent("preparing", self._create_parent_and_session_nodes)

    def _create_parent_and_session_nodes(self, client: KazooClient) -> None:
        for path in _PARENTS:
            client.ensure_path(path)
            self._session.protect_node(client, path)
        _create_ephemeral(client, session_path(self._session.id), b"", self._session.id)

    def restore_parent_and_session_nodes(self) -> None:
        """Create the parent nodes and the session node again if a person has removed them.

        Without a parent node, no owner node can be created. Without a session node, no owner node can be deleted.
        """

        def restore(client: KazooClient) -> None:
            results = [client.exists_async(path) for path in (*_PARENTS, session_path(self._session.id))]
            if any(result.get() is None for result in results):
                _log.warning("zookeeper: nodes of this ensemble were removed while sessions live: making them again")
                self._create_parent_and_session_nodes(client)

        self._session.run_idempotent("looking for what every worker needs", restore)

    def register_worker(self, load: WorkerLoad) -> bool:
        """Create the worker's node unless it exists. Return whether the node belongs to this session."""
        path = f"{WORKERS}/{self._worker_id}"
        body, session = _format_load(load), self._session.id
        return self._session.run_idempotent("enlisting", lambda client: _create_ephemeral(client, path, body, session))

    def publish_load(self, load: WorkerLoad) -> None:
        path = f"{WORKERS}/{self._worker_id}"

        def write_load(client: KazooClient) -> None:
            _, stat = client.get(path)
            if stat.ephemeralOwner != self._session.id:
                raise WorkerIdTaken(f"worker id {self._worker_id}: expected a node of this session, found another's")
            client.set(path, _format_load(load))

        self._session.run_idempotent("reporting load", write_load)

    def read_owner_change_counter(self) -> int:
        """Return a number that changes whenever an owner node is created or deleted."""
        return self._session.run_idempotent("looking for changes", lambda client: int(client.get(OWNERS)[1].pzxid))

    def create_owner_nodes(self, bundles: Iterable[BundleId]) -> frozenset[BundleId]:
        """Create missing owner nodes. Return the bundles whose node belongs to this session. Idempotent."""
        ordered_bundles = sorted(bundles)
        body = json.dumps({"worker_id": self._worker_id}).encode()

        def create_nodes(client: KazooClient) -> None:
            results = [
                client.create_async(self._owner_path(bundle), body, ephemeral=True) for bundle in ordered_bundles
            ]
            for result in results:
                wait_for_result_or_none(result, NodeExistsError)

        self._session.run_idempotent("taking bundles", create_nodes)
        return self.filter_own_bundles(ordered_bundles)

    def filter_own_bundles(self, bundles: Iterable[BundleId]) -> frozenset[BundleId]:
        return frozenset(
            bundle for bundle, node in self.read_owner_nodes(bundles).items() if node.session == self._session.id
        )

    def delete_own_nodes(self, bundles: Iterable[BundleId]) -> None:
        for bundle in bundles:
            self.delete_owner_node(bundle, self._session.id)

    def watch_next_ownership_change(self, on_change: Any) -> None:  # noqa: ANN401 - kazoo's watcher
        """Call `on_change`, on kazoo's thread, after the next creation or removal of a worker node or owner node."""

        def set_watches(client: KazooClient) -> None:
            client.get_children(WORKERS, watch=on_change)
            client.get_children(OWNERS, watch=on_change)

        self._session.run_idempotent("watching", set_watches)


def worker_id_taken_error(worker_id: str) -> WorkerIdTaken:
    return WorkerIdTaken(f"worker id {worker_id}: expected to be free, found another process alive under it")


def _create_ephemeral(client: KazooClient, path: str, body: bytes, session: int) -> bool:
    """Create the node unless it exists. Return whether the node belongs to the session."""
    try:
        client.create(path, body, ephemeral=True)
    except NodeExistsError:
        stat = client.exists(path)
        return stat is not None and stat.ephemeralOwner == session
    return True


def _format_load(load: WorkerLoad) -> bytes:
    return json.dumps({"load": load.load, "bundles": load.bundles, "room": load.room}).encode()


CATALOG: Final = "/catalog"


def claim_path_for_catalog(session: ZooKeeperSession, catalog_id: str) -> None:
    """Write the catalog's id to the path unless the path has an id. At most one catalog succeeds. Idempotent.

    Raises:
        CatalogMismatch: The path belongs to another catalog.
    """

    def write_id(client: KazooClient) -> str:
        try:
            client.create(CATALOG, catalog_id.encode())
        except NodeExistsError:
            session.protect_node(client, CATALOG)
            return _read_catalog_id(client) or catalog_id  # a person has removed the id: the next session writes it
        return catalog_id

    _require_same_catalog(session, session.run_idempotent("claiming the path", write_id), catalog_id)


def check_path_belongs_to_catalog(session: ZooKeeperSession, catalog_id: str) -> bool:
    """Check, without writing, that no other catalog has the path. Return whether the path has this catalog's id.

    Raises:
        CatalogMismatch: The path belongs to another catalog.
    """
    stored_id = session.run_idempotent("reading whose the path is", _read_catalog_id)
    if stored_id is not None:
        _require_same_catalog(session, stored_id, catalog_id)
    return stored_id is not None


def _read_catalog_id(client: KazooClient) -> str | None:
    try:
        return str(client.get(CATALOG)[0], "utf-8", "replace")
    except NoNodeError:
        return None


def _require_same_catalog(session: ZooKeeperSession, stored_id: str, catalog_id: str) -> None:
    if stored_id != catalog_id:
        raise CatalogMismatch(
            f"zookeeper path {session.address}",
            expected=f"that of catalog {catalog_id}",
            found=f"that of catalog {stored_id}",
            advice="give each catalog a path of its own: the setting `zookeeper`, as in host:2181/sexton",
        )
