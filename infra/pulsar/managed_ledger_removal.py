"""Removal of managed ledgers that outlived their topic or their namespace, through the admin API of brokers.

The broker that owns the namespace deletes the managed ledger, its cursors, its ledgers and its offloads, as
`pulsar-admin topics delete --force` does. Nothing here deletes a znode.

Source: Pulsar's `BrokerService`, which deletes a topic that is not loaded from the metadata alone, and
`NamespaceBundleFactory`, which gives a namespace without policies one bundle. A broker then owns the namespace.
"""

from base64 import b64encode
from collections.abc import Collection
from typing import Final

from infra.pulsar.broker_admin import AdminRequestFailed, BrokerAdmin, format_topic_path
from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.policy_directory import look_up_orphan_managed_ledgers
from infra.pulsar.reference_scan import scan_topics
from infra.pulsar.scan_facts import ScannedReference, ScanProblem
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.errors import InvalidInput, StoreUnavailable, UnexpectedClusterState, UnreadableClusterState
from logstore.failpoints import effect
from logstore.ports.pulsar_cluster import RemovalLook, RemovalResult
from logstore.pulsar.cluster_findings import CZXID, OWNER, VERDICT, VERSION, RemovalPart
from logstore.pulsar.ledger_references import find_managed_ledger_references
from logstore.pulsar.orphan_managed_ledgers import ManagedLedgerVerdict, list_possible_namespaces
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, topic_from_managed_ledger
from logstore.reconciliation.findings import Finding, FindingFate

_NAMELESS: Final = "the admin API has no topic with its name, as of topics of Pulsar 1"
_OWNED: Final = "a broker owns its namespace, so that nothing shows whether somebody uses it"
_SHADOW: Final = "it lists ledgers of another topic, which a deletion through a broker would delete"
_SERVER_ERRORS: Final = 500
_TOO_MANY_REQUESTS: Final = 429
_REFUSED: Final = {401, 403}
_ATTEMPTS: Final = 3


