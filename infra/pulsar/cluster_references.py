"""References to ledgers: all of a cluster, or those of some znodes once more. One process reads one after another.

Source: the table of references in Pulsar's metadata, checked on a running cluster.
"""

from collections.abc import Iterable, Iterator, Sequence

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.compacted_ledgers import resolve_compaction_cursors
from infra.pulsar.log_scan import find_folder_of_logs, scan_logs
from infra.pulsar.reference_scan import (
    list_namespaces,
    list_schema_tenants,
    scan_references,
    scan_schemas,
    scan_topics,
)
from infra.pulsar.scan_facts import ScanFact, ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.znode_names import MANAGED_LEDGERS, SCHEMAS, CursorPath, parse_managed_ledger_path


def scan_cluster_references(reader: ZnodeReader, ledgers_root: str, log_roots: Sequence[str]) -> Iterator[ScanFact]:
    """Yield what all metadata of a cluster refer to, with the compacted ledgers, and problems."""
    namespaces = list_namespaces(reader)
    if not namespaces:
        yield ScanProblem(MANAGED_LEDGERS, "expected the namespaces of a Pulsar cluster, found none")
    facts = scan_references(reader, namespaces, list_schema_tenants(reader), log_roots)
    yield from resolve_compaction_cursors(reader, BookieDirectory(reader, ledgers_root), ledgers_root, facts)


def scan_references_again(reader: ZnodeReader, ledgers_root: str, paths: Iterable[str]) -> Iterator[ScanFact]:
    """Yield what the znodes at `paths` refer to now, and maybe what their neighbours refer to.

    `paths` are those of references that `scan_cluster_references` has yielded.
    """
    topics, schemas, folders = set[str](), set[str](), set[str]()
    for path in paths:
        root, _, name = path.partition("/")
        if root == MANAGED_LEDGERS:
            parsed = parse_managed_ledger_path(name)
            topics.add(path.rpartition("/")[0] if isinstance(parsed, CursorPath) else path)
        elif root == SCHEMAS:
            schemas.add(path)
        else:
            folders.add(find_folder_of_logs(path))
    directory = BookieDirectory(reader, ledgers_root)
    yield from resolve_compaction_cursors(reader, directory, ledgers_root, scan_topics(reader, sorted(topics)))
    yield from scan_schemas(reader, sorted(schemas))
    yield from scan_logs(reader, sorted(folders))
