"""Look-up of the compacted ledger of a topic whose compaction cursor has a ledger.

Source: Pulsar's `Compactor`: the id is a property of the cursor's position, so its newest value is in the last entry of
the cursor ledger.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from infra.pulsar.bookie_reads import BookieDirectory, read_last_entry
from infra.pulsar.scan_facts import CompactionCursor, LedgerReference, ScanFact
from infra.pulsar.scan_problem import ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import parse_ledger_metadata
from logstore.pulsar.ledger_references import find_cursor_ledger_references, find_cursor_references
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import format_ledger_path

_MAX_SWITCHES: Final = 3
"""Times that the broker may switch to another cursor ledger during a look-up."""


def find_compacted_ledger(
    reader: ZnodeReader, directory: BookieDirectory, ledgers_root: str, cursor: CompactionCursor
) -> list[ScanFact]:
    """Return the reference to the compacted ledger, nothing if there is none, or a problem.

    A broker may switch to another cursor ledger, or store the state in the cursor's znode, and then delete the cursor
    ledger. The cursor's znode is therefore read after the entry, and if it names another ledger, the look-up begins
    again. A cursor ledger always has an entry: the broker writes it before it names the ledger in the znode.
    """
    ledger_id = cursor.cursor_ledger_id
    for _ in range(_MAX_SWITCHES):
        try:
            facts = _make_facts(cursor.path, _read_compacted_id(reader, directory, ledgers_root, ledger_id))
        except UnreadableMetadata as error:
            facts = [ScanProblem(cursor.path, f"the cursor ledger {ledger_id} cannot be read: {error}")]
        ((_, znode),) = reader.read([cursor.path])
        if znode is None:
            return []
        try:
            current = find_cursor_references(znode.data)
        except UnreadableMetadata as error:
            return [ScanProblem(cursor.path, str(error))]
        if current.cursor_ledger_id is None:
            return _make_facts(cursor.path, current.compacted_ledger_id)
        if current.cursor_ledger_id == ledger_id:
            return facts
        ledger_id = current.cursor_ledger_id
    return [ScanProblem(cursor.path, f"its cursor ledger was replaced {_MAX_SWITCHES} times during the scan")]


def _read_compacted_id(
    reader: ZnodeReader, directory: BookieDirectory, ledgers_root: str, ledger_id: int
) -> int | None:
    """Return the id in the last entry of a cursor ledger.

    Raises:
        UnreadableMetadata: The ledger is absent, its bookies do not answer, or its entry cannot be parsed.
    """
    ((_, znode),) = reader.read([f"{ledgers_root}/{format_ledger_path(ledger_id)}"])
    if znode is None:
        raise UnreadableMetadata("ledger", expected="an existing one", found="no such znode")
    try:
        entry = read_last_entry(ledger_id, parse_ledger_metadata(znode.data), directory.find_address)
    except StoreUnavailable as error:
        raise UnreadableMetadata("ledger", expected="its last entry", found=str(error)) from None
    return find_cursor_ledger_references(entry.payload)


def resolve_compaction_cursors(
    reader: ZnodeReader, directory: BookieDirectory, ledgers_root: str, facts: Iterable[ScanFact]
) -> Iterator[ScanFact]:
    """Yield `facts` with the reference to a compacted ledger, or a problem, instead of each compaction cursor."""
    for fact in facts:
        if isinstance(fact, CompactionCursor):
            yield from find_compacted_ledger(reader, directory, ledgers_root, fact)
        else:
            yield fact


def _make_facts(path: str, ledger_id: int | None) -> list[ScanFact]:
    return [] if ledger_id is None else [LedgerReference(ledger_id, path, "compacted_ledger")]
