"""Scan of all references to ledgers that the metadata of a cluster contains.

Each walk yields references, and problems where something cannot be read. A scan with a problem is incomplete. A znode
that vanishes during the walk refers to nothing any more.

Source: the table of references in Pulsar's metadata, checked on a running cluster.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Final

from infra.pulsar.log_scan import scan_logs
from infra.pulsar.scan_facts import (
    CompactionCursor,
    OffloadReference,
    ScanFact,
    ScannedManagedLedger,
    ScannedReference,
    ScanProblem,
    catch_unreadable,
)
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.ledger_references import (
    COMPACTION_CURSOR,
    ManagedLedgerReferences,
    find_cursor_references,
    find_managed_ledger_references,
    find_schema_references,
)
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, SCHEMAS, parse_managed_ledger_path

_TOPICS_PER_BATCH: Final = 1_000
_NAMES_PER_LIST: Final = 10_000


def scan_references(
    reader: ZnodeReader, namespaces: Sequence[str], schema_tenants: Sequence[str], log_roots: Sequence[str]
) -> Iterator[ScanFact]:
    """Yield what these parts of the metadata refer to."""
    yield from scan_managed_ledgers(reader, namespaces)
    yield from scan_schemas(reader, list_schemas(reader, schema_tenants))
    yield from scan_logs(reader, log_roots)


def list_namespaces(reader: ZnodeReader) -> list[str]:
    """Return the parents at the second level of managed ledgers. A root without tenants, or no root, has none."""
    ((_, tenants),) = reader.list_children([MANAGED_LEDGERS])
    return list(reader.list_paths([f"{MANAGED_LEDGERS}/{tenant}" for tenant in tenants or ()]))


def list_topics(reader: ZnodeReader, namespaces: Iterable[str]) -> Iterator[str | ScanProblem]:
    """Yield the paths of the managed ledgers below parents at any level, and problems. See `list_namespaces`.

    The paths are ascending within one parent. A namespace may have 1,000,000 topics. Memory holds the names in one
    parent, or in several that have few names together.
    """
    remaining = list(namespaces)
    while remaining:
        parents = list(reader.read(remaining))
        remaining = []
        for path, parent in parents:
            if parent is not None and parent.data:
                yield ScanProblem(path, "expected a parent of managed ledgers without data")
        for child in _list_children_in_groups(reader, parents):
            try:
                parsed = parse_managed_ledger_path(child[len(MANAGED_LEDGERS) + 1 :])
            except UnreadableMetadata as error:
                yield ScanProblem(child, str(error))
                continue
            if parsed is None:
                remaining.append(child)
            else:
                yield child


def _list_children_in_groups(reader: ZnodeReader, parents: Iterable[tuple[str, Znode | None]]) -> Iterator[str]:
    """Yield the paths of the children of the parents that exist. Parents with many children are listed alone."""
    group: list[str] = []
    names = 0
    for path, parent in parents:
        if parent is None:
            continue
        if group and names + parent.children > _NAMES_PER_LIST:
            yield from reader.list_paths(group)
            group, names = [], 0
        group.append(path)
        names += parent.children
    yield from reader.list_paths(group)


def scan_managed_ledgers(reader: ZnodeReader, namespaces: Iterable[str]) -> Iterator[ScanFact]:
    """Yield what managed ledgers and their cursors below `namespaces` refer to."""
    topics = list_topics(reader, namespaces)
    while batch := list(islice(topics, _TOPICS_PER_BATCH)):
        yield from (item for item in batch if isinstance(item, ScanProblem))
        yield from scan_topics(reader, [item for item in batch if isinstance(item, str)])


def scan_topics(
    reader: ZnodeReader, topics: Iterable[str], *, known: Mapping[str, Znode | None] = MappingProxyType({})
) -> Iterator[ScanFact]:
    """Yield what some managed ledgers and their cursors refer to. See `list_topics`. Memory holds one batch.

    `known` are znodes that were read right before, by path.
    """
    remaining = iter(topics)
    while batch := list(islice(remaining, _TOPICS_PER_BATCH)):
        with_cursors: list[str] = []
        znodes = {**known, **dict(reader.read([path for path in batch if path not in known]))}
        for path in batch:
            if (znode := znodes[path]) is not None:
                yield from catch_unreadable(path, partial(find_facts_of_managed_ledger, path, znode))
                if znode.children:
                    with_cursors.append(path)
        for path, znode in reader.read(reader.list_paths(with_cursors)):
            if znode is not None:
                yield from catch_unreadable(path, partial(find_facts_of_cursor, path, znode.data))
                if znode.children:
                    yield ScanProblem(path, f"expected a cursor without children, found {znode.children}")


def list_schema_tenants(reader: ZnodeReader) -> list[str]:
    """Return the parents at the first level of schemas. A cluster may have none."""
    return list(reader.list_paths([SCHEMAS]))


def list_schemas(reader: ZnodeReader, tenants: Iterable[str]) -> Iterator[str]:
    """Yield the paths of the schemas of tenants: `schemas/tenant/namespace/topic`. See `list_schema_tenants`."""
    for tenant in tenants:
        yield from reader.list_paths(reader.list_paths([tenant]))


def scan_schemas(reader: ZnodeReader, schemas: Iterable[str]) -> Iterator[ScanFact]:
    """Yield what some schemas refer to. See `list_schemas`."""
    for path, znode in reader.read(schemas):
        if znode is None:
            continue
        yield from catch_unreadable(path, partial(find_facts_of_schema, path, znode.data))
        if znode.children:
            yield ScanProblem(path, f"expected a schema without children, found {znode.children}")


def find_facts_of_managed_ledger(path: str, znode: Znode) -> list[ScanFact]:
    """Return the facts of a managed ledger. Pulsar drops a missing last ledger from the list and goes on."""
    references: ManagedLedgerReferences = find_managed_ledger_references(znode.data)
    name, is_owner = path.removeprefix(f"{MANAGED_LEDGERS}/"), not references.shadow_source
    given_up = references.ledgers_given_up if is_owner else frozenset[int]()
    can_be_absent = given_up.union(references.ledger_ids[-1:]) if is_owner else frozenset(references.ledger_ids)
    return [
        ScannedManagedLedger(
            name,
            len(references.ledger_ids),
            version=znode.version,
            czxid=znode.czxid,
            modified_ms=znode.modified_ms,
            shadow_source=references.shadow_source,
        ),
        *(
            ScannedReference(
                ledger_id, path, "ledgers", is_owner, ledger_id in can_be_absent, given_up=ledger_id in given_up
            )
            for ledger_id in references.ledger_ids
        ),
        *(OffloadReference(name, attempt) for attempt in references.offloads),
    ]


def find_facts_of_cursor(path: str, data: bytes) -> list[ScanFact]:
    """Return the facts of a cursor. The state of a compaction cursor with a ledger has to be read from its ledger."""
    references = find_cursor_references(data)
    facts: list[ScanFact] = [
        ScannedReference(bucket.ledger_id, path, "cursor_properties") for bucket in references.index_buckets
    ]
    if references.cursor_ledger_id is not None:
        facts.append(ScannedReference(references.cursor_ledger_id, path, "cursor_ledger_id"))
        if path.endswith(f"/{COMPACTION_CURSOR}"):
            facts.append(CompactionCursor(path, references.cursor_ledger_id))
    elif references.compacted_ledger_id is not None:
        facts.append(ScannedReference(references.compacted_ledger_id, path, "compacted_ledger"))
    return facts


def find_facts_of_schema(path: str, data: bytes) -> list[ScanFact]:
    return [ScannedReference(ledger_id, path, "versions") for ledger_id in find_schema_references(data)]
