"""Which catalog a path of ZooKeeper serves: two on one path would take each other's workers for their own.

```
/catalog   persistent: the catalog's id, put by the first of its workers that takes part
```
"""

from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from infra.coordination.session import ZooKeeperSession
from logstore.errors import CatalogMismatch

CATALOG: Final = "/catalog"


def claim_path(session: ZooKeeperSession, catalog_id: str) -> None:
    """See that the path is this catalog's; one without a node becomes so, and of several catalogs one wins.

    Repeating it is harmless.

    Raises:
        CatalogMismatch: It is another catalog's.
        StoreUnavailable, SessionLost, ServiceFailed: ZooKeeper could not be asked.
    """

    def work(client: KazooClient) -> str:
        try:
            client.create(CATALOG, catalog_id.encode())
        except NodeExistsError:
            session.protect(client, CATALOG)
            return _read(client) or catalog_id  # removed by hand in between: the next session puts it again
        return catalog_id

    _compare(session, session.ask("claiming the path", work), catalog_id)


def compare_path(session: ZooKeeperSession, catalog_id: str) -> bool:
    """Whether the path is known to be this catalog's; False where no worker of any catalog was ever started on it.

    Raises:
        CatalogMismatch, StoreUnavailable, SessionLost, ServiceFailed: As `claim_path`.
    """
    found = session.ask("reading whose the path is", _read)
    if found is not None:
        _compare(session, found, catalog_id)
    return found is not None


def _read(client: KazooClient) -> str | None:
    try:
        return str(client.get(CATALOG)[0], "utf-8", "replace")
    except NoNodeError:
        return None


def _compare(session: ZooKeeperSession, found: str, catalog_id: str) -> None:
    if found != catalog_id:
        raise CatalogMismatch(
            f"zookeeper path {session.address}",
            expected=f"that of catalog {catalog_id}",
            found=f"that of catalog {found}",
            advice="give each catalog a path of its own: the setting `zookeeper`, as in host:2181/sexton",
        )
