"""Look-up of the compacted ledgers of topics whose compaction cursors have a ledger.

Source: Pulsar's `Compactor`: the id is a property of the cursor's position, so its newest value is in the last entry of
the cursor ledger.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from infra.pulsar.bookie_reads import BookieConnections, BookieDirectory, BookieEntry
from infra.pulsar.ledger_scan import read_ledger_metadata
from infra.pulsar.newest_entries import NewestEntries, read_newest_entries
from infra.pulsar.scan_facts import CompactionCursor, ScanFact, ScannedReference, ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import LedgerMetadata
from logstore.pulsar.ledger_references import find_cursor_ledger_references, find_cursor_references
from logstore.pulsar.unreadable_metadata import UnreadableMetadata

_CURSORS_PER_BATCH: Final = 200
_MAX_SWITCHES: Final = 3
"""Times that the broker may switch to another cursor ledger during a look-up."""


def resolve_compaction_cursors(
    reader: ZnodeReader, directory: BookieDirectory, ledgers_root: str, facts: Iterable[ScanFact]
) -> Iterator[ScanFact]:
    """Yield `facts` with references to the compacted ledgers, or a problem, instead of each compaction cursor."""
    cursors: list[CompactionCursor] = []
    for fact in facts:
        if not isinstance(fact, CompactionCursor):
            yield fact
            continue
        cursors.append(fact)
        if len(cursors) == _CURSORS_PER_BATCH:
            yield from find_compacted_ledgers(reader, directory, ledgers_root, cursors)
            cursors = []
    if cursors:
        yield from find_compacted_ledgers(reader, directory, ledgers_root, cursors)


def find_compacted_ledgers(
    reader: ZnodeReader, directory: BookieDirectory, ledgers_root: str, cursors: Sequence[CompactionCursor]
) -> list[ScanFact]:
    """Return references to the compacted ledgers, and problems. A cursor may have none.

    A broker may switch to another cursor ledger, or store the state in the cursor's znode, and then delete the cursor
    ledger. The cursor's znode is therefore read after the entry, and if it names another ledger, the look-up begins
    again. A cursor ledger always has an entry: the broker writes it before it names the ledger in the znode.
    """
    facts: list[ScanFact] = []
    ledger_id_by_path = {cursor.path: cursor.cursor_ledger_id for cursor in cursors}
    with BookieConnections(directory) as connections:
        for _ in range(_MAX_SWITCHES):
            entries_by_ledger_id = _read_cursor_ledgers(
                reader, connections, ledgers_root, sorted(set(ledger_id_by_path.values()))
            )
            switched: dict[str, int] = {}
            for path, znode in reader.read(list(ledger_id_by_path)):
                if znode is None:
                    continue
                try:
                    current = find_cursor_references(znode.data)
                except UnreadableMetadata as error:
                    facts.append(ScanProblem(path, str(error)))
                    continue
                ledger_id = ledger_id_by_path[path]
                if current.cursor_ledger_id is None:
                    if current.compacted_ledger_id is not None:
                        facts.append(ScannedReference(current.compacted_ledger_id, path, "compacted_ledger"))
                elif current.cursor_ledger_id == ledger_id:
                    facts += _make_facts(path, ledger_id, entries_by_ledger_id[ledger_id])
                else:
                    switched[path] = current.cursor_ledger_id
            ledger_id_by_path = switched
            if not ledger_id_by_path:
                return facts
    reason = f"its cursor ledger was replaced {_MAX_SWITCHES} times during the scan"
    return facts + [ScanProblem(path, reason) for path in ledger_id_by_path]


def _read_cursor_ledgers(
    reader: ZnodeReader, connections: BookieConnections, ledgers_root: str, ledger_ids: Sequence[int]
) -> dict[int, NewestEntries]:
    results: dict[int, NewestEntries] = {}
    metadata_by_ledger_id: dict[int, LedgerMetadata] = {}
    for ledger_id, metadata in read_ledger_metadata(reader, ledgers_root, ledger_ids).items():
        if isinstance(metadata, UnreadableMetadata):
            results[ledger_id] = metadata
        else:
            metadata_by_ledger_id[ledger_id] = metadata
    return results | read_newest_entries(connections, metadata_by_ledger_id)


def _make_facts(path: str, ledger_id: int, entries: NewestEntries) -> list[ScanFact]:
    """Return references to the compacted ledgers of all entries that may be the last one.

    If they name several ledgers, any of them may be the current one, and the others may be deleted.
    """
    try:
        if isinstance(entries, Exception):
            raise entries
        return _make_references(path, entries)
    except (StoreUnavailable, UnreadableMetadata) as error:
        return [ScanProblem(path, f"the cursor ledger {ledger_id} cannot be read: {error}")]


def _make_references(path: str, entries: Sequence[BookieEntry]) -> list[ScanFact]:
    named_ids = {find_cursor_ledger_references(entry.payload) for entry in entries}
    compacted_ids = sorted(compacted_id for compacted_id in named_ids if compacted_id is not None)
    return [
        ScannedReference(compacted_id, path, "compacted_ledger", can_be_absent=len(named_ids) > 1)
        for compacted_id in compacted_ids
    ]
