"""Scan of all references to ledgers that the metadata of a cluster contains.

Each walk yields references, and problems where something cannot be read. A scan with a problem is incomplete. A znode
that vanishes during the walk refers to nothing any more.

Source: the table of references in Pulsar's metadata, checked on a running cluster.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from infra.pulsar.scan_problem import ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.ledger_references import (
    COMPACTION_CURSOR,
    ManagedLedgerReferences,
    OffloadAttempt,
    find_cursor_references,
    find_log_allocation_reference,
    find_log_segment_reference,
    find_managed_ledger_references,
    find_schema_references,
)
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, SCHEMAS, parse_managed_ledger_path

LOG_ROOTS: Final = ("pulsar/functions", "pulsar/packages", "stream/storage", "stream/segments")
"""Roots of DistributedLog's logs: packages of functions, package management, and the table service."""

_LOG_MARK: Final = "<default>"  # child of a log that has its segments
_LOG_SEGMENT_PREFIXES: Final = ("inprogress_", "logrecs_")
_ALLOCATION_POOL: Final = ".allocation_pool"
_TOPICS_PER_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class FoundReference:
    """Reference to a ledger. `path` is relative to the chroot of the cluster."""

    ledger_id: int
    path: str
    source: str  # field, such as `ledgers` or `cursor_ledger_id`
    owns: bool = True  # False: a shadow topic lists the ledger of another topic
    may_dangle: bool = False  # nothing is lost if the ledger is absent


@dataclass(frozen=True, slots=True)
class FoundOffload:
    """Tiered objects that a managed ledger names."""

    managed_ledger: str
    attempt: OffloadAttempt


@dataclass(frozen=True, slots=True)
class FoundCompactionCursor:
    """Compaction cursor whose state, with the compacted ledger, is in the last entry of a cursor ledger."""

    path: str
    cursor_ledger_id: int


@dataclass(frozen=True, slots=True)
class FoundManagedLedger:
    """Managed ledger of a scan."""

    name: str
    ledgers: int
    shadow_source: str = ""


FoundFact = FoundReference | FoundOffload | FoundCompactionCursor | FoundManagedLedger | ScanProblem


def scan_references(
    reader: ZnodeReader, namespaces: Sequence[str], schema_tenants: Sequence[str], *, has_logs: bool
) -> Iterator[FoundFact]:
    """Yield what these parts of the metadata refer to, and with `has_logs` also what logs refer to."""
    yield from scan_managed_ledgers(reader, namespaces)
    yield from scan_schemas(reader, schema_tenants)
    if has_logs:
        yield from scan_logs(reader)


def list_namespaces(reader: ZnodeReader) -> list[str] | None:
    """Return the parents at the second level of managed ledgers, or `None` for a cluster without managed ledgers."""
    ((_, tenants),) = reader.list_children([MANAGED_LEDGERS])
    if tenants is None:
        return None
    return list(_list_paths(reader, [f"{MANAGED_LEDGERS}/{tenant}" for tenant in tenants]))


def scan_managed_ledgers(reader: ZnodeReader, parents: Sequence[str]) -> Iterator[FoundFact]:
    """Yield what managed ledgers and their cursors below `parents` refer to. See `list_namespaces`."""
    remaining = list(parents)
    while remaining:
        path = remaining.pop()
        ((_, parent),) = reader.read([path])
        if parent is not None and parent.data:
            yield ScanProblem(path, "expected a parent of managed ledgers without data")
        topics: list[str] = []
        for child in _list_paths(reader, [path]):
            try:
                parsed = parse_managed_ledger_path(child[len(MANAGED_LEDGERS) + 1 :])
            except UnreadableMetadata as error:
                yield ScanProblem(child, str(error))
                continue
            (remaining if parsed is None else topics).append(child)
        for start in range(0, len(topics), _TOPICS_PER_BATCH):
            yield from _scan_topics(reader, topics[start : start + _TOPICS_PER_BATCH])


def list_schema_tenants(reader: ZnodeReader) -> list[str]:
    """Return the parents at the first level of schemas. A cluster may have none."""
    return list(_list_paths(reader, [SCHEMAS]))


def scan_schemas(reader: ZnodeReader, tenants: Sequence[str]) -> Iterator[FoundFact]:
    """Yield what schemas of tenants refer to: `schemas/tenant/namespace/topic`. See `list_schema_tenants`."""
    for tenant in tenants:
        topics = list(_list_paths(reader, list(_list_paths(reader, [tenant]))))
        for path, znode in reader.read(topics):
            if znode is None:
                continue
            yield from _facts_or_problem(path, partial(find_facts_of_schema, path, znode.data))
            if znode.children:
                yield ScanProblem(path, f"expected a schema without children, found {znode.children}")