class ManagedLedgerRemoval:
    """Looks at orphan managed ledgers, and their removal.

    `shadow_topics` are the managed ledgers of the cluster that list ledgers of other topics.
    """

    def __init__(
        self, admin: BrokerAdmin, reader: ZnodeReader, owners: OwnerDirectory, shadow_topics: Collection[str]
    ) -> None:
        self._admin, self._reader, self._policies = admin, reader, owners.policies
        self._shadow_paths = [f"{MANAGED_LEDGERS}/{name}" for name in sorted(shadow_topics)]
        self._asked_namespaces: set[str] = set()  # which brokers own because of a removal

    def look(self, finding: Finding) -> RemovalLook:
        """Return what is left of a finding. For errors see `ClusterChanges.look`."""
        path = finding.statement[OWNER]
        ((_, znode),) = self._reader.read([path])
        if znode is None:
            return RemovalLook()
        planned = int(finding.statement[VERSION]), int(finding.statement[CZXID])
        if planned != (znode.version, znode.czxid):
            expected = f"expected version {planned[0]} of transaction {planned[1]:#x}"
            raise UnexpectedClusterState(f"/{path}: {expected}, found version {znode.version} of {znode.czxid:#x}")
        reason = self._find_reason_to_keep(finding, path, znode)
        return RemovalLook(reason=reason) if reason else RemovalLook(parts=(_make_part(path, znode),))

    def remove(self, finding: Finding) -> RemovalResult:
        """Ask the broker that owns the namespace to delete the managed ledger, and look that it is gone.

        A request that a broker could not carry out is sent again after another look. For its errors see `look`.

        Raises:
            AdminRequestFailed: There is no answer. The managed ledger may be deleted, now or later.
            StoreUnavailable: The broker confirmed the deletion, and the managed ledger is still there.
        """
        name = finding.statement[OWNER].removeprefix(f"{MANAGED_LEDGERS}/")
        path = f"/admin/v2/persistent/{format_topic_path(topic_from_managed_ledger(name))}?force=true"
        self._asked_namespaces.update(list_possible_namespaces(name))
        for attempt in range(_ATTEMPTS):
            if attempt and (reason := self.look(finding).reason):  # its topic may be in use since the last request
                return RemovalResult(fate=FindingFate.KEPT, reason=reason)
            try:
                with effect("pulsar.delete_managed_ledger"):
                    self._admin.send("DELETE", path)
            except AdminRequestFailed as error:
                if not self._exists(finding):
                    break
                if error.status is None:
                    raise
                if not _can_pass(error.status) or attempt == _ATTEMPTS - 1:
                    return _make_refused_result(error.status, error)
            else:
                if self._exists(finding):
                    raise StoreUnavailable(f"{finding.key}: expected to be deleted, found it; looking again")
                break
        return RemovalResult(fate=FindingFate.DELETED)

    def _exists(self, finding: Finding) -> bool:
        """Return whether the managed ledger exists that the plan saw, and not one that was created anew."""
        self._reader.sync()
        ((_, znode),) = self._reader.read([finding.statement[OWNER]])
        return znode is not None and znode.czxid == int(finding.statement[CZXID])

    def _find_reason_to_keep(self, finding: Finding, path: str, znode: Znode) -> str:
        name = path.removeprefix(f"{MANAGED_LEDGERS}/")
        try:
            format_topic_path(topic_from_managed_ledger(name))
        except (InvalidInput, UnreadableMetadata):
            return _NAMELESS
        try:
            references = find_managed_ledger_references(znode.data)
        except UnreadableMetadata as error:
            raise UnreadableClusterState(
                f"/{path}: it cannot be read, so that its ledgers are unknown. {error}"
            ) from error
        if references.shadow_source:
            return _SHADOW
        self._require_no_shadow(path, frozenset(references.ledger_ids))
        (verdict,) = look_up_orphan_managed_ledgers(self._reader, self._policies, [name])
        if verdict is not None and verdict.value == finding.statement[VERDICT]:
            return ""
        return self._find_reason_about_namespace(finding, name, verdict)

    def _find_reason_about_namespace(self, finding: Finding, name: str, verdict: ManagedLedgerVerdict | None) -> str:
        """Return why a managed ledger is kept that is no orphan for the planned reason any more, or "".

        Raises:
            UnexpectedClusterState: Its topic exists, or its namespace has policies.
        """
        namespaces = list_possible_namespaces(name)
        was_absent = finding.statement[VERDICT] == ManagedLedgerVerdict.NAMESPACE_ABSENT.value
        if not was_absent or self._policies.find_namespaces_with_policies(namespaces):
            found = verdict.reason if verdict else "that its topic or its namespace exists"
            raise UnexpectedClusterState(f"{finding.key}: expected an orphan ({finding.detail}), found {found}")
        return "" if self._asked_namespaces.issuperset(namespaces) else _OWNED

    def _require_no_shadow(self, path: str, ledger_ids: frozenset[int]) -> None:
        for fact in scan_topics(self._reader, self._shadow_paths):
            if isinstance(fact, ScanProblem):
                raise UnreadableClusterState(f"/{fact.path}: it may refer to ledgers of /{path}. {fact.reason}")
            if isinstance(fact, ScannedReference) and fact.ledger_id in ledger_ids and fact.path != path:
                raise UnexpectedClusterState(f"/{path}: expected no shadow topic, found /{fact.path}")


def _can_pass(status: int) -> bool:
    """Return whether a broker may carry the same request out later."""
    return status >= _SERVER_ERRORS or status == _TOO_MANY_REQUESTS


def _make_refused_result(status: int, error: AdminRequestFailed) -> RemovalResult:
    """Return the result of a request that a broker has answered, and not carried out."""
    is_final = not _can_pass(status) and status not in _REFUSED
    fate = FindingFate.KEPT if is_final else FindingFate.FAILED
    return RemovalResult(fate=fate, reason=f"a broker does not delete it: {error}")


def _make_part(path: str, znode: Znode) -> RemovalPart:
    return {
        "path": f"/{path}",
        "version": znode.version,
        "czxid": znode.czxid,
        "data": b64encode(znode.data).decode(),
    }
