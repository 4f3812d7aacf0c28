"""`verify-cluster`: look the owner of each candidate up by name, and keep the candidates that are still true.

What only a broker may know stays unconfirmed, unless the admin API says more about a topic that is loaded anyway.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.compaction_lookup import ADMIN_API, CompactionLookup, look_up_compacted_ledgers
from infra.pulsar.offload_verification import UNANSWERED, is_about_offload, open_offload_verifier
from infra.pulsar.owner_lookup import OwnerDirectory, open_owner_directory
from infra.pulsar.policy_directory import look_up_orphan_managed_ledgers
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.cluster_findings import COMPONENT, CONFIRMED, CZXID, OWNER, VERDICT, VERSION, require_ledger_id
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import BrokerLookup, LedgerVerdict, OwnerLookup, judge_owner_lookup
from logstore.pulsar.orphan_managed_ledgers import ManagedLedgerVerdict
from logstore.pulsar.plan_jobs import OFFLOAD_OBJECTS, PROBLEM, CompareOffloadsJob, CompareScansJob, VerifyClusterJob
from logstore.pulsar.znode_names import MANAGED_LEDGERS, format_ledger_path
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import CLUSTER_KINDS, Finding, FindingKind
from spark.job_runner import JobContext
from spark.reconciliation.candidate_verification import DROPPED, Verification, Verifier, verify_candidate_pages


def verify_cluster_findings(cluster: PulsarCluster, context: JobContext, job: VerifyClusterJob) -> BulkJobSummary:
    """Write the true findings. The summary counts them by kind, `dropped` candidates, and `problems` of the scans."""
    compared = context.get_published_summary(CompareScansJob.name)
    offloads = context.get_published_summary(CompareOffloadsJob.name) if job.has_offloads else None
    folders = [Path(summary.folder) for summary in (compared, offloads) if summary]
    problems = compared.counts["problems"]
    # Brokers are asked first: what a broker forgets because it unloads the topic is in the metadata then.
    compactions = _look_up_compactions(cluster, FindingFiles(Path(compared.folder)))
    open_verifier = partial(
        _open_verifier,
        cluster=cluster,
        parallel_sessions=context.spark.sparkContext.defaultParallelism,
        broker_lookups=compactions.answers,
        offload_facts=offloads.facts if offloads else {},
    )
    totals = verify_candidate_pages(context, "look owners up", folders, open_verifier)
    names = (*(kind.value for kind in CLUSTER_KINDS), DROPPED)
    subjects = totals.problems | ({ADMIN_API: compactions.problem} if compactions.problem else {})
    return BulkJobSummary(
        counts={name: totals.counts[name] for name in names} | {"problems": problems},
        facts={f"{PROBLEM}{subject}": reason for subject, reason in subjects.items()},
    )


def _look_up_compactions(cluster: PulsarCluster, candidates: FindingFiles) -> CompactionLookup:
    """Ask brokers about the compacted ledgers among the candidates: once, because each answer has all loaded topics."""
    if cluster.admin is None:
        return CompactionLookup({})
    owner_by_ledger_id: dict[int, StatedOwner] = {
        require_ledger_id(candidate): owner
        for _, candidate in candidates.iterate_findings(FindingKind.ORPHAN_LEDGER)
        if (owner := _get_stated_owner(candidate)).component is PulsarComponent.COMPACTED_LEDGER
    }
    if not owner_by_ledger_id:
        return CompactionLookup({})
    with cluster.open_reader(parallel_sessions=1) as reader:
        return look_up_compacted_ledgers(cluster.admin, reader, owner_by_ledger_id)


@contextmanager
def _open_verifier(
    *,
    cluster: PulsarCluster,
    parallel_sessions: int,
    broker_lookups: Mapping[int, BrokerLookup],
    offload_facts: Mapping[str, str],
) -> Iterator[Verifier]:
    """Open sessions that end with the block. `offload_facts` are those of `compare-offloads`."""
    with (
        cluster.open_reader(parallel_sessions=parallel_sessions) as reader,
        open_owner_directory(cluster, reader, parallel_sessions=parallel_sessions) as owners,
    ):
        verifier = ClusterVerifier(reader, owners, broker_lookups, cluster.ledgers_root)

        def verify(candidates: Sequence[Finding]) -> Verification:
            offloads = [candidate for candidate in candidates if is_about_offload(candidate)]
            findings = verifier.verify([candidate for candidate in candidates if not is_about_offload(candidate)])
            problems: dict[str, str] = {}
            if offloads:
                verification = open_offload_verifier(cluster.offloads, reader, offload_facts).verify(offloads)
                findings += verification.findings
                if verification.dropped[UNANSWERED]:
                    problems[OFFLOAD_OBJECTS] = "expected an answer about each candidate, found none about some"
            return Verification(findings, problems)

        yield verify


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
            require_ledger_id(candidate): _get_stated_owner(candidate)
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


def _get_stated_owner(candidate: Finding) -> StatedOwner:
    return StatedOwner(PulsarComponent(candidate.statement[COMPONENT]), candidate.statement[OWNER])


def _get_managed_ledger_name(candidate: Finding) -> str:
    return candidate.statement[OWNER].removeprefix(f"{MANAGED_LEDGERS}/")


def _judge_ledger(candidate: Finding, lookup: OwnerLookup, broker: BrokerLookup) -> Finding | None:
    state = BookKeeperLedgerState.from_fact(candidate.statement["state"])
    judgement = judge_owner_lookup(_get_stated_owner(candidate), lookup, broker, state=state)
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
