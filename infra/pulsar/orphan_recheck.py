"""Last look at orphan ledgers, right before their deletion.

A state that the plan did not expect stops the deletion of all ledgers, because the rules of the plan may not describe
this cluster. A ledger that does not exist any more is expected: a broker may delete it late.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.compacted_ledgers import resolve_compaction_cursors
from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.reference_scan import scan_schemas, scan_topics
from infra.pulsar.scan_facts import ScannedReference, ScanProblem
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.errors import CorruptData, UnexpectedClusterState, UnreadableClusterState
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.pulsar.cluster_findings import COMPONENT, CZXID, OWNER, VERSION, require_ledger_id
from logstore.pulsar.ledger_metadata import StatedOwner, find_stated_owner, parse_ledger_metadata
from logstore.pulsar.ledger_verdicts import judge_owner_lookup
from logstore.pulsar.znode_names import MANAGED_LEDGER_DOMAIN, MANAGED_LEDGERS, SCHEMAS, format_ledger_path
from logstore.reconciliation.findings import Finding


@dataclass(frozen=True, slots=True)
class OwnerVersion:
    """Znode of the owner of a ledger at a look."""

    path: str  # relative to the chroot of the cluster
    version: int | None  # None: it does not exist


class OrphanRecheck:
    """Look at the owners of orphan ledgers, and at everything of the same topics that could refer to a ledger.

    `shadow_topics` are the managed ledgers of the cluster that list ledgers of other topics.
    """

    def __init__(
        self, reader: ZnodeReader, owners: OwnerDirectory, ledgers_root: str, shadow_topics: Collection[str] = ()
    ) -> None:
        self._reader, self._owners, self._root = reader, owners, ledgers_root
        self._shadow_topics = [f"{MANAGED_LEDGERS}/{name}" for name in shadow_topics]

    def read_planned(self, findings: Sequence[Finding]) -> list[JournaledLedger]:
        """Return those of the ledgers that exist. Raise `UnexpectedClusterState` if one is not as the plan saw it."""
        paths = [format_ledger_path(require_ledger_id(finding)) for finding in findings]
        znodes = self._reader.read([f"{self._root}/{path}" for path in paths])
        existing = []
        for finding, path, (_, znode) in zip(findings, paths, znodes, strict=True):
            if znode is not None:
                planned = int(finding.statement[VERSION]), int(finding.statement[CZXID])
                _require_version(finding.key, planned, znode)
                ledger = JournaledLedger(
                    ledger_id=require_ledger_id(finding),
                    path=path,
                    version=znode.version,
                    czxid=znode.czxid,
                    data=znode.data,
                )
                _require_planned_owner(finding, ledger)
                existing.append(ledger)
        return existing

    def require_unchanged(self, ledgers: Sequence[JournaledLedger]) -> None:
        """Raise `UnexpectedClusterState` if a ledger exists, and was changed or created anew since it was returned."""
        znodes = self._reader.read([f"{self._root}/{ledger.path}" for ledger in ledgers])
        for ledger, (path, znode) in zip(ledgers, znodes, strict=True):
            if znode is not None:
                _require_version(f"/{path}", (ledger.version, ledger.czxid), znode)

    def require_no_reference(self, ledgers: Sequence[JournaledLedger]) -> dict[int, OwnerVersion]:
        """Return the owner of each ledger, in a version that does not refer to the ledger.

        Raises:
            UnexpectedClusterState: Something refers to a ledger.
            UnreadableClusterState: Something that may refer to a ledger cannot be read.
        """
        owner_by_ledger = {ledger.ledger_id: _parse_owner(ledger) for ledger in ledgers}
        # Owners are read before everything else: if one changes after that, a check of its version fails.
        owner_znodes = self._owners.read_owners(owner_by_ledger.values())
        self._require_unreferenced(owner_by_ledger, owner_znodes)
        lookups = self._owners.judge_owners(owner_by_ledger, owner_znodes)
        for ledger_id, owner in owner_by_ledger.items():
            judgement = judge_owner_lookup(owner, lookups[ledger_id])
            if not judgement.verdict.is_orphan:
                raise UnexpectedClusterState(f"ledger {ledger_id}: expected an orphan, found that {judgement.reason}")
        return {
            ledger_id: OwnerVersion(owner.path, znode.version if (znode := owner_znodes[owner.path]) else None)
            for ledger_id, owner in owner_by_ledger.items()
        }

    def _require_unreferenced(
        self, owner_by_ledger: Mapping[int, StatedOwner], owner_znodes: Mapping[str, Znode | None]
    ) -> None:
        topics = {_find_managed_ledger(owner) for owner in owner_by_ledger.values()}
        facts = chain(
            scan_topics(self._reader, sorted({*topics, *self._shadow_topics}), known=owner_znodes),
            scan_schemas(self._reader, sorted(map(_find_schema, topics))),
        )
        directory = BookieDirectory(self._reader, self._root)
        for fact in resolve_compaction_cursors(self._reader, directory, self._root, facts):
            if isinstance(fact, ScanProblem):
                raise UnreadableClusterState(
                    f"/{fact.path}: it may refer to an orphan, and cannot be read. {fact.reason}"
                )
            if isinstance(fact, ScannedReference) and fact.ledger_id in owner_by_ledger:
                if fact.given_up and fact.path == owner_by_ledger[fact.ledger_id].path:
                    continue
                raise UnexpectedClusterState(
                    f"ledger {fact.ledger_id}: expected no reference, found one in /{fact.path}"
                )


def _require_version(name: str, version_and_czxid: tuple[int, int], znode: Znode) -> None:
    """Compare the creation too: the version of a znode that was deleted and created again begins at 0 again."""
    if version_and_czxid != (znode.version, znode.czxid):
        version, czxid = version_and_czxid
        expected = f"expected version {version} of transaction {czxid:#x}"
        raise UnexpectedClusterState(f"{name}: {expected}, found version {znode.version} of {znode.czxid:#x}")


def _require_planned_owner(finding: Finding, ledger: JournaledLedger) -> None:
    owner = find_stated_owner(parse_ledger_metadata(ledger.data))
    planned = finding.statement[COMPONENT], finding.statement[OWNER]
    if owner is None or (owner.component.value, owner.path) != planned:
        raise UnexpectedClusterState(f"{finding.key}: expected the owner {planned[1]}, found {owner and owner.path}")


def _parse_owner(ledger: JournaledLedger) -> StatedOwner:
    owner = find_stated_owner(parse_ledger_metadata(ledger.data))
    if owner is None:
        raise CorruptData(f"ledger {ledger.ledger_id}: expected metadata with an owner, found none")
    return owner


def _find_managed_ledger(owner: StatedOwner) -> str:
    """Return the path of the managed ledger of the owner's topic."""
    root, *parts = owner.path.split("/")
    if root == SCHEMAS:
        return "/".join([MANAGED_LEDGERS, *parts[:-1], MANAGED_LEDGER_DOMAIN, parts[-1]])
    return owner.path.rpartition("/")[0] if owner.is_cursor else owner.path


def _find_schema(managed_ledger_path: str) -> str:
    _, *namespace, _, topic = managed_ledger_path.split("/")
    return "/".join([SCHEMAS, *namespace, topic])
