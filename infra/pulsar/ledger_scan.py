"""Scan of all ledgers of a cluster.

Source: BookKeeper's hierarchical ledger managers; PulsarLedgerManager has the same layout.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from infra.pulsar.scan_facts import ScanProblem
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, LedgerMetadata, parse_ledger_metadata
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import format_ledger_path, is_ledger_folder, parse_ledger_path

_REPLICATION_LOCK: Final = re.compile(r"urL(\d{10,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class LedgerZnode:
    """Ledger of a scan. Its metadata is `None` if it cannot be read.

    `problem` then says why. An empty znode has no problem: there is nothing to read (apache/pulsar#13480).
    """

    ledger_id: int
    path: str  # below the ledgers' root
    znode: Znode
    metadata: LedgerMetadata | None
    problem: str = ""

    @property
    def state(self) -> BookKeeperLedgerState:
        """State of the ledger. A ledger whose metadata cannot be read counts as open."""
        return self.metadata.state if self.metadata else BookKeeperLedgerState.OPEN


def list_leaf_folders(reader: ZnodeReader, root: str) -> list[str]:
    """Return the folders that contain ledgers, such as `ledgers/00/0012`. Each has at most 10,000 ledgers.

    Raises:
        UnreadableMetadata: The root does not exist, or has another layout than the hierarchical ones.
    """
    ((_, names),) = reader.list_children([root])
    if names is None:
        raise UnreadableMetadata(f"/{root}", expected="the ledgers of a cluster", found="no such znode")
    flat = next((name for name in names if name.startswith("L") and name[1:].isdigit()), None)
    if flat:
        raise UnreadableMetadata(
            f"/{root}", expected="the hierarchical layout", found=f"{flat}, a ledger of the flat one"
        )
    leaf_folders: list[str] = []
    for digits, depth in ((2, 1), (3, 3)):  # levels of folders below the first one, for short and long ids
        folders = [f"{root}/{name}" for name in names if is_ledger_folder(name) and len(name) == digits]
        for _ in range(depth):
            listed = reader.list_children(folders)
            folders = [f"{folder}/{name}" for folder, children in listed for name in children or ()]
        leaf_folders += folders
    return leaf_folders


def count_ledgers(reader: ZnodeReader, leaf_folders: Iterable[str]) -> int:
    """Return the number of ledgers in some folders."""
    return sum(znode.children for _, znode in reader.read(leaf_folders) if znode is not None)


def scan_leaf_folders(
    reader: ZnodeReader, root: str, leaf_folders: Iterable[str]
) -> Iterator[LedgerZnode | ScanProblem]:
    """Yield the ledgers of some folders, and children that are none. A ledger that vanishes meanwhile is left out."""
    for path, znode in reader.read(reader.list_paths(leaf_folders)):
        if znode is None:
            continue
        ledger_path = path[len(root) + 1 :]
        try:
            ledger_id = parse_ledger_path(ledger_path)
        except UnreadableMetadata as error:
            yield ScanProblem(path, str(error))
            continue
        yield parse_ledger(ledger_id, ledger_path, znode)


def parse_ledger(ledger_id: int, path: str, znode: Znode) -> LedgerZnode:
    try:
        return LedgerZnode(ledger_id, path, znode, parse_ledger_metadata(znode.data))
    except UnreadableMetadata as error:
        return LedgerZnode(ledger_id, path, znode, None, str(error) if znode.data else "")


def read_ledger_metadata(
    reader: ZnodeReader, root: str, ledger_ids: Sequence[int]
) -> dict[int, LedgerMetadata | UnreadableMetadata]:
    """Return the metadata of some ledgers in their order, or the reason why it is unknown."""
    return {
        ledger_id: metadata
        or UnreadableMetadata(f"ledger {ledger_id}", expected="an existing one", found="no such znode")
        for ledger_id, metadata in find_ledger_metadata(reader, root, ledger_ids).items()
    }


def find_ledger_metadata(
    reader: ZnodeReader, root: str, ledger_ids: Sequence[int]
) -> dict[int, LedgerMetadata | UnreadableMetadata | None]:
    """Return the metadata of some ledgers in their order, or why it is unreadable, or `None` for an absent ledger."""
    results: dict[int, LedgerMetadata | UnreadableMetadata | None] = {}
    znodes = reader.read([f"{root}/{format_ledger_path(ledger_id)}" for ledger_id in ledger_ids])
    for ledger_id, (_, znode) in zip(ledger_ids, znodes, strict=True):
        try:
            results[ledger_id] = parse_ledger_metadata(znode.data) if znode is not None else None
        except UnreadableMetadata as error:
            results[ledger_id] = error
    return results


def find_existing_ledgers(reader: ZnodeReader, root: str, ledger_ids: Sequence[int]) -> frozenset[int]:
    """Return those of the ledgers that exist. Their values are not parsed."""
    znodes = reader.read([f"{root}/{format_ledger_path(ledger_id)}" for ledger_id in ledger_ids])
    return frozenset(ledger_id for ledger_id, (_, znode) in zip(ledger_ids, znodes, strict=True) if znode is not None)


def list_locked_ledgers(reader: ZnodeReader, root: str) -> Iterator[int | ScanProblem]:
    """Yield the ledgers that replication workers have locked, and locks with unknown names.

    Source: BookKeeper's `ZkLedgerUnderreplicationManager`. The locks are in one folder, unlike the ledgers that wait
    for replication.
    """
    for path in reader.list_paths([f"{root}/underreplication/locks"]):
        match = _REPLICATION_LOCK.fullmatch(path.rpartition("/")[2])
        yield (
            int(match[1])
            if match
            else ScanProblem(path, "expected a lock with the name of a ledger, such as urL0000000007")
        )
