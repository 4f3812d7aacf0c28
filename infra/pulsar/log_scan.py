"""Scan of the ledgers of DistributedLog: packages of functions, package management, and the table service.

A ledger is allocated first, and becomes a segment later: one transaction moves its id from the znode of an allocation
to the znode of a segment. Allocations are therefore read before segments.

Source: BookKeeper's `LogMetadata`, `SimpleLedgerAllocator` and `BKNamespaceDriver`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from infra.pulsar.scan_facts import ScanFact, ScannedReference, ScanProblem, catch_unreadable
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.ledger_references import find_log_allocation_reference, find_log_segment_reference

_LOG: Final = "<default>"  # child of a folder that makes it a log
_SEGMENT_PREFIXES: Final = ("inprogress_", "logrecs_")
_POOL_PREFIX: Final = "."  # of the folder of allocation pools, which DistributedLog requires
_FOLDERS_PER_BATCH: Final = 1_000
_MAX_SEGMENT_LISTS: Final = 5
"""Times that the segments of a log are listed. They change every few minutes at most."""


def scan_logs(reader: ZnodeReader, roots: Sequence[str]) -> Iterator[ScanFact]:
    """Yield what the logs below `roots` refer to. Logs nest to any depth; other znodes are folders of logs."""
    # The logs are listed after the pools are read, because a log that is created meanwhile may use a pool's ledger.
    pools = [path for path in _walk_folders(reader, roots) if _is_pool(path)]
    yield from _scan_pools(reader, pools)
    logs = (path for path in _walk_folders(reader, roots) if not _is_pool(path))
    while batch := list(islice(logs, _FOLDERS_PER_BATCH)):
        for path in batch:
            if _is_segment(path):
                yield ScanProblem(path, f"expected a segment of a log only below {_LOG}")
        folders = [path for path in batch if not _is_segment(path)]
        yield from _scan_allocations(reader, [f"{log}/allocation" for log in folders])
        yield from _scan_segments(reader, [f"{log}/ledgers" for log in folders])


def find_folder_of_logs(path: str) -> str:
    """Return a root from which `scan_logs` yields the reference at `path`."""
    folders = path.split("/")
    first = next(index for index, name in enumerate(folders) if name == _LOG or name.startswith(_POOL_PREFIX))
    return "/".join(folders[:first])


def _walk_folders(reader: ZnodeReader, roots: Sequence[str]) -> Iterator[str]:
    """Yield logs, folders of allocation pools, and segments that are not in a log."""
    remaining = list(roots)
    while remaining:
        batch, remaining = remaining[-_FOLDERS_PER_BATCH:], remaining[:-_FOLDERS_PER_BATCH]
        for path in reader.list_paths(batch):
            if path.endswith(f"/{_LOG}") or _is_pool(path) or _is_segment(path):
                yield path
            else:
                remaining.append(path)


def _is_pool(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_POOL_PREFIX)


def _is_segment(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_SEGMENT_PREFIXES)


def _scan_pools(reader: ZnodeReader, pools: Iterable[str]) -> Iterator[ScanFact]:
    """Yield the allocations below folders of pools: `.allocation_pool/{name of the pool}/A{number}`, or elsewhere."""
    remaining = list(pools)
    while remaining:
        remaining = list(reader.list_paths(remaining))
        yield from _scan_allocations(reader, remaining)


def _scan_allocations(reader: ZnodeReader, paths: Sequence[str]) -> Iterator[ScanFact]:
    for path, znode in reader.read(paths):
        if znode is not None:
            yield from catch_unreadable(path, partial(_find_allocation_facts, path, znode.data))


def _scan_segments(reader: ZnodeReader, folders: Sequence[str]) -> Iterator[ScanFact]:
    """Yield the ledgers of all segments of some logs.

    A segment that is completed gets another name in one transaction. If a listed segment is absent, its log is listed
    again.
    """
    changed_folders = list(folders)
    for _ in range(_MAX_SEGMENT_LISTS):
        names_by_folder = {folder: names or [] for folder, names in reader.list_children(changed_folders)}
        paths = [f"{folder}/{name}" for folder, names in names_by_folder.items() for name in names]
        znode_by_path = dict(reader.read(paths))
        changed_folders = []
        for folder, names in names_by_folder.items():
            segments = {path: znode_by_path[path] for path in (f"{folder}/{name}" for name in names)}
            if None in segments.values():
                changed_folders.append(folder)
                continue
            for path, znode in segments.items():
                if not _is_segment(path):
                    yield ScanProblem(path, "expected a segment of a log")
                elif znode is not None:
                    yield from catch_unreadable(path, partial(_find_segment_facts, path, znode.data))
        if not changed_folders:
            return
    for folder in changed_folders:
        yield ScanProblem(folder, f"expected a list of segments that stays, found {_MAX_SEGMENT_LISTS} different lists")


def _find_segment_facts(path: str, data: bytes) -> list[ScanFact]:
    return [ScannedReference(find_log_segment_reference(data), path, "log_segment")]


def _find_allocation_facts(path: str, data: bytes) -> list[ScanFact]:
    ledger_id = find_log_allocation_reference(data)
    return [] if ledger_id is None else [ScannedReference(ledger_id, path, "log_allocation")]
