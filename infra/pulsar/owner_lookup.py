"""Look-up of a ledger's stated owner by name: whether the owner exists, and whether it refers to the ledger now."""

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.compacted_ledgers import find_compacted_ledger
from infra.pulsar.reference_scan import find_facts_of_cursor, find_facts_of_managed_ledger, find_facts_of_schema
from infra.pulsar.scan_facts import CompactionCursor, LedgerReference, ScanFact
from infra.pulsar.scan_problem import ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import OwnerLookup
from logstore.pulsar.unreadable_metadata import UnreadableMetadata


class OwnerDirectory:
    """Owners of ledgers in ZooKeeper. A look-up reads what the owner refers to now."""

    def __init__(self, reader: ZnodeReader, ledgers_root: str) -> None:
        self._reader, self._root = reader, ledgers_root
        self._bookies = BookieDirectory(reader, ledgers_root)

    def look_up(self, ledger_id: int, owner: StatedOwner) -> OwnerLookup:
        """Return what the owner's znode says about the ledger. A shadow topic's list is no proof of ownership."""
        ((_, znode),) = self._reader.read([owner.path])
        if znode is None:
            return OwnerLookup.ABSENT
        try:
            facts = self._find_facts(owner, znode.data)
        except UnreadableMetadata:
            return OwnerLookup.UNREADABLE
        if any(isinstance(fact, ScanProblem) for fact in facts):
            return OwnerLookup.UNREADABLE
        references = [fact for fact in facts if isinstance(fact, LedgerReference)]
        is_listed = any(reference.ledger_id == ledger_id for reference in references)
        return OwnerLookup.LISTING if is_listed else OwnerLookup.NOT_LISTING

    def _find_facts(self, owner: StatedOwner, data: bytes) -> list[ScanFact]:
        match owner.component:
            case PulsarComponent.SCHEMA:
                return find_facts_of_schema(owner.path, data)
            case PulsarComponent.MANAGED_LEDGER if not owner.is_cursor:
                return find_facts_of_managed_ledger(owner.path, data)
        facts = find_facts_of_cursor(owner.path, data)
        for cursor in [fact for fact in facts if isinstance(fact, CompactionCursor)]:
            facts += find_compacted_ledger(self._reader, self._bookies, self._root, cursor)
        return facts
