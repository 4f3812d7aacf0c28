"""Second look at findings about znodes: at the znodes themselves, and then at their owners."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.policy_directory import look_up_orphan_managed_ledgers
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.cluster_findings import COMPONENT, CONFIRMED, CZXID, OWNER, VERDICT, VERSION, require_ledger_id
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import BrokerLookup, LedgerVerdict, OwnerLookup, judge_owner_lookup
from logstore.pulsar.orphan_managed_ledgers import ManagedLedgerVerdict
from logstore.pulsar.znode_names import MANAGED_LEDGERS, format_ledger_path
from logstore.reconciliation.findings import Finding, FindingKind


class ClusterVerifier:
    """Second look at the candidates of `compare-scans`: first at their own znodes, and then at their owners.

    `broker_lookups` has the answers of brokers about compacted ledgers.
    """

    def __init__(
        self,
        reader: ZnodeReader,
        owners: OwnerDirectory,
        broker_lookups: Mapping[int, BrokerLookup],
        ledgers_root: str,
    ) -> None:
        self._reader, self._owners, self._broker_lookups, self._root = reader, owners, broker_lookups, ledgers_root

    def verify(self, candidates: Sequence[Finding]) -> list[Finding]:
        """Return the candidates that are still true, in unchanged order. Each owner is read once."""
        current = self._drop_changed(candidates)
        judge_by_kind: dict[FindingKind, Callable[[Finding], Finding | None]] = {
            FindingKind.ORPHAN_LEDGER: self._make_ledger_judge(current),
            FindingKind.ORPHAN_MANAGED_LEDGER: self._make_managed_ledger_judge(current),
            FindingKind.DANGLING_REFERENCE: self._make_reference_judge(current),
        }
        judged = [judge_by_kind.get(candidate.kind, _keep)(candidate) for candidate in current]
        return [finding for finding in judged if finding is not None]

    def _drop_changed(self, candidates: Sequence[Finding]) -> list[Finding]:
        """Return the candidates whose znodes exist, and have not changed since the second scan."""
        paths = [candidate.key.removeprefix("/") for candidate in candidates if _has_znode(candidate)]
        znodes = dict(self._reader.read(paths))
        return [
            candidate
            for candidate in candidates
            if not _has_znode(candidate) or _is_unchanged(candidate, znodes[candidate.key.removeprefix("/")])
        ]

    def _make_ledger_judge(self, candidates: Sequence[Finding]) -> Callable[[Finding], Finding | None]:
        owner_by_ledger_id: dict[int, StatedOwner] = {
            require_ledger_id(candidate): get_stated_owner(candidate)
            for candidate in candidates
            if candidate.kind is FindingKind.ORPHAN_LEDGER
        }
        lookups = self._owners.look_up(owner_by_ledger_id)

        def judge(candidate: Finding) -> Finding | None:
            ledger_id = require_ledger_id(candidate)
            broker = self._broker_lookups.get(ledger_id, BrokerLookup.UNKNOWN)
            return _judge_ledger(candidate, lookups[ledger_id], broker)

        return judge

    def _make_managed_ledger_judge(self, candidates: Sequence[Finding]) -> Callable[[Finding], Finding | None]:
        names = [
            _get_managed_ledger_name(candidate)
            for candidate in candidates
            if candidate.kind is FindingKind.ORPHAN_MANAGED_LEDGER
        ]
        verdicts = look_up_orphan_managed_ledgers(self._reader, self._owners.policies, names)
        verdict_by_name = dict(zip(names, verdicts, strict=True))
        return lambda candidate: _judge_managed_ledger(candidate, verdict_by_name[_get_managed_ledger_name(candidate)])

    def _make_reference_judge(self, candidates: Sequence[Finding]) -> Callable[[Finding], Finding | None]:
        paths = [
            self._ledger_path(candidate) for candidate in candidates if candidate.kind is FindingKind.DANGLING_REFERENCE
        ]
        ledgers = dict(self._reader.read(paths))
        return lambda candidate: candidate if ledgers[self._ledger_path(candidate)] is None else None

    def _ledger_path(self, candidate: Finding) -> str:
        return f"{self._root}/{format_ledger_path(require_ledger_id(candidate))}"


def _keep(candidate: Finding) -> Finding:
    return candidate


def _has_znode(candidate: Finding) -> bool:
    return candidate.kind is not FindingKind.HAZARD


def _is_unchanged(candidate: Finding, znode: Znode | None) -> bool:
    """Return whether the znode exists in the scanned version. A reference has no version: its znode often changes."""
    if znode is None:
        return False
    scanned = candidate.statement.get(VERSION), candidate.statement.get(CZXID)
    return scanned in {(None, None), (str(znode.version), str(znode.czxid))}


def get_stated_owner(candidate: Finding) -> StatedOwner:
    """Return the owner that the ledger of a finding states."""
    return StatedOwner(PulsarComponent(candidate.statement[COMPONENT]), candidate.statement[OWNER])


def _get_managed_ledger_name(candidate: Finding) -> str:
    return candidate.statement[OWNER].removeprefix(f"{MANAGED_LEDGERS}/")


def _judge_ledger(candidate: Finding, lookup: OwnerLookup, broker: BrokerLookup) -> Finding | None:
    state = BookKeeperLedgerState.from_fact(candidate.statement["state"])
    judgement = judge_owner_lookup(get_stated_owner(candidate), lookup, broker, state=state)
    if judgement.verdict is LedgerVerdict.REFERENCED:
        return None
    return replace(
        candidate,
        kind=FindingKind.ORPHAN_LEDGER if judgement.verdict.is_orphan else FindingKind.UNATTRIBUTED_LEDGER,
        statement=_make_statement(candidate, judgement.verdict.value, is_confirmed=judgement.is_confirmed),
        detail=judgement.sentence,
    )


def _judge_managed_ledger(candidate: Finding, verdict: ManagedLedgerVerdict | None) -> Finding | None:
    if verdict is None:
        return None
    statement = _make_statement(candidate, verdict.value, is_confirmed=True)
    return replace(candidate, statement=statement, detail=verdict.reason)


def _make_statement(candidate: Finding, verdict: str, *, is_confirmed: bool) -> dict[str, str]:
    return {**candidate.statement, VERDICT: verdict, CONFIRMED: str(is_confirmed).lower()}
