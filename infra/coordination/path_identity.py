"""Identity of the catalog that a path of ZooKeeper serves.

```
/catalog   persistent: the catalog's id, which the catalog's first worker writes
```

If two catalogs used one path, bundles of one catalog would be assigned to workers of the other catalog.
"""

from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from infra.coordination.zookeeper_session import ZooKeeperSession
from logstore.errors import CatalogMismatch

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
