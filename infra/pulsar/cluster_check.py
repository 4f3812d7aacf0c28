"""Check of what a plan needs of a cluster, and the cluster's identity."""

from collections.abc import Callable
from typing import Final

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.ledger_scan import list_leaf_folders
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.cluster_check import ClusterCapability, ClusterCheck
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS

_LEDGER_MANAGERS: Final = ("HierarchicalLedgerManagerFactory", "LongHierarchicalLedgerManagerFactory")
_CLUSTERS: Final = "admin/clusters"
_GLOBAL: Final = "global"  # entry of the list of clusters that is none


def check_cluster(reader: ZnodeReader, ledgers_root: str) -> ClusterCheck:
    """Read what a plan needs. Nothing is written, and no ledger is read."""
    checks: tuple[tuple[str, Callable[[ZnodeReader, str], str]], ...] = (
        ("layout", _describe_layout),
        ("managed_ledgers", _describe_managed_ledgers),
        ("bookies", _describe_bookies),
    )
    return ClusterCheck(
        cluster=", ".join(list_cluster_names(reader)),
        identity=read_cluster_identity(reader, ledgers_root),
        capabilities=tuple(_make_capability(name, describe, reader, ledgers_root) for name, describe in checks),
    )


def list_cluster_names(reader: ZnodeReader) -> list[str]:
    """Return the clusters that a configuration store knows, ascending: this cluster, and those it replicates with."""
    ((_, names),) = reader.list_children([_CLUSTERS])
    return [name for name in names or () if name != _GLOBAL]


def read_cluster_identity(reader: ZnodeReader, ledgers_root: str) -> str:
    """Return the id of the BookKeeper cluster, if it has one, and the transactions that created the two roots."""
    paths = [f"{ledgers_root}/INSTANCEID", ledgers_root, MANAGED_LEDGERS]
    instance, ledgers, managed_ledgers = (znode for _, znode in reader.read(paths))
    instance_id = instance.data.decode(errors="replace") if instance else "no INSTANCEID"
    roots = [f"{znode.czxid:x}" if znode else "absent" for znode in (ledgers, managed_ledgers)]
    return "/".join([instance_id, *roots])


def _make_capability(
    name: str, describe: Callable[[ZnodeReader, str], str], reader: ZnodeReader, ledgers_root: str
) -> ClusterCapability:
    try:
        return ClusterCapability(name=name, ok=True, detail=describe(reader, ledgers_root))
    except UnreadableMetadata as error:
        return ClusterCapability(name=name, ok=False, detail=str(error))


def _describe_layout(reader: ZnodeReader, ledgers_root: str) -> str:
    folders = list_leaf_folders(reader, ledgers_root)
    ((_, layout),) = reader.read([f"{ledgers_root}/LAYOUT"])
    if layout is None:
        return f"hierarchical, {len(folders):,} folders of ledgers, no LAYOUT"
    text = layout.data.decode(errors="replace")
    factory = text.partition("\n")[2].partition(":")[0].rpartition(".")[2]
    if factory not in _LEDGER_MANAGERS:
        raise UnreadableMetadata(f"/{ledgers_root}/LAYOUT", expected=" or ".join(_LEDGER_MANAGERS), found=repr(text))
    return f"{factory}, {len(folders):,} folders of ledgers"


def _describe_managed_ledgers(reader: ZnodeReader, ledgers_root: str) -> str:
    del ledgers_root
    ((_, tenants),) = reader.list_children([MANAGED_LEDGERS])
    if not tenants:
        raise UnreadableMetadata(f"/{MANAGED_LEDGERS}", expected="the tenants of a Pulsar cluster", found="none")
    return f"{len(tenants):,} tenants"


def _describe_bookies(reader: ZnodeReader, ledgers_root: str) -> str:
    available, read_only = (f"{ledgers_root}/available", f"{ledgers_root}/available/readonly")
    listed = dict(reader.list_children([available, read_only]))
    bookie_ids = [name for name in listed[available] or () if name != "readonly"] + (listed[read_only] or [])
    directory = BookieDirectory(reader, ledgers_root)
    without_address = [bookie_id for bookie_id in bookie_ids if directory.find_address(bookie_id) is None]
    if not bookie_ids or without_address:
        found = f"none for {', '.join(without_address)}" if without_address else "no bookie"
        raise UnreadableMetadata(f"/{available}", expected="bookies with addresses", found=found)
    return f"{len(bookie_ids):,} bookies, {len(listed[read_only] or []):,} of them read-only"
