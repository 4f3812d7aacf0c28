"""Scan of all ledgers of a cluster.

Source: BookKeeper's hierarchical ledger managers; PulsarLedgerManager has the same layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.ledger_metadata import LedgerMetadata, parse_ledger_metadata
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import is_ledger_folder, parse_ledger_path


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """Ledger of a scan. `problem` says why its metadata cannot be read; `metadata` is then `None`."""

    ledger_id: int
    path: str  # below the ledgers' root
    znode: Znode
    metadata: LedgerMetadata | None
    problem: str = ""


def list_ledger_folders(reader: ZnodeReader, root: str) -> list[str]:
    """Return the folders of the first level, such as `00` and `000`, which together have all ledgers."""
    ((_, names),) = reader.list_children([root])
    if names is None:
        raise UnreadableMetadata(f"/{root}: expected the ledgers of a cluster, found no such znode")
    flat = next((name for name in names if name.startswith("L") and name[1:].isdigit()), None)
    if flat:
        raise UnreadableMetadata(f'/{root}: expected the hierarchical layout, found a ledger of the flat one, "{flat}"')
    return [name for name in names if is_ledger_folder(name)]


def scan_ledgers(reader: ZnodeReader, root: str, folders: Sequence[str]) -> Iterator[FoundLedger]:
    """Yield the ledgers below folders of the first level. A ledger that vanishes during the scan is left out.

    Raises:
        UnreadableMetadata: A folder has a child that is neither a folder nor a ledger.
    """
    for folder in folders:
        depth = 1 if len(folder) == 2 else 3  # folders below the first level
        for leaf_folder in _list_leaf_folders(reader, f"{root}/{folder}", depth):
            yield from _scan_leaf_folder(reader, root, leaf_folder)


def _list_leaf_folders(reader: ZnodeReader, folder: str, depth: int) -> Iterator[str]:
    ((_, names),) = reader.list_children([folder])
    for name in names or ():
        path = f"{folder}/{name}"
        if depth == 1:
            yield path
        else:
            yield from _list_leaf_folders(reader, path, depth - 1)


def _scan_leaf_folder(reader: ZnodeReader, root: str, folder: str) -> Iterator[FoundLedger]:
    ((_, names),) = reader.list_children([folder])
    id_by_path = {f"{folder}/{name}": parse_ledger_path(f"{folder}/{name}"[len(root) + 1 :]) for name in names or ()}
    for path, znode in reader.read(list(id_by_path)):
        if znode is None:
            continue
        try:
            metadata, problem = parse_ledger_metadata(znode.data), ""
        except UnreadableMetadata as error:
            metadata, problem = None, str(error)
        yield FoundLedger(id_by_path[path], path[len(root) + 1 :], znode, metadata, problem)
