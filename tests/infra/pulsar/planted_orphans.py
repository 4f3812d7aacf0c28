"""Orphan ledgers in a cluster on a real ZooKeeper, and what a plan says about them."""

from collections.abc import Mapping

from kazoo.client import KazooClient

from logstore.positions import LedgerId
from logstore.pulsar.ledger_metadata import find_stated_owner, parse_ledger_metadata
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import Finding, FindingKind
from tests.logstore.pulsar import wire

TOPIC = "managed-ledgers/t/ns/persistent/a"
CURSOR = f"{TOPIC}/billing"
SCHEMA = "schemas/t/ns/a"

OF_TOPIC = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": "t/ns/persistent/a"}
OF_CURSOR = OF_TOPIC | {"pulsar/cursor": "billing"}
OF_SCHEMA = {"application": "pulsar", "component": "schema", "pulsar/schemaId": "t/ns/a"}


def write(cluster: KazooClient, path: str, value: bytes = b"") -> None:
    cluster.create(f"/{path}", value, makepath=True)


def plant_orphan(
    cluster: KazooClient, ledger_id: int, custom: Mapping[str, str], *, bookies: tuple[str, ...] = ("127.0.0.1:1",)
) -> Finding:
    """Create a ledger to which nothing refers. Return it as a plan would."""
    path = f"ledgers/{format_ledger_path(ledger_id)}"
    data = wire.ledger_metadata(custom=custom, bookies=bookies)
    write(cluster, path, data)
    stat, owner = cluster.exists(f"/{path}"), find_stated_owner(parse_ledger_metadata(data))
    assert owner
    statement = {
        "version": str(stat.version),
        "czxid": str(stat.czxid),
        "component": owner.component.value,
        "owner": owner.path,
        "confirmed": "true",
    }
    return Finding(
        kind=FindingKind.ORPHAN_LEDGER,
        ledger_id=LedgerId(ledger_id),
        key=f"/{path}",
        objects=1,
        size_bytes=100,
        statement=statement,
    )


def read_tree(cluster: KazooClient) -> dict[str, tuple[bytes, object]]:
    """Return value and access rights of all znodes but those of Sexton itself."""
    tree: dict[str, tuple[bytes, object]] = {}
    remaining = ["/"]
    while remaining:
        path = remaining.pop()
        if path == "/sexton":
            continue
        tree[path] = (cluster.get(path)[0], tuple(cluster.get_acls(path)[0]))
        remaining += [f"{path.rstrip('/')}/{name}" for name in cluster.get_children(path)]
    return tree
