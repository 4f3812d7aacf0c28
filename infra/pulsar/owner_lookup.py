"""Look-up of ledgers' stated owners by name: whether an owner exists, and to which ledgers it refers now."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.compacted_ledgers import resolve_compaction_cursors
from infra.pulsar.policy_directory import PolicyDirectory
from infra.pulsar.reference_scan import find_facts_of_cursor, find_facts_of_managed_ledger, find_facts_of_schema
from infra.pulsar.scan_facts import ScanFact, ScannedReference, ScanProblem
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import OwnerLookup
from logstore.pulsar.unreadable_metadata import UnreadableMetadata


class OwnerDirectory:
    """Owners of ledgers in the metadata of a cluster.

    `shared_clusters` are the names of further clusters on the same BookKeeper.
    """

    def __init__(
        self,
        reader: ZnodeReader,
        ledgers_root: str,
        *,
        policies: PolicyDirectory,
        shared_clusters: tuple[str, ...] = (),
    ) -> None:
        self._reader, self._root, self.policies = reader, ledgers_root, policies
        self._shared_clusters = shared_clusters
        self._bookies = BookieDirectory(reader, ledgers_root)

    def look_up(self, owner_by_ledger_id: Mapping[int, StatedOwner]) -> dict[int, OwnerLookup]:
        """Return what the owners say about the ledgers now."""
        return self.judge_owners(owner_by_ledger_id, self.read_owners(owner_by_ledger_id.values()))

    def read_owners(self, owners: Iterable[StatedOwner]) -> dict[str, Znode | None]:
        """Return the znodes of owners by path. Each is read once, in batches."""
        return dict(self._reader.read(sorted({owner.path for owner in owners})))

    def judge_owners(
        self, owner_by_ledger_id: Mapping[int, StatedOwner], znode_by_path: Mapping[str, Znode | None]
    ) -> dict[int, OwnerLookup]:
        """Return what these znodes of owners say about the ledgers. A shadow topic's list counts as a reference."""
        ledger_ids_by_owner: dict[StatedOwner, list[int]] = {}
        for ledger_id, owner in owner_by_ledger_id.items():
            ledger_ids_by_owner.setdefault(owner, []).append(ledger_id)
        known_tenants = self.policies.find_tenants(owner.tenant for owner in ledger_ids_by_owner)
        lookups: dict[int, OwnerLookup] = {}
        for owner, ledger_ids in ledger_ids_by_owner.items():
            znode = znode_by_path[owner.path]
            references = self._find_references(owner, znode)
            for ledger_id in ledger_ids:
                if references is None:
                    lookups[ledger_id] = OwnerLookup.UNREADABLE
                elif references.get(ledger_id) is False:
                    lookups[ledger_id] = OwnerLookup.LISTING
                elif self._shared_clusters:
                    lookups[ledger_id] = OwnerLookup.SHARED_BOOKKEEPER
                elif ledger_id in references:
                    lookups[ledger_id] = OwnerLookup.GIVEN_UP
                elif owner.tenant not in known_tenants:
                    lookups[ledger_id] = OwnerLookup.UNKNOWN_TENANT
                else:
                    lookups[ledger_id] = OwnerLookup.ABSENT if znode is None else OwnerLookup.NOT_LISTING
        return lookups

    def _find_references(self, owner: StatedOwner, znode: Znode | None) -> dict[int, bool] | None:
        """Return the ledgers to which the owner refers, and whether it has given each up after an offload.

        `None`: the owner's value cannot be read.
        """
        if znode is None:
            return {}
        try:
            facts = list(resolve_compaction_cursors(self._reader, self._bookies, self._root, _find_facts(owner, znode)))
        except UnreadableMetadata:
            return None
        if any(isinstance(fact, ScanProblem) for fact in facts):
            return None
        return {fact.ledger_id: fact.given_up for fact in facts if isinstance(fact, ScannedReference)}


@contextmanager
def open_owner_directory(
    cluster: PulsarCluster, reader: ZnodeReader, *, parallel_sessions: int
) -> Iterator[OwnerDirectory]:
    """Open a session with the configuration store that ends with the block. `reader` is a session with the cluster.

    For `parallel_sessions` see `PulsarCluster.open_reader`.
    """
    with cluster.open_configuration_reader(parallel_sessions=parallel_sessions) as configuration:
        policies = PolicyDirectory(reader, configuration=configuration)
        yield OwnerDirectory(reader, cluster.ledgers_root, policies=policies, shared_clusters=cluster.shared_clusters)


def _find_facts(owner: StatedOwner, znode: Znode) -> list[ScanFact]:
    match owner.component:
        case PulsarComponent.SCHEMA:
            return find_facts_of_schema(owner.path, znode.data)
        case PulsarComponent.MANAGED_LEDGER if not owner.is_cursor:
            return find_facts_of_managed_ledger(owner.path, znode)
    return find_facts_of_cursor(owner.path, znode.data)