def scan_logs(reader: ZnodeReader, roots: Sequence[str] = LOG_ROOTS) -> Iterator[FoundFact]:
    """Yield what the logs of DistributedLog refer to. Logs nest to any depth; other znodes are folders of logs."""
    folders = list(roots)
    while folders:
        batch, folders = folders[-_TOPICS_PER_BATCH:], folders[:-_TOPICS_PER_BATCH]
        for folder, names in list(reader.list_children(batch)):
            for name in names or ():
                path = f"{folder}/{name}"
                if name == _LOG_MARK:
                    yield from _scan_log(reader, path)
                elif name == _ALLOCATION_POOL:
                    yield from _scan_allocations(reader, list(_list_paths(reader, [path])))
                else:
                    folders.append(path)


def _scan_topics(reader: ZnodeReader, topics: Sequence[str]) -> Iterator[FoundFact]:
    for path, znode in reader.read(topics):
        if znode is not None:
            yield from _facts_or_problem(path, partial(find_facts_of_managed_ledger, path, znode.data))
    cursors = list(_list_paths(reader, topics))
    for path, znode in reader.read(cursors):
        if znode is not None:
            yield from _facts_or_problem(path, partial(find_facts_of_cursor, path, znode.data))
            if znode.children:
                yield ScanProblem(path, f"expected a cursor without children, found {znode.children}")


def _scan_log(reader: ZnodeReader, log: str) -> Iterator[FoundFact]:
    yield from _scan_allocations(reader, [f"{log}/allocation"])
    segments = f"{log}/ledgers"
    for path, znode in reader.read(list(_list_paths(reader, [segments]))):
        if znode is None:
            continue
        if path.removeprefix(f"{segments}/").startswith(_LOG_SEGMENT_PREFIXES):
            yield from _facts_or_problem(path, partial(_log_segment_facts, path, znode.data))
        else:
            yield ScanProblem(path, "expected a segment of a log")


def _scan_allocations(reader: ZnodeReader, paths: Sequence[str]) -> Iterator[FoundFact]:
    for path, znode in reader.read(paths):
        if znode is not None:
            yield from _facts_or_problem(path, partial(_log_allocation_facts, path, znode.data))


def _list_paths(reader: ZnodeReader, parents: Sequence[str]) -> Iterator[str]:
    for parent, names in reader.list_children(parents):
        for name in names or ():
            yield f"{parent}/{name}"


def _facts_or_problem(path: str, find_facts: Callable[[], list[FoundFact]]) -> Iterator[FoundFact]:
    try:
        yield from find_facts()
    except UnreadableMetadata as error:
        yield ScanProblem(path, str(error))


def find_facts_of_managed_ledger(path: str, data: bytes) -> list[FoundFact]:
    """Return the facts of a managed ledger. Pulsar drops a missing last ledger from the list and goes on."""
    references: ManagedLedgerReferences = find_managed_ledger_references(data)
    name, owns = path.removeprefix(f"{MANAGED_LEDGERS}/"), not references.shadow_source
    may_dangle = references.ledgers_given_up | set(references.ledger_ids[-1:]) if owns else set(references.ledger_ids)
    return [
        FoundManagedLedger(name, len(references.ledger_ids), references.shadow_source),
        *(
            FoundReference(ledger_id, path, "ledgers", owns, ledger_id in may_dangle)
            for ledger_id in references.ledger_ids
        ),
        *(FoundOffload(name, attempt) for attempt in references.offloads),
    ]


def find_facts_of_cursor(path: str, data: bytes) -> list[FoundFact]:
    """Return the facts of a cursor. The state of a compaction cursor with a ledger has to be read from its ledger."""
    references = find_cursor_references(data)
    facts: list[FoundFact] = [
        FoundReference(ledger_id, path, "cursor_properties") for ledger_id in references.bucket_ledger_ids
    ]
    if references.cursor_ledger_id is not None:
        facts.append(FoundReference(references.cursor_ledger_id, path, "cursor_ledger_id"))
        if path.endswith(f"/{COMPACTION_CURSOR}"):
            facts.append(FoundCompactionCursor(path, references.cursor_ledger_id))
    elif references.compacted_ledger_id is not None:
        facts.append(FoundReference(references.compacted_ledger_id, path, "compacted_ledger"))
    return facts


def find_facts_of_schema(path: str, data: bytes) -> list[FoundFact]:
    return [FoundReference(ledger_id, path, "versions") for ledger_id in find_schema_references(data)]


def _log_segment_facts(path: str, data: bytes) -> list[FoundFact]:
    return [FoundReference(find_log_segment_reference(data), path, "log_segment")]


def _log_allocation_facts(path: str, data: bytes) -> list[FoundFact]:
    ledger_id = find_log_allocation_reference(data)
    return [] if ledger_id is None else [FoundReference(ledger_id, path, "log_allocation")]
